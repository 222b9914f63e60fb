"""What W&B, TensorBoard and MLflow have on disk after a fit, a resume, a signal, and a fit of two processes."""

from __future__ import annotations

import json
import re
import time
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from lightning.pytorch.loggers import Logger
from mlflow.tracking import MlflowClient

from tests.harness import TOY_FIT, callback, forked, forked_ranks, good
from tests.logged import hparams, offline_runs, records, values
from zoo import __version__
from zoo.cli.main import main
from zoo.runs.run_info import read_curves, read_run
from zoo.training.callbacks import logged_run, loggers

ALL = "--loggers=[wandb,tensorboard,mlflow]"


def same(curve: list[tuple[float, float]], run: Path) -> bool:
    """Whether a curve of the monitored metric is that of the record, which has more digits."""
    return np.allclose(curve, read_curves(run / "metrics.csv")["val/error"], rtol=1e-6)


def mlflow_run(run: Path):
    client = MlflowClient((run.absolute() / "mlflow").as_uri())
    [found] = client.search_runs([experiment.experiment_id for experiment in client.search_experiments()])
    return client, found


def fit(*args: str) -> int:
    return main([str(arg) for arg in (*TOY_FIT, *args)])


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A fit in this process with all loggers, and the warnings that it caused."""
    run = tmp_path_factory.mktemp("told") / "run"
    options = ["--wandb.tags=[a,b]", "--wandb.notes=a note", "--wandb.log_model=best", "--wandb.project=p"]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert fit(ALL, *options, "--trainer.max_steps=20", f"--trainer.default_root_dir={run}") == 0
    return run, [str(warning.message) for warning in caught]


def test_wandb_has_name_group_and_config(told):
    run, _ = told
    [path] = offline_runs(run)
    [begun] = records(path, "run")
    assert begun.display_name == f"toy_wing/smoke/{run.name}"
    assert (begun.run_group, begun.job_type, begun.notes, begun.project) == ("toy_wing/smoke", "fit", "a note", "p")
    assert (list(begun.tags), begun.run_id) == (["a", "b"], (run / "wandb_run_id").read_text().strip())
    config = {key: value for record in records(path, "config") for key, value in values(record.update).items()}
    assert config["model"]["init_args"]["net"]["class_path"] == "toy_wing.Gain"
    assert (config["trainer"]["max_steps"], config["checkpoints"]["monitor"]) == (20, "val/error")
    assert config["run"]["zoo"] == __version__
    assert config["run"]["recipe"] == "toy_wing/smoke"
    assert config["run"]["device"].startswith("cpu")


def test_wandb_has_values_by_step_and_their_best(told):
    run, _ = told
    [path] = offline_runs(run)
    history = [values(record.item) for record in records(path, "history")]
    curve = [(row["trainer/global_step"], row["val/error"]) for row in history if "val/error" in row]
    assert same(curve, run)
    defined = {metric.name or metric.glob_name: metric for metric in records(path, "metric")}
    assert {defined[name].step_metric for name in ("*", "val/error")} == {"trainer/global_step"}
    summary = [values(record.update) for record in records(path, "summary")]
    assert [update["val/error"] for update in summary if "val/error" in update][-1] == {
        "min": min(v for _, v in curve),
        "last": curve[-1][1],
    }


def test_wandb_has_the_best_checkpoint(told):
    run, _ = told
    [artifact] = records(offline_runs(run)[0], "artifact")
    [best] = run.glob("best-*.ckpt")
    files = artifact.manifest.contents
    assert {entry.path for entry in files} == {"config.yaml", best.name, f"{best.name}.sha256"}
    metadata = json.loads(artifact.metadata)
    assert (metadata["step"], metadata["monitor"]) == (20, "val/error")
    assert metadata["value"] == pytest.approx(read_run(run, run.parent).best)
    assert metadata["config"]["trainer"]["max_steps"] == 20
    assert sorted(artifact.aliases) == ["best", "latest", "step_20"]
    assert all(entry.local_path.startswith(str(run)) for entry in files)


def test_tensorboard_has_the_config_and_the_results(told):
    run, _ = told
    events, found = hparams(run)
    start = found["session_start_info"].session_start_info.hparams
    assert start["model.init_args.net.class_path"].string_value == "toy_wing.Gain"
    assert start["trainer.max_steps"].number_value == 20
    assert start["run.zoo"].string_value == __version__
    names = {metric.name.tag for metric in found["experiment"].experiment.metric_infos}
    assert {"val/error", "best/val/error", "train/loss"} <= names <= set(events.Tags()["scalars"])
    assert found["session_end_info"].session_end_info.status == 1
    [best] = events.Scalars("best/val/error")
    assert (best.step, best.value) == (20, pytest.approx(read_run(run, run.parent).best))
    curve = [(event.step, event.value) for event in events.Scalars("val/error")]
    assert same(curve, run)


def test_mlflow_has_the_config_and_the_values(told):
    run, _ = told
    client, found = mlflow_run(run)
    assert (found.info.run_name, found.info.status) == (f"toy_wing/smoke/{run.name}", "FINISHED")
    assert client.get_experiment(found.info.experiment_id).name == "toy_wing/smoke"
    assert found.data.params["model.init_args.net.class_path"] == "toy_wing.Gain"
    assert found.data.params["trainer.max_steps"] == "20"
    curve = [(metric.step, metric.value) for metric in client.get_metric_history(found.info.run_id, "val/error")]
    assert same(sorted(curve), run)
    assert [file.path for file in client.list_artifacts(found.info.run_id)] == ["config.yaml"]


def test_no_warning_of_a_logger(told):
    run, caught = told
    loud = re.compile("anonymous|wandb|mlflow|tensorboard", re.IGNORECASE)
    assert [message for message in caught if loud.search(message)] == []
    warned = [line for line in (run / "train.log").read_text().splitlines() if "WARNING" in line or "ERROR" in line]
    assert [line for line in warned if loud.search(line)] == []


def test_the_end_names_what_to_do_with_the_records(told):
    run, _ = told
    log = (run / "train.log").read_text()
    assert f"wandb sync {run}/wandb/offline-run-*-{(run / 'wandb_run_id').read_text().strip()}" in log
    assert f"tensorboard --logdir {run}/tensorboard" in log
    assert "mlflow ui --backend-store-uri file:" in log


def test_a_resume_goes_on_with_the_same_runs(told):
    run, _ = told
    time.sleep(1)  # TensorBoard reads files in the order of the seconds in which they were begun
    assert main(["fit", "--allow-import", "toy_wing", "--ckpt_path", str(run), "--trainer.max_steps=30"]) == 0
    first, second = (next(iter(records(path, "run"))) for path in offline_runs(run))
    assert (second.run_id, second.display_name, second.run_group) == (first.run_id, first.display_name, first.run_group)
    events, found = hparams(run)
    assert found["session_start_info"].session_start_info.hparams["trainer.max_steps"].number_value == 30
    assert [event.step for event in events.Scalars("best/val/error")] == [30]
    assert [event.step for event in events.Scalars("val/error")] == [9, 19, 29]
    client, one = mlflow_run(run)
    assert one.info.status == "FINISHED"
    assert sorted(m.step for m in client.get_metric_history(one.info.run_id, "val/error")) == [9, 19, 29]
    assert read_run(run, run.parent).recipe == "toy_wing/smoke"


def test_a_signal_leaves_results_and_says_so(tmp_path):
    run = tmp_path / "run"
    stopped = forked(
        *TOY_FIT, ALL, *callback("KillAt", step=23, signum=15), f"--trainer.default_root_dir={run}", cwd=tmp_path
    )
    assert stopped.returncode == 143
    _, found = hparams(run)
    assert found.keys() == {"experiment", "session_start_info"}
    assert "val/error" in {metric.name.tag for metric in found["experiment"].experiment.metric_infos}
    assert mlflow_run(run)[1].info.status == "FAILED"
    assert [record.exit_code for record in records(offline_runs(run)[0], "exit")] == [1]
    assert "wandb sync" in stopped.stderr
    assert read_run(run, tmp_path).state == "stopped"


def test_two_processes_write_once(tmp_path):
    run = tmp_path / "run"
    both = ["--trainer.devices=2", "--trainer.strategy=ddp", "--trainer.max_steps=10"]
    for rank in forked_ranks(*TOY_FIT, ALL, *both, f"--trainer.default_root_dir={run}", cwd=tmp_path):
        good(rank)
    assert len(offline_runs(run)) == 1
    assert len(list((run / "tensorboard").glob("events*.hparams"))) == 1
    assert len(list((run / "tensorboard").glob("events*"))) == 2
    assert mlflow_run(run)[1].data.params["run.processes"] == "2"


def test_configured_mlflow_resumes_too(tmp_path):
    store = (tmp_path / "store").as_uri()
    given = [
        "--trainer.logger=MLFlowLogger",
        f"--trainer.logger.tracking_uri={store}",
        "--trainer.logger.experiment_name=x",
    ]
    run = tmp_path / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
        assert fit(*given, "--trainer.max_steps=10", f"--trainer.default_root_dir={run}") == 0
        # with its options again: a run's own config may not name a place outside
        assert fit(*given, "--trainer.max_steps=20", f"--ckpt_path={run}") == 0
        client = MlflowClient(store)
        experiment = client.get_experiment_by_name("x")
        [found] = client.search_runs([experiment.experiment_id])
    assert found.data.params["checkpoints.monitor"] == "val/error"


def test_every_checkpoint_where_asked(tmp_path):
    run = tmp_path / "run"
    options = ["--loggers=[wandb]", "--wandb.log_model=all", "--trainer.max_steps=10"]
    good(forked(*TOY_FIT, *options, f"--trainer.default_root_dir={run}", cwd=tmp_path))
    sent = [sorted(artifact.aliases) for artifact in records(offline_runs(run)[0], "artifact")]
    assert sorted(sent) == [["best", "latest", "step_10"], ["latest", "step_10"], ["latest", "step_5"]]


def test_values_of_an_evaluation_stand_at_its_checkpoint(told):
    run, _ = told
    before = len(offline_runs(run))
    assert main(["validate", "--allow-import", "toy_wing", "--ckpt_path", str(run)]) == 0
    rows = [values(record.item) for record in records(offline_runs(run)[before], "history")]
    assert {row["trainer/global_step"] for row in rows if "val/error" in row} <= {20, 30}


class Refusing(Logger):
    name = version = "x"

    def log_metrics(self, metrics, step=None):
        pass

    def log_hyperparams(self, params, *args, **kwargs):
        raise ConnectionError("no network")


def test_a_logger_that_refuses_the_config_costs_nothing(caplog):
    callback = logged_run.LoggedRun("x/y", lambda: "a: 1")
    made = loggers.make_loggers([], loggers.WandbSettings(), Path("run"), [Refusing()])
    assert made == []  # it has no experiment
    refusing = loggers.shield(Refusing())
    callback._introduce(refusing, Path("run"), SimpleNamespace(monitor=None, mode="min"))
    assert "Refusing failed (ConnectionError: no network)" in caplog.text


def test_no_login_of_an_address_is_handed_over():
    text = "trainer:\n  logger:\n    tracking_uri: https://me:secret@host:5000/x\n"
    assert "secret" not in logged_run._LOGIN.sub("://", text)


def test_the_commit_is_that_of_the_code(tmp_path, monkeypatch):
    assert re.fullmatch("[0-9a-f]{40}(-dirty)?", logged_run.commit() or "0" * 40)
    monkeypatch.setattr(logged_run, "_PACKAGE", tmp_path / "zoo")
    assert logged_run.commit() is None
