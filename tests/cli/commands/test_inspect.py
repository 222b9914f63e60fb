"""`zoo inspect`: facts of files of every kind; of damaged ones a report or one line, never a traceback."""

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from zoo.cli.main import main
from zoo.runs.checkpoints import save_checkpoint

RECORD = {"sha256": "0" * 64, "source": "someone/model", "revision": "main", "folder": "frozen/0000000000000000"}
CHECKPOINT: dict[str, Any] = {
    "zoo": {"version": "0.1.0", "task": "x", "inference": "x", "format": 2, "components": {"net": {}}, "options": {}},
    "epoch": 2,
    "global_step": 40,
    "state_dict": {"generator.a": torch.ones(3, 4), "generator.b": torch.ones(2), "mpd.c": torch.ones(5).half()},
    "ema": {"shadow": {"generator.a": torch.ones(3, 4)}, "updates": 39},
    "optimizer_states": [{"state": {0: {"exp_avg": torch.ones(14)}}}],
    "frozen": {"net.backbone": RECORD, "net.other": {**RECORD, "folder": None}},
}
HEADER: dict[str, Any] = {
    "__metadata__": {"format": "pt"},
    "generator.a": {"dtype": "F32", "shape": [3, 4], "data_offsets": [0, 48]},
    "generator.b": {"dtype": "F16", "shape": [], "data_offsets": [48, 50]},
}
EXPORT: dict[str, Any] = {
    "zoo": "0.1.0", "format": 2, "task": "zoo.hifigan.HiFiGANTask", "inference": "zoo.hifigan.Vocoder", "options": {},
    "components": {"generator": {"class_path": "zoo.hifigan.Generator", "init_args": {}}}, "fused": ["generator"],
    "source": "runs/a/step_00000040.ckpt", "step": 40, "frozen": {"net.backbone": RECORD}
}  # fmt: skip
ODD_VALUES = [
    None, True, 2**70, math.nan, "x", "\x1b[31m", "two\nlines", "\ud800", "a\0b", "9" * 5000, {}, [[]], {"": None},
    {"a": {"b": [1]}}
]  # fmt: skip

Inspect = Callable[[Path], tuple[int, str]]


@pytest.fixture
def inspect(capsys: pytest.CaptureFixture[str]) -> Inspect:
    """Return exit code and output; fail on a traceback, several lines of error, and what a terminal would obey."""

    def run(path: Path) -> tuple[int, str]:
        code = main(["inspect", str(path)])
        out, error = capsys.readouterr()
        assert code in (0, 1) and "Traceback" not in error + out, (code, error, out)
        assert len(error.splitlines()) <= 1 and (out or error), error
        assert "\x1b" not in out + error
        return code, out + error

    return run


def test_checkpoint(tmp_path: Path, inspect: Inspect) -> None:
    path = tmp_path / "step_00000040.ckpt"
    save_checkpoint(CHECKPOINT, path)
    code, out = inspect(path)
    facts = [" ".join(line.split()) for line in out.splitlines()]
    expected = {"step 40", "optimizers 1, 14 values", "EMA after 39 updates", "valid yes (sha256)"}
    expected |= {"generator 2 tensors, 14 values, float32", "mpd 1 tensors, 5 values, float16"}
    assert code == 0 and expected <= {*facts}
    path.write_bytes(path.read_bytes()[:-100])
    code, out = inspect(path)
    assert code == 1 and "NO: " in out


def test_last_is_the_newest_run(tmp_path: Path, inspect: Inspect, working_folder: Path) -> None:
    file = tmp_path / "runs" / "flow" / "new" / "step_00000040.ckpt"
    file.parent.mkdir(parents=True)
    save_checkpoint(CHECKPOINT, file)
    code, out = inspect(Path("last"))
    assert code == 0 and "runs/flow/new: run folder" in out and "last is runs/flow/new\n" in out
    (tmp_path / "last").mkdir()  # a folder of that name is meant where there is one
    assert inspect(Path("last"))[0] == 1


def test_run_folder_shows_its_newest_valid_checkpoint(tmp_path: Path, inspect: Inspect) -> None:
    for step in (10, 20):
        save_checkpoint(CHECKPOINT | {"global_step": step}, tmp_path / f"step_{step:08d}.ckpt")
    (tmp_path / "step_00000020.ckpt").write_bytes(b"corrupt")
    code, out = inspect(tmp_path)
    assert code == 0 and "step_00000020.ckpt  0.0 MiB  CORRUPT" in out and re.search(r"step +10\n", out)
    (tmp_path / "step_00000010.ckpt").write_bytes(b"corrupt")
    assert inspect(tmp_path)[0] == 1


def test_missing_and_unknown_paths_are_refused(tmp_path: Path, inspect: Inspect) -> None:
    assert inspect(tmp_path / "none")[0] == 1
    code, out = inspect(tmp_path)
    assert code == 1 and "neither a run folder" in out


@pytest.mark.shared
def test_originals(shared: Path, inspect: Inspect) -> None:
    for path in sorted((shared / "golden").rglob("*")):
        if path.suffix in {".pt", ".ckpt", ".bin", ".pkl", ".safetensors"}:
            code, out = inspect(path)
            assert code == 0, out


def write_safetensors(path: Path, header: Any, size: int = 50) -> None:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(size))


@pytest.mark.parametrize("header", [{"a": 1}, 3, b"\xff\xfe", {"a": {**HEADER["generator.a"], "shape": [-1]}}])
def test_wrong_header_is_named_invalid(header: Any, tmp_path: Path, inspect: Inspect) -> None:
    write_safetensors(tmp_path / "a.safetensors", header)
    code, out = inspect(tmp_path / "a.safetensors")
    assert code == 1 and "valid  NO" in out


def test_an_export(tmp_path: Path, inspect: Inspect) -> None:
    (tmp_path / "config.json").write_text(json.dumps(EXPORT))
    for size, code in ((50, 0), (49, 1)):
        write_safetensors(tmp_path / "model.safetensors", HEADER, size)
        assert inspect(tmp_path / "model.safetensors")[0] == code
        assert ("export of the zoo" in inspect(tmp_path)[1]) == (code == 0)


@pytest.mark.parametrize("value", ODD_VALUES)
def test_odd_values(value: Any, tmp_path: Path, inspect: Inspect) -> None:
    write_safetensors(tmp_path / "model.safetensors", HEADER)
    run = tmp_path / "run"
    run.mkdir()
    for key in EXPORT:
        (tmp_path / "config.json").write_text(json.dumps({**EXPORT, key: value}))
        inspect(tmp_path)
    for key in ("zoo", "epoch", "state_dict", "ema", "optimizer_states", "frozen"):
        save_checkpoint({**CHECKPOINT, key: value}, run / "step_00000001.ckpt")
        inspect(run / "step_00000001.ckpt")
        inspect(run)
