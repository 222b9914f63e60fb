"""One run ended again and again: it finishes with the same bits in a bounded folder.

A kill in a validation costs the steps since the last save, and neither its row nor the best checkpoint.
"""

from pathlib import Path

import pytest

from tests.faults.conftest import FIT
from tests.harness import assert_equal_runs, bests, callback, forked, good, newest

LARGEST_FOLDER = 4  # checkpoints: the last two, the best one, and the one being written
SAVE_EVERY = 5
KILL, TERM = 9, 15


def assert_same(run: Path, reference: Path) -> None:
    assert_equal_runs(run, reference)
    assert bests(run) == bests(reference)
    assert sorted(path.name for path in run.glob("*.ckpt")) == sorted(path.name for path in reference.glob("*.ckpt"))


def test_ended_again_and_again(reference: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    options = [*FIT, f"--trainer.default_root_dir={run}"]
    ends = [(10, "validation", KILL, 0), (23, "train", TERM, 2), (31, "train", KILL, 0)]
    ends += [(40, "validation", KILL, 2), (60, "validation", KILL, 0)]  # 40 ends an epoch, 60 the training
    for step, where, signum, workers in ends:
        end = callback("KillAt", step=step, where=where, signum=signum)
        ended = forked(*options, *end, "--ckpt_path=auto", f"--data.init_args.num_workers={workers}", cwd=tmp_path)
        assert ended.returncode == (-KILL if signum == KILL else 143), ended.stderr[-3000:]
        # a kill comes before the save of its step, which follows the validation
        saved = step if signum == TERM else (step - 1) // SAVE_EVERY * SAVE_EVERY
        assert newest(run).name == f"step_{saved:08d}.ckpt"
        files = [path for path in run.rglob("*") if path.is_file()]
        assert sum(path.suffix == ".ckpt" for path in files) <= LARGEST_FOLDER
        assert sum(path.stat().st_size for path in files) < LARGEST_FOLDER * newest(reference).stat().st_size + 2**17
    good(forked(*options, "--ckpt_path=last", cwd=tmp_path))
    assert_same(run, reference)


def test_stopped_in_the_last_validation(reference: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    options = [*FIT, f"--trainer.default_root_dir={run}"]
    ended = forked(*options, *callback("KillAt", step=60, where="validation", signum=TERM), cwd=tmp_path)
    assert ended.returncode == 143, ended.stderr[-3000:]
    good(forked(*options, "--ckpt_path=last", cwd=tmp_path))
    assert_same(run, reference)


@pytest.mark.parametrize(
    "ends",
    [
        [["--trainer.max_steps=13"]],
        [["--trainer.max_steps=-1", "--trainer.max_epochs=1", "--checkpoints.every_n_steps=7"]],
        [["--trainer.max_steps=20"], ["--trainer.max_steps=21"]],  # the end of an epoch, and a step more
    ],
    ids=str,
)
def test_a_finished_run_goes_on_when_given_more_steps(reference: Path, tmp_path: Path, ends: list[list[str]]) -> None:
    run = tmp_path / "run"
    for end in [*ends, []]:
        good(forked(*FIT, f"--trainer.default_root_dir={run}", "--ckpt_path=auto", *end, cwd=tmp_path))
    assert_same(run, reference)
