"""One run ended again and again after a random number of steps: it finishes with the same bits in a bounded folder.

A kill in a validation costs the steps since the last save, and neither its row nor the best checkpoint.
"""

import random
from pathlib import Path

import pytest

from tests.faults.conftest import FIT_WITH_EMA
from tests.harness import SMOKE, TOY_ARGS, bests, callback, fingerprint, forked, good, newest, record

HIFIGAN = [
    "fit", "--config", SMOKE, *TOY_ARGS, "--trainer.max_steps=60", "--trainer.limit_train_batches=20",
    "--checkpoints.every_n_steps=5", "--trainer.log_every_n_steps=1", "--data.init_args.corpus.embedded_utterances=26",
    "--trainer.val_check_interval=10", "--data.init_args.batch_size=1",
    *callback("zoo.training.EMA", modules=["generator"], decay=0.9),
]  # fmt: skip
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


def saved_step(step: int, signum: int) -> int:
    """The newest checkpoint's step after an end at `step`: kills come before its save, which follows its validation."""
    return step if signum == TERM else (step - 1) // SAVE_EVERY * SAVE_EVERY


def many_ends(folder: Path, ends: int, steps: int, kinds: list[tuple[str, int]], seed: int) -> None:
    options = [*FIT_WITH_EMA, f"--trainer.max_steps={steps}"]
    reference, run = folder / "reference", folder / "run"
    good(forked(*options, f"--trainer.default_root_dir={reference}", cwd=folder))
    one = newest(reference).stat().st_size
    draw = random.Random(seed)
    saved = 0
    for number in range(ends):
        where, signum = draw.choice(kinds)
        # each process trains a share of what is left
        step = saved + draw.randint(1, max(1, 2 * (steps - saved) // (ends - number)))
        step = min(step, steps)
        if where == "validation":
            step = -(-step // VALIDATE_EVERY) * VALIDATE_EVERY
        again = ["--ckpt_path=auto", f"--data.init_args.num_workers={draw.choice([0, 2])}"]
        fault = callback("KillAt", step=step, where=where, signum=signum)
        ended = forked(*options, *fault, *again, f"--trainer.default_root_dir={run}", cwd=folder)
        assert ended.returncode == (-KILL if signum == KILL else 143), ended.stderr[-3000:]
        saved = saved_step(step, signum)
        assert not saved or int(newest(run).stem.split("_")[1]) == saved
        files = [path for path in run.rglob("*") if path.is_file()]
        assert sum(path.suffix == ".ckpt" for path in files) <= LARGEST_FOLDER
        assert sum(path.stat().st_size for path in files) < LARGEST_FOLDER * one + 2**17
        if saved == steps:
            break
    good(forked(*options, "--ckpt_path=last", f"--trainer.default_root_dir={run}", cwd=folder))
    assert_same(run, reference, signals=TERM in (signum for _, signum in kinds))


def test_two_kills_in_a_row(tmp_path: Path) -> None:
    many_ends(tmp_path, ends=2, steps=60, kinds=[("train", KILL)], seed=2)


@pytest.mark.parametrize("fit", [FIT_WITH_EMA, pytest.param(HIFIGAN, marks=pytest.mark.slow)], ids=["toy", "hifigan"])
def test_killed_in_validations(tmp_path: Path, fit: list[str]) -> None:
    reference, run = tmp_path / "reference", tmp_path / "run"
    good(forked(*fit, f"--trainer.default_root_dir={reference}", cwd=tmp_path))
    options = [*fit, f"--trainer.default_root_dir={run}"]
    for step in (10, 20, 40):  # 20 and 40 end an epoch
        killed = forked(*options, *callback("KillAt", step=step, where="validation"), "--ckpt_path=auto", cwd=tmp_path)
        assert killed.returncode == -KILL, killed.stderr[-3000:]
        assert newest(run).name == f"step_{step - SAVE_EVERY:08d}.ckpt"
    good(forked(*options, "--ckpt_path=last", cwd=tmp_path))
    assert_same(run, reference)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_twenty_ends_of_every_kind(tmp_path: Path, seed: int) -> None:
    kinds = [(where, signum) for where in ("train", "validation") for signum in (KILL, TERM)]
    many_ends(tmp_path, ends=20, steps=300, kinds=kinds, seed=seed)


@pytest.mark.parametrize("signum", [KILL, TERM])
def test_ended_in_the_last_validation(reference_with_ema: Path, tmp_path: Path, signum: int) -> None:
    run = tmp_path / "run"
    options = [*FIT_WITH_EMA, f"--trainer.default_root_dir={run}"]
    ended = forked(*options, *callback("KillAt", step=60, where="validation", signum=signum), cwd=tmp_path)
    assert ended.returncode == (-KILL if signum == KILL else 143), ended.stderr[-3000:]
    good(forked(*options, "--ckpt_path=last", cwd=tmp_path))
    assert_same(run, reference_with_ema)


@pytest.mark.parametrize(
    "end",
    [
        ["--trainer.max_steps=13"],
        pytest.param(["--trainer.max_steps=23", "--checkpoints.every_n_steps=7"], marks=pytest.mark.slow),
        ["--trainer.max_steps=-1", "--trainer.max_epochs=1", "--checkpoints.every_n_steps=7"],
    ],
    ids=" ".join,
)
def test_a_finished_run_goes_on_when_given_more_steps(reference_with_ema: Path, tmp_path: Path, end: list[str]) -> None:
    run = tmp_path / "run"
    options = [*FIT_WITH_EMA, f"--trainer.default_root_dir={run}"]
    good(forked(*options, *end, cwd=tmp_path))
    good(forked(*options, "--ckpt_path=last", cwd=tmp_path))
    assert_same(run, reference_with_ema)
