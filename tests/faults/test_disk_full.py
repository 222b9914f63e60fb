"""A full disk costs nothing that was saved, is reported in one line, and leaves nothing half-written."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.conftest import FIT
from tests.harness import assert_equal_runs, bests, callback, error_line, forked, good
from zoo.common.atomic_files import TEMPORARY_MARK
from zoo.runs.checkpoints import load_checkpoint


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 24 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", folder], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"may not mount a small disk: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.mark.parametrize("spare", [0, 2**20])
def test_full_while_a_checkpoint_is_written(reference: Path, disk: Path, tmp_path: Path, spare: int) -> None:
    run = disk / "run"
    options = [*FIT, *callback("Ballast", megabytes=2), f"--trainer.default_root_dir={run}"]
    full = forked(*options, *callback("FillDisk", step=13, spare=spare), cwd=tmp_path)
    assert full.returncode == 1
    error = error_line(full.stderr)
    assert error.startswith("zoo: error: ") and "disk full" in error and "--ckpt_path last" in error
    assert not list(run.glob(f"*{TEMPORARY_MARK}*"))
    names = sorted(path.name for path in run.glob("step_*.ckpt"))
    assert names == ["step_00000005.ckpt", "step_00000010.ckpt"]
    for path in run.glob("*.ckpt"):
        load_checkpoint(path)
    (disk / "filler").unlink()
    good(forked(*options, "--ckpt_path=last", cwd=tmp_path))
    assert_equal_runs(run, reference)
    assert bests(run) == bests(reference)


def test_full_while_metrics_are_logged_costs_no_row(reference: Path, disk: Path, tmp_path: Path) -> None:
    run = disk / "run"
    options = [*FIT, "--checkpoints.every_n_steps=30", "--checkpoints.monitor=null"]
    full = callback("FillDisk", step=3, until=28)
    result = good(forked(*options, *full, f"--trainer.default_root_dir={run}", cwd=tmp_path))
    assert "metrics.csv cannot be written (the disk is full)" in result.stderr
    assert "Traceback" not in result.stderr
    assert_equal_runs(run, reference)
