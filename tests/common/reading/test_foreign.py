import contextlib
import io
import os
import pickle
import struct
import subprocess
import zipfile
from collections import OrderedDict, defaultdict
from pathlib import Path, PurePosixPath

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from zoo.common.reading import torch_files
from zoo.common.reading.foreign import Stub, UnsafeFileError, load_foreign, plain


class Scheduler:
    """A class of a project that the reader does not have."""

    def __init__(self, sigma):
        self.sigma_min = sigma


class Calls:
    """Pickles as a call of `function`."""

    def __init__(self, function, *args):
        self.function, self.args = function, args

    def __reduce__(self):
        return self.function, self.args


class SetsState(Calls):
    """Pickles as a call followed by BUILD with `state`."""

    def __init__(self, state, function, *args):
        super().__init__(function, *args)
        self.state = state

    def __reduce__(self):
        return self.function, self.args, self.state


def own_reader(path: Path):
    """Skip torch's loader, so that the machine of this project is what is tested."""
    return torch_files.read_torch(path)


def example() -> dict:
    weight = torch.arange(12.0).reshape(3, 4)
    return {
        "step": 7,
        "weight": weight,
        "transposed": weight.t(),
        "row": weight[1],
        "half": torch.ones(3, dtype=torch.float16),
        "bf16": torch.ones(3, dtype=torch.bfloat16),
        "flags": torch.tensor([True, False]),
        "empty": torch.empty(0, 5),
        "scalar": torch.tensor(3),
        "parameter": nn.Parameter(torch.ones(2)),
        "state": nn.Linear(2, 2).state_dict(),
        "array": np.arange(6, dtype=">i2").reshape(2, 3),
        "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "np_scalar": np.float64(1.5),
        "names": np.array(["ab", "c"]),
        "dtype": torch.float16,
        "device": torch.device("cuda:1"),
        "size": torch.Size([2, 3]),
        "groups": defaultdict(list, {"a": [1]}),
        "kinds": (None, True, 1 << 80, 2.5, 1j, b"raw", "é", {1, 2}, frozenset([3]), bytearray(b"x")),
        "path": PurePosixPath("/a/b"),
    }


def assert_same(found, expected):
    if isinstance(expected, torch.Tensor):
        assert found.dtype == expected.dtype
        assert torch.equal(found, expected.detach())
    elif isinstance(expected, np.ndarray):
        assert found.dtype.newbyteorder("=") == expected.dtype.newbyteorder("=")
        np.testing.assert_array_equal(found, expected)
    elif isinstance(expected, dict):
        assert list(found) == list(expected)
        for key in expected:
            assert_same(found[key], expected[key])
    else:
        assert found == expected


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_reads_what_torch_saves(tmp_path, zipped, protocol):
    path = tmp_path / "x.pt"
    data = example()
    torch.save(data, path, _use_new_zipfile_serialization=zipped, pickle_protocol=protocol)
    assert_same(own_reader(path), data)
    assert_same(load_foreign(path), data)


def test_reads_paths_of_every_python(tmp_path):
    for module in (b"pathlib", b"pathlib._local"):  # the second is Python 3.13's
        (tmp_path / "x.pkl").write_bytes(b"c" + module + b"\nPosixPath\n(S'/'\nS'a'\nS'b'\ntR.")
        assert load_foreign(tmp_path / "x.pkl") == PurePosixPath("/a/b")


@pytest.mark.parametrize("protocol", [0, 1, 2, 4, 5])
def test_reads_plain_pickles(tmp_path, protocol):
    path = tmp_path / "x.pkl"
    data = example()
    path.write_bytes(pickle.dumps(data, protocol))
    assert_same(load_foreign(path), data)


@pytest.mark.parametrize("zipped", [True, False])
def test_tensors_share_their_storage(tmp_path, zipped):
    path = tmp_path / "x.pt"
    torch.save(example(), path, _use_new_zipfile_serialization=zipped)
    found = own_reader(path)
    found["weight"][1, 2] = -1
    assert found["row"][2] == -1
    assert found["transposed"][2, 1] == -1


def test_foreign_classes_become_stubs(tmp_path):
    path = tmp_path / "x.ckpt"
    network = nn.Sequential(nn.Linear(2, 3), nn.SiLU())
    torch.save({"hparams": {"scheduler": Scheduler(1e-3), "network": network}, "w": torch.ones(1)}, path)
    found = load_foreign(path)
    scheduler = found["hparams"]["scheduler"]
    assert isinstance(scheduler, Stub)
    assert scheduler.path.endswith("Scheduler")
    assert scheduler.get("sigma_min") == 1e-3
    assert scheduler.get("missing", 5) == 5
    linear = found["hparams"]["network"].get("_modules")["0"]
    assert linear.path == "torch.nn.modules.linear.Linear"
    assert torch.equal(linear.get("_parameters")["weight"], network[0].weight.detach())
    assert torch.equal(found["w"], torch.ones(1))


