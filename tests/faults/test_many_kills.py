"""One run ended again and again after a random number of steps: it finishes with the same bits in a bounded folder.

A kill in a validation costs the steps since the last save, and neither its row nor the best checkpoint.
"""

import random
from pathlib import Path

import pytest

from tests.faults.conftest import FIT
from tests.harness import bests, callback, fingerprint, forked, good, newest, record

LARGEST_FOLDER = 4  # checkpoints: the last two, the best one, and the one being written
SAVE_EVERY, VALIDATE_EVERY = 5, 10
KILL, TERM = 9, 15


def assert_same(run: Path, reference: Path, signals: bool = False) -> None:
    """Compare two runs; a signal leaves out the validation of its step."""
    assert fingerprint(newest(run)) == fingerprint(newest(reference))
    rows = record(run)
    assert rows == [row for row in record(reference) if row in rows or (not signals or row.get("train/loss"))]
    assert bests(run) == bests(reference)
    assert sorted(path.name for path in run.glob("*.ckpt")) == sorted(path.name for path in reference.glob("*.ckpt"))


def assert_bounded(run: Path, reference: Path) -> None:
    files = [path for path in run.rglob("*") if path.is_file()]
    assert sum(path.suffix == ".ckpt" for path in files) <= LARGEST_FOLDER
    size = newest(reference).stat().st_size
    assert sum(path.stat().st_size for path in files) < LARGEST_FOLDER * size + 2**17


def test_killed_in_validations(reference: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    options = [*FIT, f"--trainer.default_root_dir={run}"]
    for step in (10, 40, 60):  # 40 ends an epoch, 60 the training
        killed = forked(*options, *callback("KillAt", step=step, where="validation"), "--ckpt_path=auto", cwd=tmp_path)
        assert killed.returncode == -KILL, killed.stderr[-3000:]
        assert newest(run).name == f"step_{step - SAVE_EVERY:08d}.ckpt"
        assert_bounded(run, reference)
    good(forked(*options, "--ckpt_path=last", cwd=tmp_path))
    assert_same(run, reference)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_twenty_ends_of_every_kind(tmp_path: Path, seed: int) -> None:
    ends, steps, saved = 20, 300, 0
    options = [*FIT, f"--trainer.max_steps={steps}"]
    reference, run = tmp_path / "reference", tmp_path / "run"
    good(forked(*options, f"--trainer.default_root_dir={reference}", cwd=tmp_path))
    draw = random.Random(seed)
    for number in range(ends):
        where, signum = draw.choice(("train", "validation")), draw.choice((KILL, TERM))
        # each process trains a share of what is left
        step = min(steps, saved + draw.randint(1, max(1, 2 * (steps - saved) // (ends - number))))
        if where == "validation":
            step = -(-step // VALIDATE_EVERY) * VALIDATE_EVERY
        again = ["--ckpt_path=auto", f"--data.init_args.num_workers={draw.choice([0, 2])}"]
        fault = callback("KillAt", step=step, where=where, signum=signum)
        ended = forked(*options, *fault, *again, f"--trainer.default_root_dir={run}", cwd=tmp_path)
        assert ended.returncode == (-KILL if signum == KILL else 143), ended.stderr[-3000:]
        # a kill comes before the save of its step, which follows the validation
        saved = step if signum == TERM else (step - 1) // SAVE_EVERY * SAVE_EVERY
        assert not saved or int(newest(run).stem.split("_")[1]) == saved
        assert_bounded(run, reference)
        if saved == steps:
            break
    good(forked(*options, "--ckpt_path=last", f"--trainer.default_root_dir={run}", cwd=tmp_path))
    assert_same(run, reference, signals=True)


def test_stopped_in_the_last_validation(reference: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    options = [*FIT, f"--trainer.default_root_dir={run}"]
    ended = forked(*options, *callback("KillAt", step=60, where="validation", signum=TERM), cwd=tmp_path)
    assert ended.returncode == 143, ended.stderr[-3000:]
    good(forked(*options, "--ckpt_path=last", cwd=tmp_path))
    assert_same(run, reference)


@pytest.mark.parametrize(
    "end",
    [
        ["--trainer.max_steps=13"],
        ["--trainer.max_steps=-1", "--trainer.max_epochs=1", "--checkpoints.every_n_steps=7"],
    ],
    ids=" ".join,
)
def test_a_finished_run_goes_on_when_given_more_steps(reference: Path, tmp_path: Path, end: list[str]) -> None:
    run = tmp_path / "run"
    options = [*FIT, f"--trainer.default_root_dir={run}"]
    good(forked(*options, *end, cwd=tmp_path))
    good(forked(*options, "--ckpt_path=last", cwd=tmp_path))
    assert_same(run, reference)
