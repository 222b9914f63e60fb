import contextlib
import functools
import io
import os
import pickle
import runpy
import struct
import subprocess
import zipfile
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from zoo.cli.commands.inspect import iterate_contents
from zoo.common.safe_load import Record, UnsafeFileError, check_archive, load_foreign_checkpoint, to_plain_values


class Scheduler:
    """A class of a project that the reader does not have."""

    def __init__(self, sigma: float) -> None:
        self.sigma_min = sigma


class Call:
    """Pickles as a call of `function`, and as a state where one is given."""

    def __init__(self, function: Callable[..., Any], *args: Any, state: Any = None) -> None:
        self.reduced = (function, args) if state is None else (function, args, state)

    def __reduce__(self) -> Any:
        return self.reduced


def save(content: Any, path: Path, zipped: bool = True) -> Path:
    torch.save(content, path, _use_new_zipfile_serialization=zipped)
    return path


def write_entries(path: Path, entries: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    return path


def write_zip(stream: bytes, path: Path) -> Path:
    return write_entries(path, {"a/data.pkl": stream, "a/byteorder": b"little", "a/version": b"3\n"})


def write_legacy(stream: bytes, path: Path) -> Path:
    buffer = io.BytesIO()
    torch.save(1, buffer, _use_new_zipfile_serialization=False)
    content, keys = pickle.dumps(1, 2), pickle.dumps([], 2)
    assert buffer.getvalue().endswith(content + keys)
    path.write_bytes(buffer.getvalue().removesuffix(content + keys) + stream + keys)
    return path


def assert_equal(result: Any, expected: Any) -> None:
    if isinstance(expected, torch.Tensor):
        assert result.dtype == expected.dtype
        assert torch.equal(result, expected.detach())
    elif isinstance(expected, np.ndarray):
        assert result.dtype == expected.dtype.newbyteorder("=")
        np.testing.assert_array_equal(result, expected)
    elif isinstance(expected, dict):
        assert list(result) == list(expected)
        for key in expected:
            assert_equal(result[key], expected[key])
    else:
        assert result == expected


@pytest.mark.parametrize("zipped", [True, False])
def test_reads_what_torch_saves(tmp_path: Path, zipped: bool) -> None:
    weight = torch.arange(12.0).reshape(3, 4)
    content = {
        "step": 7,
        "weight": weight,
        "row": weight[1],
        "bf16": torch.ones(3, dtype=torch.bfloat16),
        "empty": torch.empty(0, 5),
        "parameter": nn.Parameter(torch.ones(2)),
        "state": nn.Linear(2, 2).state_dict(),
        "array": np.arange(6, dtype=">i2").reshape(2, 3),
        "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "np_scalar": np.float64(1.5),
        "names": np.array(["ab", "c"]),
        "dtype": torch.float16,
        "size": torch.Size([2, 3]),
        "groups": defaultdict(list, {"a": [1]}),
        "queue": deque([1, 2], 5),
        "kinds": (None, True, 1 << 80, 2.5, 1j, b"", b"raw", "é", {1, 2}, frozenset([3]), bytearray(b"x")),
        "path": PurePosixPath("/a/b"),
    }
    result = load_foreign_checkpoint(save(content, tmp_path / "x.pt", zipped), mmap=True)
    assert_equal(result, {**content, "queue": [1, 2]})
    result["weight"][1, 2] = -1
    assert result["row"][2] == -1


def test_foreign_classes_become_records(tmp_path: Path) -> None:
    network = nn.Sequential(nn.Linear(2, 3), nn.SiLU())
    content = {"scheduler": Scheduler(1e-3), "network": network, "kind": Scheduler, "w": torch.ones(1)}
    result = load_foreign_checkpoint(save(content, tmp_path / "x.ckpt"))
    scheduler = result["scheduler"]
    assert isinstance(scheduler, Record) and scheduler.path.endswith("Scheduler")
    assert (scheduler.get("sigma_min"), scheduler.get("missing", 5)) == (1e-3, 5)
    linear = result["network"].get("_modules")["0"]
    assert linear.path == "torch.nn.modules.linear.Linear"
    assert torch.equal(linear.get("_parameters")["weight"], network[0].weight.detach())
    assert issubclass(result["kind"], Record)
    paths = {entry.path for entry in iterate_contents(result, set()) if hasattr(entry, "path")}
    assert paths >= {scheduler.path, linear.path, "torch.nn.modules.activation.SiLU"}


def test_registered_classes_of_other_libraries_are_not_built(tmp_path: Path) -> None:
    path = save(Scheduler(1), tmp_path / "x.pt")
    before = set(torch.serialization.get_safe_globals())
    with torch.serialization.safe_globals([Scheduler]):
        assert isinstance(load_foreign_checkpoint(path), Record)
        assert Scheduler in torch.serialization.get_safe_globals()
    assert set(torch.serialization.get_safe_globals()) == before


def test_namespaces_and_omegaconf_become_plain_values(tmp_path: Path) -> None:
    from argparse import Namespace

    from omegaconf import OmegaConf

    config = {"a": [1, {"b": "c"}], "d": None}
    content = {"cfg": OmegaConf.create(config), "args": Namespace(rate=1), "other": (Scheduler(1),)}
    result = to_plain_values(load_foreign_checkpoint(save(content, tmp_path / "x.pt")))
    assert (result["cfg"], result["args"]) == (config, {"rate": 1})
    assert isinstance(result["other"][0], Record)
    circle: list[Any] = []
    circle.append(circle)
    with pytest.raises(UnsafeFileError):
        to_plain_values(circle)


def as_opcode(text: str) -> bytes:
    return b"X" + struct.pack("<I", len(text)) + text.encode()


def payloads(marker: Path) -> Iterator[tuple[str, bytes]]:
    """Pickle streams that create `marker` when pickle runs them."""
    command, source = f"touch {marker}", f"open({str(marker)!r}, 'w').close()"
    script = marker.with_name("hubconf.py")
    script.write_text(source)
    argument = as_opcode(command)
    yield "os.system", pickle.dumps(Call(os.system, command), 2)
    yield "eval", pickle.dumps(Call(eval, source), 2)
    yield "open", pickle.dumps(Call(open, str(marker), "w"), 2)
    yield "Popen", pickle.dumps(Call(subprocess.Popen, ("touch", str(marker))), 2)
    yield "hub", pickle.dumps(Call(functools.partial(torch.hub.load, source="local"), str(marker.parent), "x"), 2)
    yield "runpy", pickle.dumps(Call(runpy.run_path, str(script)), 2)
    yield "getattr", b"\x80\x02c__builtin__\ngetattr\ncos\npath\n" + as_opcode("os") + b"\x86R."
    yield "partial", pickle.dumps(Call(functools.partial, os.system, state=(os.system, (command,), {}, {})), 2)
    yield "map", pickle.dumps(Call(list, Call(map, os.system, [command])), 2)
    yield "newobj", b"\x80\x02cposix\nsystem\n" + argument + b"\x85\x81."
    yield "inst", b"(S'" + command.encode() + b"'\nios\nsystem\n."
    yield "dotted name", b"\x80\x04\x8c\x07os.path\x8c\x09os.system\x93" + argument + b"\x85R."
    build = b"\x80\x02ccollections\nOrderedDict\n)R}" + as_opcode("__setstate__")
    yield "setstate", build + b"cposix\nsystem\nsb" + argument + b"b."
    yield "persistent id", b"\x80\x02" + as_opcode("storage") + b"cposix\nsystem\n" + argument + b"\x87Q."


@pytest.mark.parametrize("write", [write_zip, write_legacy, lambda stream, path: path.write_bytes(stream) and path])
def test_payloads_never_run(tmp_path: Path, write: Callable[[bytes, Path], Path]) -> None:
    marker = tmp_path / "marker"
    for name, stream in payloads(marker):
        path = write(stream, tmp_path / "x.pt")
        try:
            content = load_foreign_checkpoint(path)
        except ValueError as error:
            assert "\n" not in str(error) and str(error).startswith(str(path)), (name, error)
        else:
            assert isinstance(content, Record | list), (name, content)
        assert not marker.exists(), name
    pickle.loads(next(payloads(marker))[1])
    assert marker.exists()


def make_array(shape: Any) -> Call:
    rebuild, args, (version, _, *rest) = np.ones(2, np.float32).__reduce__()
    return Call(rebuild, *args, state=(version, shape, *rest))


@pytest.mark.parametrize(
    "content",
    [
        *map(make_array, [(3,), (-1, -2), (1 << 62, 4), 2]),
        np.array([Scheduler(1)], dtype=object),
        np.zeros(2, dtype=[("a", "f4"), ("b", "O")]),
        np.zeros(2, dtype="datetime64[s]"),
        Call(torch._utils._rebuild_tensor_v2, torch.ones(4).untyped_storage(), 0, (99,), (1,), False, OrderedDict()),
        Call(bytes, 1 << 50),
    ],
)
def test_arrays_and_tensors_outside_their_bytes_are_refused(tmp_path: Path, content: Any) -> None:
    path = save({"x": content}, tmp_path / "x.pt")
    with pytest.raises(ValueError, match=r"x\.pt"):
        load_foreign_checkpoint(path)


def write_longer(path: Path, entries: dict[str, bytes]) -> None:
    """An archive whose directory states more bytes than there are."""
    content = bytearray(write_entries(path, entries).read_bytes())
    start = content.index(b"PK\x01\x02") + 20
    content[start : start + 8] = struct.pack("<II", 10**6, 10**6)
    path.write_bytes(content)


ONE = pickle.dumps(1, 2)
OTHER_FILES: dict[str, Callable[[Path], Any]] = {
    "empty": lambda path: path.write_bytes(b""),
    "page": lambda path: path.write_bytes(b"<html>not found</html>"),
    "stream": lambda path: path.write_bytes(b"\x80\x02"),
    "broken zip": lambda path: path.write_bytes(b"PK\x03\x04broken"),
    "cut": lambda path: path.write_bytes(save({"w": torch.ones(1000)}, path).read_bytes()[:-2000]),
    "script": lambda path: write_entries(path, {"a/data.pkl": ONE, "a/constants.pkl": ONE}),
    "compressed": lambda path: write_entries(path, {"a/data.pkl": ONE}, zipfile.ZIP_DEFLATED),
    "other zip": lambda path: write_entries(path, {"a/x": ONE}),
    "two": lambda path: write_entries(path, {"a/data.pkl": ONE, "b/data.pkl": ONE}),
    "longer": lambda path: write_longer(path, {"a/data.pkl": ONE}),
}


def test_compressed_arrays_are_refused(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "x.npz", a=np.zeros(2**25))
    with pytest.raises(UnsafeFileError):
        check_archive(tmp_path / "x.npz")


@pytest.mark.parametrize("name", OTHER_FILES)
def test_other_files_give_one_line(tmp_path: Path, name: str) -> None:
    path = tmp_path / "page.pt"
    OTHER_FILES[name](path)
    with pytest.raises(ValueError, match=r"page\.pt") as caught:
        load_foreign_checkpoint(path)
    assert "\n" not in str(caught.value)
    path = path.rename(path.with_suffix(".safetensors"))
    with pytest.raises(ValueError, match=r"page\.safetensors"):
        load_foreign_checkpoint(path)


@settings(max_examples=200, deadline=None)
@given(noise=st.binary(max_size=60), position=st.integers(0, 400), byte=st.integers(0, 255))
def test_damaged_streams_fail_with_value_error(
    tmp_path_factory: pytest.TempPathFactory, noise: bytes, position: int, byte: int
) -> None:
    path = save({"w": torch.ones(2), "s": Scheduler(1)}, tmp_path_factory.getbasetemp() / "damaged.pt", zipped=False)
    stream = bytearray(path.read_bytes())
    stream[position % len(stream)] = byte
    for content in (bytes(stream), noise):
        path.write_bytes(content)
        with contextlib.suppress(ValueError):
            load_foreign_checkpoint(path)