def test_state_dict_keeps_its_metadata_only(tmp_path):
    path = tmp_path / "x.pkl"
    state = nn.Linear(1, 1).state_dict()
    state.keys_hidden = "attribute"
    path.write_bytes(pickle.dumps(state))
    found = load_foreign(path)
    assert type(found) is OrderedDict
    assert found._metadata == state._metadata
    assert not hasattr(found, "keys_hidden")


def test_plain_unwraps_omegaconf(tmp_path):
    omegaconf = pytest.importorskip("omegaconf")
    path = tmp_path / "x.pt"
    config = {"a": [1, {"b": "c"}], "d": None}
    torch.save({"cfg": omegaconf.OmegaConf.create(config)}, path)
    assert plain(load_foreign(path)) == {"cfg": config}


def test_map_location_moves_tensors(tmp_path):
    path = tmp_path / "x.pt"
    torch.save({"s": Scheduler(1), "t": [torch.ones(2)]}, path)
    assert load_foreign(path, "meta")["t"][0].device.type == "meta"


def payloads(marker: Path):
    """Pickle streams that create `marker` when they are run by plain pickle."""
    command = f"touch {marker}"
    source = f"open({str(marker)!r}, 'w').close()"
    yield "os.system", pickle.dumps(Calls(os.system, command))
    yield "exec", pickle.dumps(Calls(exec, source))
    yield "eval", pickle.dumps(Calls(eval, source))
    yield "open", pickle.dumps(Calls(open, str(marker), "w"))
    yield "Popen", pickle.dumps(Calls(subprocess.Popen, ("touch", str(marker))))
    yield "hub", pickle.dumps(Calls(torch.hub.load, str(marker.parent), "touch"))
    yield "runpy", b"crunpy\nrun_path\n(S'" + str(marker.parent / "code.py").encode() + b"'\ntR."
    yield (
        "getattr",
        pickle.dumps(Calls(getattr, Calls(__import__, "os"), "system"))[:-1]
        + (b"(X" + struct.pack("<I", len(command)) + command.encode() + b"tR."),
    )
    yield (
        "nested getattr",
        (b"cbuiltins\ngetattr\n(cos\npath\nS'os'\ntR0(cbuiltins\ngetattr\n(cos\npath\nS'os'\ntRS'system'\ntR."),
    )
    yield "dotted name", b"\x80\x04\x8c\x07os.path\x8c\x09os.system\x93\x8c" + _short(command) + b"\x85R."
    yield "inst", b"(S'" + command.encode() + b"'\nios\nsystem\n."
    yield "obj", b"(cos\nsystem\nS'" + command.encode() + b"'\no."
    yield "newobj", b"\x80\x02cos\nsystem\n(S'" + command.encode() + b"'\nt\x81."
    # BUILD calls __setstate__ of the object below the state, here what a dict of the file put there.
    yield "setstate", b"ccollections\nOrderedDict\n)R(dS'__setstate__'\ncos\nsystem\nsbS'" + command.encode() + b"'\nb."
    yield "partial", pickle.dumps(SetsState({"x": 1}, __import__("functools").partial, os.system, command))
    yield "reduce_ex", pickle.dumps(Calls(map, os.system, [command])) + pickle.dumps(Calls(list))
    yield "persistent id", b"(S'storage'\ncos\nsystem\nS'" + command.encode() + b"'\ntQ."
    yield "extension", b"\x80\x02\x82\x01."


def _short(text: str) -> bytes:
    return bytes([len(text)]) + text.encode()


