"""B1: `zoo predict` killed at several files and run again: each result written once, none half, the manifest whole."""

from pathlib import Path

import numpy as np
import pytest

from tests.harness import TOY_ARGS, TOY_FIT, forked, good
from zoo.audio.io import files
from zoo.runs.bulk import read_manifest


def killed_and_rerun(folder: Path, count: int, dies_at: list[int]) -> None:
    task = ["--model.class_path=toy_wing.faults.DyingTask", "--trainer.max_steps=1"]
    good(forked(*TOY_FIT, *task, f"--trainer.default_root_dir={folder / 'run'}", cwd=folder))
    tone = np.full(1600, 0.25, np.float32)
    for number in range(count):
        files.write(folder / "in" / ("even" if number % 2 == 0 else "odd") / f"{number:03d}.wav", tone, 16000)
    options = ["--ckpt_path", folder / "run", "--input", folder / "in", "--output", folder / "out"]
    for number in dies_at:
        killed = forked("predict", *TOY_ARGS, *options, cwd=folder, TOY_DIES_AT=f"{number:03d}")
        assert killed.returncode == -9, killed.stderr[-3000:]
        assert len(list((folder / "out").rglob(".*.tmp-*"))) == 1
    good(forked("predict", *TOY_ARGS, *options, cwd=folder))
    stems = [f"{number:03d}" for number in range(count)]
    assert sorted((folder / "finished").read_text().split()) == stems
    assert sorted(path.stem for path in (folder / "out").rglob("*.wav")) == stems
    rows = read_manifest(folder / "out" / "manifest.jsonl")
    assert sorted(Path(row["source"]).stem for row in rows) == stems
    assert {row["status"] for row in rows} == {"done"}
    assert sorted(path.name for path in (folder / "out").iterdir()) == ["even", "manifest.jsonl", "odd", "summary.json"]


def test_killed_in_one_of_twenty(tmp_path: Path) -> None:
    killed_and_rerun(tmp_path, 20, [11])


@pytest.mark.slow
def test_killed_in_three_of_two_hundred(tmp_path: Path) -> None:
    killed_and_rerun(tmp_path, 200, [20, 134, 77])
