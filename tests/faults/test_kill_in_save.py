"""Kill -9 in the middle of a save, TMPDIR on another disk: nothing that was saved is lost, nothing stays behind."""

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import TOY_FIT, Forked, assert_equal_runs, bests, callback, forked, good, newest, record
from zoo.common.atomic_files import TEMPORARY_MARK
from zoo.runs.checkpoints import is_valid_checkpoint, load_checkpoint

FIT = [*TOY_FIT, "--checkpoints.every_n_steps=1", "--checkpoints.monitor=null"]
BALLAST = callback("Ballast", megabytes=40)
SHARED_MEMORY = Path("/dev/shm")


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[str]:
    """A temporary folder on another file system than the run's."""
    if not SHARED_MEMORY.is_dir() or SHARED_MEMORY.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("needs a second file system")
    folder = SHARED_MEMORY / f"zoo-{os.getpid()}"
    folder.mkdir()
    yield str(folder)
    shutil.rmtree(folder)


def corrupt(run: Path) -> list[Path]:
    """The checkpoints that do not load."""
    paths = []
    for path in run.glob("*.ckpt"):
        try:
            load_checkpoint(path)
        except ValueError:
            paths.append(path)
        else:
            assert is_valid_checkpoint(path)
    return paths


def kill_at(process: Forked, file: Path, size: float) -> None:
    """Kill as soon as a file, given by a pattern, has reached a size."""
    give_up = time.monotonic() + 120
    while process.process.is_alive() and time.monotonic() < give_up:
        for path in file.parent.glob(file.name):
            try:
                if path.stat().st_size >= size:
                    process.process.kill()
                    return
            except FileNotFoundError:  # renamed between the two calls
                pass
    raise AssertionError(f"{file} never reached {size} bytes: {process.wait().stderr[-2000:]}")


def test_killed_in_saves(tmp_path: Path, elsewhere: str) -> None:
    run = tmp_path / "run"
    options = [*FIT, "--trainer.max_steps=4", f"--trainer.default_root_dir={run}"]
    for number, megabytes in enumerate((8, 22, 36)):
        # each process saves one step, and is killed in the save of the next one
        process = Forked(*options, *BALLAST, "--ckpt_path=auto", cwd=tmp_path, TMPDIR=elsewhere)
        half_written = run / f".step_{number + 2:08d}.ckpt{TEMPORARY_MARK}*"
        kill_at(process, half_written, megabytes * 2**20)
        assert process.wait().returncode == -9
        assert corrupt(run) == []
        left = list(run.glob(half_written.name))
        assert len(left) == 1
        checksum = run / left[0].name.replace(TEMPORARY_MARK, f".sha256{TEMPORARY_MARK}")  # begun when the poll is late
        assert set(run.glob(f"*{TEMPORARY_MARK}*")) <= {*left, checksum}
        assert newest(run).name == f"step_{number + 1:08d}.ckpt"
    good(forked(*options, "--ckpt_path=last", cwd=tmp_path, TMPDIR=elsewhere))
    assert not list(run.glob(f"*{TEMPORARY_MARK}*"))
    good(forked(*options[:-1], f"--trainer.default_root_dir={tmp_path / 'reference'}", cwd=tmp_path))
    assert_equal_runs(run, tmp_path / "reference")


def test_killed_while_the_best_is_saved(tmp_path: Path) -> None:
    run, reference = tmp_path / "run", tmp_path / "reference"
    options = [*TOY_FIT, "--trainer.max_steps=20", f"--trainer.default_root_dir={run}"]
    killed = Forked(*options, *BALLAST, cwd=tmp_path)
    kill_at(killed, run / f".best-step_*{TEMPORARY_MARK}*", 20 * 2**20)
    assert killed.wait().returncode == -9
    assert corrupt(run) == []
    assert [path.name for path in run.glob("*.ckpt")] == ["step_00000005.ckpt"]
    good(forked(*options, "--ckpt_path=last", cwd=tmp_path))
    good(forked(*options[:-1], f"--trainer.default_root_dir={reference}", cwd=tmp_path))
    assert record(run) == record(reference)
    assert bests(run) == bests(reference)
