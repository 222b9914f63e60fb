"""`zoo tune` as its users run it: trials are runs, none is lost by a kill, none is counted twice."""

import functools
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import optuna
import pytest
import yaml

from tests.harness import environment, forked, good, read_csv, wait_until, zoo
from zoo.cli.main import main
from zoo.runs.run_info import list_runs, read_curves

LR = "model.init_args.optimizer.init_args.lr"


def start(arguments: Sequence[object], cwd: Path) -> subprocess.Popen[bytes]:
    log = (cwd / "started.log").open("ab")
    command = [sys.executable, "-m", "zoo", *map(str, arguments)]
    return subprocess.Popen(command, cwd=cwd, env=environment(), stdout=log, stderr=log)


def test_a_grid_is_searched_in_two_calls(tmp_path: Path) -> None:
    study = tmp_path / "study"
    tune = ["tune", "flow/smoke", "--search", "model.optimizer.lr=choice(1e-9, .01)", "--sampler", "grid"]
    tune += ["--search", "model.optimizer=choice(torch.optim.AdamW)"]
    tune += ["--trainer.max_steps", "20", "--samples.enabled", "false", "--output", study]
    good(forked(*tune, "--trials", "1", cwd=tmp_path))
    good(forked("tune", "--trials", "2", "--output", study, cwd=tmp_path))
    assert [(row["state"], row["model.optimizer.lr"]) for row in read_csv(study / "trials.csv")] == [
        ("finished", "1e-09"),
        ("finished", "0.01"),
    ]
    refused = forked("tune", "--trials", "1", "--output", study, cwd=tmp_path)
    assert refused.returncode and "has 2 trials already" in refused.stderr
    best = (study / "best.yaml").read_text()
    assert f"--config {study / 'best.yaml'}" in best
    trial = next(row["trial"] for row in read_csv(study / "trials.csv") if row["model.optimizer.lr"] == "0.01")
    trained = yaml.safe_load((study / trial / "config.yaml").read_text())["model"]["init_args"]["optimizer"]
    assert yaml.safe_load(best)["model"] == {"init_args": {"optimizer": trained}} and trained["init_args"]["lr"] == 0.01


@pytest.mark.slow
def test_a_killed_trial_is_continued_and_pruned(tmp_path: Path) -> None:
    study, run = tmp_path / "study", tmp_path / "study" / "trial_0002"
    # the third of the grid is as bad as the first and does not end: only pruning ends it
    tune = ["tune", "flow/smoke", "--search", "trainer.max_steps=choice(20, 100000)", "--sampler", "grid"]
    tune += ["--search", "model.optimizer.lr=choice(1e-9, .01)", "--trials", "3", "--output", study]
    tune += ["--samples.enabled", "false"]
    first = start(tune, tmp_path)
    try:
        # with more validations than the others have
        losses = functools.partial(read_curves, run / "metrics.csv")
        wait_until(lambda: first.poll() is not None or len(losses().get("val/loss", [])) > 4, 900)
        assert first.poll() is None, (tmp_path / "started.log").read_text()
        os.kill(first.pid, signal.SIGKILL)
    finally:
        first.kill()
        first.wait()
    before = read_curves(run / "metrics.csv")["val/loss"][0]
    assert list(run.glob("step_*.ckpt"))
    with sqlite3.connect(study / "study.db") as database:  # as if its last heartbeat were long ago
        database.execute("UPDATE trial_heartbeats SET heartbeat = datetime(heartbeat, '-1 hour')")

    for options in (["flow/smoke", "--search", f"{LR}=log(1e-5, 1)"], ["--sampler", "random"]):
        other = forked("tune", *options, "--output", study, cwd=tmp_path)
        assert other.returncode == 1 and "another" in other.stderr

    output = good(forked(*tune, "--prune", "--startup", "2", cwd=tmp_path)).stdout
    assert "trial_0002: pruned" in output and "the first 3 of the grid's 4" in output
    assert [row["state"] for row in read_csv(study / "trials.csv")] == ["finished", "finished", "pruned"]
    assert [row["model.optimizer.lr"] for row in read_csv(study / "trials.csv")] == ["1e-09", "0.01", "1e-09"]
    assert read_curves(run / "metrics.csv")["val/loss"][0] == before
    command = f"zoo fit flow/smoke --samples.enabled=false --config {study / 'best.yaml'}"
    assert command in (study / "best.yaml").read_text()
    assert yaml.safe_load((study / "best.yaml").read_text()) == {
        "trainer": {"max_steps": 20}, "model": {"init_args": {"optimizer": {"init_args": {"lr": 0.01}}}},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["model.init_args.optimizr.init_args.lr=log(1e-5, 1)"], "did you mean optimizer"),
        ([f"{LR}=log(1e-5, 1)", "--model.optimizer.lr=0.1"], "given and searched"),
        ([f"{LR}=log(1e-5, 1)", "--ckpt_path", "last"], "ckpt_path"),
    ],
)
def test_mistakes_are_refused_before_any_trial(options: list[str], named: str, tmp_path: Path, capfd) -> None:
    assert main(["tune", "flow/smoke", "--output", str(tmp_path / "study"), "--search", *options]) != 0
    assert named in capfd.readouterr().err
    assert not list(tmp_path.rglob("trial_*"))


