"""E1: a file of a stranger costs at most 4 times its size and 300 MB, and ten seconds, whatever it asks for."""

import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from tests.faults import bombs
from tests.faults.bombs import MEBIBYTE, Cost, costs
from tests.harness import SMOKE, TOY_ARGS, TOY_RECIPE, in_fork
from zoo.cli.main import main
from zoo.flow.data.image_sets import npz
from zoo.flow.evaluation.extractors import read_features

SECONDS = 10  # of computing


def assert_cheap(found: list[Cost], file: Path, codes: tuple[int, ...] = (1, 2)) -> None:
    for call, memory in found:
        assert call.code in codes, call
        assert "Traceback" not in call.said, call
        assert len(call.errors) == (call.code != 0), call
        assert memory < 4 * file.stat().st_size + 300 * MEBIBYTE, (memory / MEBIBYTE, call)
        assert call.seconds < SECONDS, call


@pytest.mark.parametrize("name", bombs.PICKLES)
def test_pickles(tmp_path: Path, name: str) -> None:
    path = tmp_path / "x.pkl"
    path.write_bytes(b"\x80\x04" + bombs.PICKLES[name]())
    assert_cheap(in_fork(costs, [["inspect", path]]), path)


def test_tensors_that_repeat_their_values(tmp_path: Path) -> None:
    spread, repeated = tmp_path / "spread.pt", tmp_path / "repeated.pt"
    bombs.spread(spread, 10**12)
    bombs.repeated(repeated, 5000)
    for path in (spread, repeated):
        assert_cheap(in_fork(costs, [["inspect", path], ["convert", "hifigan", path, tmp_path / "out"]]), path)


@pytest.mark.parametrize("suffix", ["pt", "ckpt"])
def test_entries_of_a_zip_that_overlap(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"step_00000001.{suffix}"
    bombs.tensors_of_one_storage(path, 4000)
    assert path.stat().st_size < 3 * MEBIBYTE
    calls = [["inspect", path], ["convert", "hifigan", path, tmp_path / "out"]]
    if suffix == "ckpt":
        calls += [
            ["predict", "--ckpt_path", path, "--input", tmp_path, "--output", tmp_path / "out"],
            ["fit", "--config", TOY_RECIPE, *TOY_ARGS, "--init_from", path],
        ]
    inspected, *others = in_fork(costs, calls)
    assert inspected.call.code == 1  # which shows a torn checkpoint, and refuses another file
    assert inspected.memory < 300 * MEBIBYTE
    assert_cheap(others, path)


def test_a_checkpoint_that_asks_for_empty_bytes(tmp_path: Path) -> None:
    path = tmp_path / "step_00000001.ckpt"

    class Zeros:
        def __reduce__(self):
            return bytearray, (2**31,)

    torch.save({"state_dict": {}, "x": Zeros()}, path)
    calls = [["predict", "--ckpt_path", path, "--input", tmp_path, "--output", tmp_path / "out"]]
    assert_cheap(in_fork(costs, calls), path)


CONFIGS = {
    "aliases": bombs.yaml_laughs(),
    "merged": "a0: &a0 {x: 1}\n" + "\n".join(f"a{i + 1}: &a{i + 1} {{<<: [*a{i}, *a{i}]}}" for i in range(60)),
    "lists": "trainer: " + "[" * 100_000 + "]" * 100_000,
    "tables": "trainer: " + "{a: " * 20_000 + "}" * 20_000,
    "indents": "\n".join(" " * i + "a:" for i in range(1200)),
    "number": "seed_everything: 1" + ":10" * 200_000,
    "within": "model: &a [*a]",
    "in a text": yaml.safe_dump({"checkpoints": {"monitor": bombs.yaml_laughs()}, "loggers": bombs.yaml_laughs()}),
}


def test_arrays_that_unpack_to_much(tmp_path: Path) -> None:
    path = tmp_path / "features.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        with archive.open("features.npy", "w") as file:
            np.lib.format.write_array_header_1_0(
                file, {"descr": "<f4", "fortran_order": False, "shape": (2**15, 2**11)}
            )
            for _ in range(2**8):
                file.write(bytes(MEBIBYTE))
    for read in (read_features, npz):
        with pytest.raises(ValueError, match="zip bomb"):
            read(path)


@pytest.mark.parametrize("name", CONFIGS)
def test_configs(tmp_path: Path, name: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(CONFIGS[name])
    calls = [
        ["fit", "--config", path],
        ["fit", "--config", SMOKE, "--trainer", path],
        ["convert-config", "flow", path],
        ["convert-config", "ci_llm", path],
    ]
    assert_cheap(in_fork(costs, calls), path)


def test_deep_json(tmp_path: Path) -> None:
    export = tmp_path / "export"
    export.mkdir()
    deep = "[" * 200_000
    for name in ("config.json", "model.safetensors"):
        (export / name).write_text(deep)
    (tmp_path / "header.safetensors").write_bytes(len(deep).to_bytes(8, "little") + deep.encode() + b" ")
    calls = [
        ["inspect", export],
        ["inspect", tmp_path / "header.safetensors"],
        ["predict", "--ckpt_path", export, "--input", tmp_path, "--output", tmp_path / "out"],
        ["convert-config", "hifigan", export / "config.json"],
        ["convert", "miipher", export, tmp_path / "out"],
        ["convert", "ci_llm", export, tmp_path / "out"],
    ]
    for call, memory in in_fork(costs, calls):
        assert call.code in (1, 2), call
        assert "Traceback" not in call.said, call
        assert memory < 300 * MEBIBYTE


def test_an_unforeseen_recursion_ends_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def deeper() -> None:
        deeper()

    monkeypatch.setattr("zoo.cli.main.run_tool", lambda *_: deeper())
    assert main(["inspect", str(tmp_path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "nests too deeply" in line