def as_zip(stream: bytes, path: Path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", stream)
        archive.writestr("archive/byteorder", "little")
        archive.writestr("archive/version", "3\n")


def as_legacy(stream: bytes, path: Path):
    header = pickle.dumps(torch_files.LEGACY_MAGIC, 2) + pickle.dumps(torch_files.LEGACY_VERSION, 2)
    path.write_bytes(header + pickle.dumps({"little_endian": True}, 2) + stream + pickle.dumps([], 2))


def test_payloads_never_run(tmp_path):
    marker = tmp_path / "marker"
    (tmp_path / "code.py").write_text(f"open({str(marker)!r}, 'w').close()")
    (tmp_path / "hubconf.py").write_text(f"open({str(marker)!r}, 'w').close()")
    kinds = list(payloads(marker))
    assert len(kinds) >= 6
    for name, stream in kinds:
        for suffix, write in ((".pkl", lambda s, p: p.write_bytes(s)), (".pt", as_zip), (".pth", as_legacy)):
            path = (tmp_path / name).with_suffix(suffix)
            write(stream, path)
            for read in (load_foreign, own_reader):
                try:
                    read(path)
                except Exception as error:
                    assert read is own_reader or isinstance(error, ValueError), (name, error)
                assert not marker.exists(), (name, suffix)
    assert plain_pickle_would_run(kinds[0][1], marker)


def plain_pickle_would_run(stream: bytes, marker: Path) -> bool:
    """Control: the payloads are live."""
    pickle.loads(stream)
    return marker.exists()


def test_payload_beside_weights_is_named(tmp_path):
    path = tmp_path / "x.ckpt"
    torch.save({"state_dict": {"w": torch.ones(1)}, "x": Calls(os.system, "true")}, path)
    with pytest.raises(
        UnsafeFileError, match=r"x\.ckpt: it asks to call posix\.system\('true',\).*nothing of the file"
    ):
        load_foreign(path)


def test_build_does_not_touch_classes_or_functions(tmp_path):
    path = tmp_path / "x.pkl"
    # slot state: plain pickle would set an attribute of the class torch.Tensor
    path.write_bytes(b"ctorch\nTensor\n(N(S'evil'\nI1\ndtb.")
    load_foreign(path)
    assert not hasattr(torch.Tensor, "evil")
    path.write_bytes(b"cbuiltins\nset\n(tR(S'a'\nI1\ndb.")
    with pytest.raises(UnsafeFileError, match="sets attributes of a set"):
        load_foreign(path)


def test_object_arrays_are_refused(tmp_path):
    path = tmp_path / "x.pkl"
    path.write_bytes(pickle.dumps(np.array([Scheduler(1)], dtype=object)))
    with pytest.raises(UnsafeFileError, match="numpy dtype"):
        load_foreign(path)


def test_a_tensor_beyond_its_storage_is_refused(tmp_path):
    path = tmp_path / "x.pt"
    tensor = torch.ones(4)
    call = Calls(torch._utils._rebuild_tensor_v2, tensor.untyped_storage(), 0, (99,), (1,), False, OrderedDict())
    torch.save({"t": call}, path)
    with pytest.raises(ValueError, match="out of bounds"):
        load_foreign(path)


def test_huge_claims_allocate_nothing(tmp_path):
    path = tmp_path / "x.pkl"
    for stream in (
        b"\x80\x05\x96" + struct.pack("<Q", 1 << 60) + b"x.",
        b"\x80\x04\x8e" + struct.pack("<Q", 1 << 60) + b"x.",
        b"\x80\x02cbuiltins\nbytearray\n\x8a\x08" + struct.pack("<q", 1 << 50) + b"\x85R.",
        b"\x80\x02cbuiltins\nbytes\n\x8a\x08" + struct.pack("<q", 1 << 50) + b"\x85R.",
    ):
        path.write_bytes(stream)
        with pytest.raises(ValueError, match=r"x\.pkl"):
            load_foreign(path)


def test_torchscript_tar_and_compressed_files_are_refused(tmp_path):
    script = tmp_path / "script.pt"
    with zipfile.ZipFile(script, "w") as archive:
        archive.writestr("a/data.pkl", pickle.dumps(1))
        archive.writestr("a/constants.pkl", pickle.dumps(1))
    with pytest.raises(UnsafeFileError, match="TorchScript"):
        own_reader(script)
    bomb = tmp_path / "bomb.pt"
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/data.pkl", pickle.dumps("x" * 10000))
    with pytest.raises(UnsafeFileError, match="compression"):
        own_reader(bomb)
    tar = tmp_path / "old.pt"
    import tarfile

    with tarfile.open(tar, "w") as archive:
        archive.addfile(tarfile.TarInfo("pickle"))
    with pytest.raises(UnsafeFileError, match="2017"):
        load_foreign(tar)


@pytest.mark.parametrize("content", [b"", b"<html>not found</html>", b"\x80\x02", b"PK\x03\x04broken"])
def test_other_files_give_one_clear_line(tmp_path, content):
    path = tmp_path / "page.pt"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"page\.pt: neither a torch") as caught:
        load_foreign(path)
    assert "\n" not in str(caught.value)


def test_a_cut_file_is_refused(tmp_path):
    path = tmp_path / "x.pt"
    torch.save({"w": torch.ones(1000), "s": Scheduler(1)}, path)
    path.write_bytes(path.read_bytes()[:-2000])
    with pytest.raises(ValueError, match="incomplete"):
        load_foreign(path)


