"""SIGTERM, SIGHUP, SIGINT, SIGUSR1 anywhere: saved at a step boundary, exit 143 or 130, resumed bit for bit.

The validation in which a signal came is left out.
"""

import signal
from pathlib import Path

import pytest

from tests.faults.conftest import FIT
from tests.harness import bests, callback, fingerprint, forked, good, newest, record, zoo

TERM, INT, USR1, HUP = signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP
CODES = {TERM: 143, USR1: 143, HUP: 143, INT: 130}
STEPS = {"train": 13, "validation": 20, "sanity": 0}


def assert_same(run: Path, reference: Path, left_out: int | None = None) -> None:
    assert fingerprint(newest(run)) == fingerprint(newest(reference))
    rows = [row for row in record(reference) if row["step"] != str((left_out or 0) - 1) or not row["val/error"]]
    assert record(run) == rows
    assert bests(run) == bests(reference)


@pytest.mark.parametrize(
    ("number", "where", "workers", "how"),
    [
        (TERM, "train", 0, {}),
        (TERM, "validation", 0, {"every": 1000}),  # saved there alone, after the last batch of an epoch
        (INT, "sanity", 0, {}),
        (HUP, "train", 2, {"group": True}),
        (USR1, "validation", 2, {"times": 2, "group": True}),
    ],
)
def test_a_signal_saves_and_resumes(reference, tmp_path, number, where, workers, how):
    how, run = {"every": 5, **how}, tmp_path / "run"
    options = [f"--trainer.default_root_dir={run}", f"--data.init_args.num_workers={workers}"]
    options.append(f"--checkpoints.every_n_steps={how.pop('every')}")
    stopped = forked(
        *FIT, *callback("KillAt", step=STEPS[where], signum=int(number), where=where, **how), *options, cwd=tmp_path
    )
    assert stopped.returncode == CODES[number], stopped.stderr[-3000:]
    assert "Traceback" not in stopped.stderr
    assert stopped.ended - (tmp_path / "signalled").stat().st_mtime < 5
    assert newest(run).name == f"step_{STEPS[where]:08d}.ckpt"
    good(forked(*FIT, "--ckpt_path=last", *options, cwd=tmp_path))
    assert_same(run, reference, left_out=STEPS[where] if where == "validation" else None)


@pytest.mark.parametrize(
    ("step", "where", "saved", "end"),
    [(13, "train", 10, []), (60, "validation", 55, ["--trainer.max_steps=-1", "--trainer.max_epochs=3"])],
)
def test_ctrl_c_twice_costs_the_steps_since_the_last_save(reference, tmp_path, step, where, saved, end):
    run = tmp_path / "run"
    args = [*FIT, *end, f"--trainer.default_root_dir={run}"]
    twice = callback("KillAt", step=step, signum=int(INT), where=where, times=2)
    stopped = forked(*args, *twice, cwd=tmp_path)
    assert stopped.returncode == 130, stopped.stderr[-3000:]
    assert "Traceback" not in stopped.stderr
    assert newest(run).name == f"step_{saved:08d}.ckpt"
    assert len(record(run)) < len(record(reference))
    good(forked(*args, "--ckpt_path=last", cwd=tmp_path))
    assert_same(run, reference)


def test_a_real_process_ignores_a_hang_up_like_nohup_and_leaves_with_the_signals_code(tmp_path):
    both = [*callback("KillAt", step=13, signum=int(HUP)), *callback("KillAt", step=30, signum=int(TERM))]
    before = signal.signal(HUP, signal.SIG_IGN)
    try:
        stopped = zoo(*FIT, *both, f"--trainer.default_root_dir={tmp_path / 'run'}", cwd=tmp_path)
    finally:
        signal.signal(HUP, before)
    assert stopped.returncode == 143, stopped.stderr[-3000:]
    assert newest(tmp_path / "run").name == "step_00000030.ckpt"
