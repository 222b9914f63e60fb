"""`zoo tune` as its users run it: trials are runs, none is lost by a kill, none is counted twice."""

import csv
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import yaml

from tests.harness import environment, forked, good, zoo
from zoo.runs.listing import list_runs, read_curves
from zoo.tuning.study import Tuner, _JournalLock, open_storage

LR = "model.init_args.optimizer.init_args.lr"


def started(arguments: Sequence[object], cwd: Path) -> subprocess.Popen[bytes]:
    log = (cwd / "started.log").open("ab")
    command = [sys.executable, "-m", "zoo", *map(str, arguments)]
    return subprocess.Popen(command, cwd=cwd, env=environment(), stdout=log, stderr=log)


def wait_for(condition: Callable[[], object], seconds: float = 900) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def rows(study: Path) -> list[dict[str, str]]:
    with (study / "trials.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def trainings(study: Path) -> list[int]:
    """The processes that train trials of a study (Linux)."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if any(word.startswith(f"--trainer.default_root_dir={study}".encode()) for word in words):
            found.append(int(path.parent.name))
    return found


def test_tune_killed_taken_up_and_pruned(tmp_path: Path) -> None:
    study, run = tmp_path / "study", tmp_path / "study" / "trial_0002"
    # the third of the grid is as bad as the first and does not end: only pruning ends it
    tune = ["tune", "flow/smoke", "--search", "trainer.max_steps=choice(20, 100000)", "--sampler", "grid"]
    tune += ["--search", f"{LR}=choice(1e-9, .01)", "--trials", "3", "--output", study, "--samples.enabled", "false"]
    first = started(tune, tmp_path)
    try:
        # with more validations than the others have
        wait_for(lambda: first.poll() is not None or len(read_curves(run / "metrics.csv").get("val/loss", [])) > 4)
        assert first.poll() is None, (tmp_path / "started.log").read_text()
        os.kill(first.pid, signal.SIGKILL)
    finally:
        first.kill()
        first.wait()
    if sys.platform == "linux":
        wait_for(lambda: not trainings(study), 20)
    before = read_curves(run / "metrics.csv")["val/loss"][0]
    assert list(run.glob("step_*.ckpt"))

    other = forked("tune", "--search", f"{LR}=log(1e-5, 1)", "--output", study, cwd=tmp_path)
    assert other.returncode == 1
    assert "another search" in other.stderr

    said = good(forked(*tune, "--prune", "--startup", "2", "--warmup", "1", cwd=tmp_path)).stdout
    assert "3 of 3 trials begun" in said
    assert "trial_0002: pruned" in said
    assert [row["state"] for row in rows(study)] == ["finished", "finished", "pruned"]
    assert [row[LR] for row in rows(study)] == ["1e-09", "0.01", "1e-09"]
    assert read_curves(run / "metrics.csv")["val/loss"][0] == before
    states = {each.short_name: each.state for each in list_runs(study)}
    assert [states[f"trial_000{number}"] for number in range(2)] == ["finished", "finished"]
    assert states["trial_0002"] in ("stopped", "killed")  # killed: it was past its pruning when its process died
    assert yaml.safe_load((study / "best.yaml").read_text()) == {
        "trainer": {"max_steps": 20}, "model": {"init_args": {"optimizer": {"init_args": {"lr": 0.01}}}},
    }  # fmt: skip
    assert {path.stem for path in study.glob("*.png")} == {"history", "importance", "parallel", "slices"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["model.init_args.optimizr.init_args.lr=log(1e-5, 1)"], "did you mean optimizer"),
        (["data.init_args.batch_size=choice(8, many)"], "batch_size"),
        ([f"{LR}=log(1e-5, 1)", "--metric", "val/loss", "--sampler", "grid"], "has no steps"),
        ([f"{LR}=log(1e-5, 1)", "--trails", "3"], "did you mean --trials"),
        ([f"{LR}=log(1e-5, 1)", "--trainer.max_stps", "3"], "did you mean max_steps"),
        ([f"{LR}=log(1e-5, 1)", "--ckpt_path", "last"], "tune sets ckpt_path"),
    ],
)
def test_refused_before_any_trial(options: list[str], said: str, tmp_path: Path, capfd: pytest.CaptureFixture) -> None:
    from zoo.cli.main import main

    assert main(["tune", "flow/smoke", "--output", str(tmp_path / "study"), "--search", *options]) != 0
    assert said in capfd.readouterr().err
    assert not list(tmp_path.rglob("trial_*"))


def test_reasons_in_one_line(tmp_path: Path) -> None:
    tuner = Tuner(tmp_path, [], 1)
    (tmp_path / "output.log").write_text("step 3\nzoo: error: out of memory on the GPU\n\n")
    assert tuner._reason(tmp_path, 1) == "zoo: error: out of memory on the GPU"
    assert tuner._reason(tmp_path, -signal.SIGKILL) == "killed by SIGKILL"


def test_journal_outlives_a_torn_line(tmp_path: Path) -> None:
    import optuna

    study = optuna.create_study(storage=open_storage(None, tmp_path), study_name="s")
    study.add_trial(optuna.trial.create_trial(value=1.0))
    journal = tmp_path / "study.journal"
    with journal.open("ab") as file:
        file.write(b'{"op_code": 4, "wor')
    study = optuna.load_study(storage=open_storage(None, tmp_path), study_name="s")
    study.add_trial(optuna.trial.create_trial(value=2.0))
    again = optuna.load_study(storage=open_storage(None, tmp_path), study_name="s")
    assert [trial.value for trial in again.trials] == [1.0, 2.0]
    lock = _JournalLock(tmp_path / "none")
    assert lock.acquire()
    lock.release()


SMOKE = {
    "flow/smoke": (LR, "val/loss", 20),
    "hifigan/smoke": ("model.init_args.optimizer_g.init_args.lr", "val/mel_l1", 40),
    "miipher/smoke_adapter": (LR, None, 20),
    "audiosr/smoke": (LR, "val/loss", 20),
    "ci_llm/smoke": (LR, "val/loss", 20),
    "compressed_ad/smoke": (LR, "val/loss_action", 20),
}


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("recipe", SMOKE)
def test_two_processes_one_killed(recipe: str, tmp_path: Path) -> None:
    key, metric, steps = SMOKE[recipe]
    study, chance = tmp_path / "study", random.Random()
    tune = ["tune", recipe, "--search", f"{key}=log(1e-5, 1e-2)", "--trials", "3", "--output", study]
    both = [started(tune, tmp_path)]
    try:
        wait_for((study / "study.yaml").is_file)
        both.append(started(tune, tmp_path))
        wait_for(lambda: len(list(study.glob("trial_*"))) >= 2)
        time.sleep(chance.uniform(0, 30))
        os.kill(both[0].pid, signal.SIGKILL)
        assert both[1].wait(1500) == 0, (tmp_path / "started.log").read_text()
    finally:
        for process in both:
            process.kill()
            process.wait()
    good(zoo("tune", "--output", study, "--trials", "3", cwd=tmp_path, timeout=1500))
    assert [row["state"] for row in rows(study)] == ["finished"] * 3
    assert [row["trial"] for row in rows(study)] == ["trial_0000", "trial_0001", "trial_0002"]
    assert len({row[key] for row in rows(study)}) == 3
    for run in list_runs(study):
        assert (run.state, run.step, run.recipe) == ("finished", steps, recipe)
        curve = read_curves(run.folder / "metrics.csv")[run.monitor or ""]
        assert len({step for step, _ in curve}) == len(curve)
        assert metric in (None, run.monitor)
    good(zoo("fit", recipe, study / "best.yaml", "--trainer.max_steps", "2", cwd=tmp_path, timeout=1500))


@pytest.mark.slow
def test_failures_end_the_study(tmp_path: Path) -> None:
    tune = ["tune", "flow/smoke", "--search", f"{LR}=choice(-1., -2., .001)", "--sampler", "grid", "--trials", "3"]
    said = zoo(*tune, "--output", "study", "--max_failures", "2", cwd=tmp_path)
    assert said.returncode == 1
    assert "2 trials in a row failed" in said.stderr
    assert "Invalid learning rate: -2.0" in said.stderr
    good(zoo(*tune, "--output", "study", cwd=tmp_path))
    assert [row["state"] for row in rows(tmp_path / "study")] == ["failed", "failed", "finished"]
    unknown = zoo(*tune[:4], "--metric", "val/los", "--output", "other", "--max_failures", "1", cwd=tmp_path)
    assert unknown.returncode == 1
    assert "val/los" in unknown.stderr