@pytest.mark.parametrize(
    ("fit", "folder"), [(["flow/smoke", "--allow-import", "evil"], "trial_0000"), (["flow/smoke"], "../outside")]
)
def test_a_database_admits_no_package_and_no_other_folder(fit: list[str], folder: str, tmp_path: Path, capfd) -> None:
    (tmp_path / "evil.py").write_text("open('marker', 'w').close()")
    output = tmp_path / "study"
    output.mkdir()
    study = optuna.create_study(storage=f"sqlite:///{output}/study.db", study_name="study")
    config = {"fit": fit, "search": [f"{LR}=log(1e-5, 1)"], "metric": "val/loss", "direction": "min", "keys": {}}
    study.set_user_attr("config", config)
    study.set_user_attr("trials", 1)
    study.enqueue_trial({}, user_attrs={"folder": folder})
    assert main(["tune", "--output", str(output)]) == 1
    assert ("--allow-import" in capfd.readouterr().err) == ("evil" in fit)
    assert not list(tmp_path.rglob("*.ckpt")) and not list(tmp_path.rglob("marker"))
    assert not (tmp_path / "outside").exists()


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_of_two_processes_one_is_killed(tmp_path: Path) -> None:
    study, chance = tmp_path / "study", random.Random()
    tune = ["tune", "flow/smoke", "--search", f"{LR}=log(1e-5, 1e-2)", "--trials", "3", "--output", study]
    both = [start(tune, tmp_path), start(tune, tmp_path)]
    try:
        wait_until(lambda: len(list(study.glob("trial_*"))) >= 2, 900)
        time.sleep(chance.uniform(0, 10))
        os.kill(both[0].pid, signal.SIGKILL)
        assert both[1].wait(1500) == 0, (tmp_path / "started.log").read_text()
    finally:
        for process in both:
            process.kill()
            process.wait()
    good(zoo("tune", "--output", study, "--trials", "3", cwd=tmp_path, timeout=1500))
    trials = read_csv(study / "trials.csv")
    assert [(row["trial"], row["state"]) for row in trials] == [(f"trial_000{n}", "finished") for n in range(3)]
    assert len({row[LR] for row in trials}) == 3
    for run in list_runs(study):
        assert (run.state, run.step, run.recipe) == ("finished", 20, "flow/smoke")
        curve = read_curves(run.folder / "metrics.csv")[run.monitor or ""]
        assert len({step for step, _ in curve}) == len(curve)
    good(zoo("fit", "flow/smoke", study / "best.yaml", "--trainer.max_steps", "2", cwd=tmp_path, timeout=1500))


@pytest.mark.slow
def test_failures_end_the_study(tmp_path: Path) -> None:
    tune = ["tune", "flow/smoke", "--search", f"{LR}=choice(-1., -2., -3., .001)", "--sampler", "grid"]
    failed = zoo(*tune, "--output", "study", cwd=tmp_path)
    assert failed.returncode == 1 and "Invalid learning rate: -3.0" in failed.stderr
    good(zoo(*tune, "--output", "study", cwd=tmp_path))
    assert [row["state"] for row in read_csv(tmp_path / "study/trials.csv")] == ["failed"] * 3 + ["finished"]


def test_a_stopped_trial_is_continued_at_once(tmp_path: Path) -> None:
    tune = ["tune", "flow/smoke", "--search", f"{LR}=log(1e-5, 1e-2)", "--trials", "1", "--output", "study"]
    process = start([*tune, "--trainer.max_steps", "100", "--samples.enabled", "false"], tmp_path)
    wait_until(lambda: list(tmp_path.glob("study/trial_0000/step_*.ckpt")), 900)
    process.terminate()
    assert process.wait(60) == 143, (tmp_path / "started.log").read_text()
    newest = max(tmp_path.glob("study/trial_0000/step_*.ckpt")).name
    good(zoo("tune", "--output", "study", cwd=tmp_path))
    assert [row["state"] for row in read_csv(tmp_path / "study/trials.csv")] == ["finished"]
    assert (tmp_path / "study/trial_0000/output.log").read_text().count(newest) > 1