def test_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        load_foreign(tmp_path / "nowhere.pt")


def test_safetensors(tmp_path):
    from safetensors.torch import save_file

    path = tmp_path / "m.safetensors"
    save_file({"w": torch.ones(2)}, path)
    assert torch.equal(load_foreign(path)["w"], torch.ones(2))
    path.write_bytes(b"short")
    with pytest.raises(ValueError, match="safetensors"):
        load_foreign(path)


@settings(max_examples=200, deadline=None)
@given(noise=st.binary(max_size=60), position=st.integers(0, 400), byte=st.integers(0, 255))
def test_damaged_streams_fail_with_value_error(tmp_path_factory, noise, position, byte):
    path = tmp_path_factory.getbasetemp() / "damaged.pt"
    buffer = io.BytesIO()
    torch.save({"w": torch.ones(2), "s": Scheduler(1)}, buffer, _use_new_zipfile_serialization=False)
    stream = bytearray(buffer.getvalue())
    stream[position % len(stream)] = byte
    for data in (bytes(stream), noise):
        path.write_bytes(data)
        with contextlib.suppress(ValueError):
            load_foreign(path)


def laughs(depth: int) -> bytes:
    """Lists that hold one list twice, again and again: 2**depth entries when spelled out."""
    return b"]" + b"".join(b"p%d\n0](g%d\ng%d\ne" % (i, i, i) for i in range(depth))


def test_shared_containers_are_not_spelled_out(tmp_path):
    path = tmp_path / "x.pkl"
    path.write_bytes(laughs(10) + b".")
    value = plain(load_foreign(path, "meta"))
    assert value[0] is value[1]
    value = plain(pickle.loads(laughs(60) + b"."))
    assert value[0] is value[1]
    path.write_bytes(laughs(60) + b".")
    with pytest.raises(UnsafeFileError, match="stand for more than"):
        load_foreign(path)
    path.write_bytes(b"cos\nsystem\n(" + laughs(60) + b"tR.")
    with pytest.raises(UnsafeFileError, match=r"os\.system") as caught:
        load_foreign(path)
    assert len(str(caught.value)) < 1000


def test_plain_refuses_circles_of_records():
    circle = Stub("omegaconf.dictconfig.DictConfig", state={})
    circle.state["_content"] = Stub("omegaconf.nodes.AnyNode", state={"_val": circle})
    with pytest.raises(UnsafeFileError, match="circle"):
        plain(circle)
    loop: list = []
    loop.append(loop)
    found = plain(loop)
    assert found[0] is found


def test_plain_unwraps_namespaces_and_containers():
    namespace = Stub("argparse.Namespace", state={"rate": 1, "parts": (Stub("my.List", elements=[1]),)})
    assert plain([namespace, Stub("my.Dict", entries={"a": 1})]) == [{"rate": 1, "parts": ([1],)}, {"a": 1}]
    other = Stub("fm.FMScheduler", state={"sigma": 1})
    assert plain({"x": other})["x"] is other


@pytest.mark.shared
def test_reads_every_golden_file(shared):
    files = [
        path
        for path in sorted((shared / "golden").rglob("*"))
        if path.suffix in {".pt", ".pth", ".ckpt", ".bin", ".pkl"} or path.name.startswith(("g_", "do_"))
    ]
    assert len(files) > 30
    for path in files:
        trusted = load_foreign(path)
        assert isinstance(trusted, dict | list | Stub), path
        assert_same_keys(own_reader(path), trusted)


def assert_same_keys(found, expected):
    if isinstance(expected, torch.Tensor):
        assert torch.equal(found, expected.detach()) or expected.isnan().any()
    elif isinstance(expected, dict):
        assert list(found) == list(expected)
        for key in expected:
            assert_same_keys(found[key], expected[key])
    else:
        assert type(found) is type(expected) or isinstance(found, Stub)


@pytest.mark.shared
def test_flow_files_give_modules_as_stubs(shared):
    found = load_foreign(shared / "golden" / "flow" / "cfg_fmsave.ckpt")
    assert found["hparams"]["network"].path == "network.UNet"
    assert isinstance(found["hparams"]["fm_scheduler"].get("sigma_min"), float)
    assert all(isinstance(value, torch.Tensor) for value in found["state_dict"].values())


@pytest.mark.shared
def test_omegaconf_hparams_become_plain(shared):
    found = load_foreign(shared / "golden" / "miipher" / "vocoder_plain" / "vocoder.ckpt")
    config = plain(found["hyper_parameters"])
    assert "Stub" not in repr(config)
