"""S1: SIGTERM, SIGINT, SIGUSR1 anywhere: saved at a step boundary, exit 143 or 130, resumed with the same bits."""

import itertools
import signal
from pathlib import Path

import pytest

from tests.harness import TOY_FIT, bests, callback, fingerprint, forked, good, newest, record, zoo

FIT = [*TOY_FIT, *callback("zoo.training.ema.EMA", modules=["net"], decay=0.9)]
TERM, INT, USR1 = signal.SIGTERM, signal.SIGINT, signal.SIGUSR1
CODES = {TERM: 143, USR1: 143, INT: 130}
STEPS = {"train": 13, "validation": 20, "sanity": 0}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    good(forked(*FIT, f"--trainer.default_root_dir={folder / 'run'}", cwd=folder))
    return folder / "run"


def kill(number: int, where: str, times: int = 1, group: bool = False) -> list[str]:
    return callback("KillAt", step=STEPS[where], signum=int(number), where=where, times=times, group=group)


def stop_and_resume(
    whole: Path, folder: Path, number: int, where: str, workers: int = 0, every: int = 5, **how
) -> None:
    options = [f"--trainer.default_root_dir={folder / 'run'}", f"--data.init_args.num_workers={workers}"]
    options.append(f"--checkpoints.every_n_batches={every}")
    stopped = forked(*FIT, *kill(number, where, **how), *options, cwd=folder)
    assert stopped.returncode == CODES[number], stopped.stderr[-3000:]
    assert "Traceback" not in stopped.stderr
    assert stopped.ended - (folder / "signalled").stat().st_mtime < 5
    assert newest(folder / "run").name == f"step_{STEPS[where]:08d}.ckpt"
    good(forked(*FIT, "--ckpt_path=last", *options, cwd=folder))
    assert_same(folder / "run", whole)


def assert_same(run: Path, whole: Path) -> None:
    assert fingerprint(newest(run)) == fingerprint(newest(whole))
    assert record(run) == record(whole)
    assert bests(run) == bests(whole)


@pytest.mark.parametrize(
    ("number", "where", "workers", "how"),
    [
        (TERM, "train", 0, {}),
        (TERM, "validation", 0, {}),
        (TERM, "validation", 0, {"every": 1000}),  # saved there alone, after the last batch of an epoch
        (INT, "sanity", 0, {}),
        (USR1, "train", 2, {"group": True}),
        (TERM, "validation", 2, {"times": 2, "group": True}),
    ],
)
def test_a_signal_saves_and_resumes(whole, tmp_path, number, where, workers, how):
    stop_and_resume(whole, tmp_path, number, where, workers, **how)


@pytest.mark.slow
@pytest.mark.parametrize("group", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(("number", "where"), itertools.product(CODES, STEPS))
def test_every_signal_everywhere(whole, tmp_path, number, where, workers, group):
    stop_and_resume(whole, tmp_path, number, where, workers, group=group)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "where"), itertools.product((TERM, USR1), STEPS))
def test_twice_in_a_row(whole, tmp_path, number, where):
    stop_and_resume(whole, tmp_path, number, where, 2, times=2)


def test_ctrl_c_twice_leaves_at_once_and_costs_the_steps_since_the_last_save(whole, tmp_path):
    root = f"--trainer.default_root_dir={tmp_path / 'run'}"
    stopped = forked(*FIT, *kill(INT, "train", times=2), root, cwd=tmp_path)
    assert stopped.returncode == 130, stopped.stderr[-3000:]
    assert "Traceback" not in stopped.stderr
    assert newest(tmp_path / "run").name == "step_00000010.ckpt"
    good(forked(*FIT, "--ckpt_path=last", root, cwd=tmp_path))
    assert_same(tmp_path / "run", whole)


def test_a_real_process_leaves_with_the_signals_code(tmp_path):
    stopped = zoo(*FIT, *kill(TERM, "train"), f"--trainer.default_root_dir={tmp_path / 'run'}", cwd=tmp_path)
    assert stopped.returncode == 143, stopped.stderr[-3000:]
