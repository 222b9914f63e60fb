"""What W&B, TensorBoard and MLflow have on disk after a fit, a resume, a signal, and a fit of two processes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from lightning.pytorch.loggers import Logger
from mlflow.tracking import MlflowClient

from tests.harness import TOY_FIT, callback, forked, forked_ranks, good
from tests.logged import hparams, offline_runs, records, values
from zoo import __version__
from zoo.cli.main import main
from zoo.runs.run_info import read_curves, read_run
from zoo.training.callbacks.loggers import RunInfoLogger

ALL = "--loggers=[wandb,tensorboard,mlflow]"


def is_recorded(curve: list[tuple[float, float]], run: Path) -> bool:
    """Whether a curve of the monitored metric is that of metrics.csv, which has more digits."""
    return np.allclose(sorted(curve), read_curves(run / "metrics.csv")["val/error"], rtol=1e-6)


def mlflow_run(run: Path):
    client = MlflowClient((run.absolute() / "mlflow").as_uri())
    [result] = client.search_runs([experiment.experiment_id for experiment in client.search_experiments()])
    return client, result


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fit in this process with all loggers."""
    folder = tmp_path_factory.mktemp("logged") / "run"
    options = ["--wandb.tags=[a,b]", "--wandb.log_model=best", "--wandb.project=p"]
    options += ["--trainer.max_steps=20", f"--trainer.default_root_dir={folder}"]
    assert main([str(arg) for arg in (*TOY_FIT, ALL, *options)]) == 0
    return folder


def test_wandb_has_names_config_values_and_the_best_checkpoint(run):
    [path] = offline_runs(run)
    [start] = records(path, "run")
    assert start.display_name == f"toy_system/smoke/{run.name}"
    assert (start.run_group, start.project) == ("toy_system/smoke", "p")
    assert (list(start.tags), start.run_id) == (["a", "b"], (run / "wandb_run_id").read_text().strip())
    config = {key: value for record in records(path, "config") for key, value in values(record.update).items()}
    assert config["model"]["init_args"]["net"]["class_path"] == "toy_system.Gain"
    assert (config["trainer"]["max_steps"], config["checkpoints"]["monitor"]) == (20, "val/error")
    assert (config["run"]["zoo"], config["run"]["recipe"]) == (__version__, "toy_system/smoke")
    assert config["run"]["device"].startswith("cpu")
    history = [values(record.item) for record in records(path, "history")]
    curve = [(row["trainer/global_step"], row["val/error"]) for row in history if "val/error" in row]
    assert is_recorded(curve, run)
    summary = [values(record.update) for record in records(path, "summary")]
    last = [update["val/error"] for update in summary if "val/error" in update][-1]
    assert last == {"min": min(value for _, value in curve), "last": curve[-1][1]}
    [artifact] = records(path, "artifact")
    [best] = run.glob("best-*.ckpt")
    assert {entry.path for entry in artifact.manifest.contents} == {"config.yaml", best.name, f"{best.name}.sha256"}
    metadata = json.loads(artifact.metadata)
    assert metadata["step"] == 20 and metadata["value"] == pytest.approx(read_run(run, run.parent).best)


def test_tensorboard_has_the_config_and_the_results(run):
    events, content = hparams(run)
    start = content["session_start_info"].session_start_info.hparams
    assert start["model.init_args.net.class_path"].string_value == "toy_system.Gain"
    assert start["trainer.max_steps"].number_value == 20
    names = {metric.name.tag for metric in content["experiment"].experiment.metric_infos}
    assert names == {"final/val/error", "best/val/error"}
    [best] = events.Scalars("best/val/error")
    assert (best.step, best.value) == (20, pytest.approx(read_run(run, run.parent).best))
    assert is_recorded([(event.step, event.value) for event in events.Scalars("val/error")], run)


def test_mlflow_has_the_config_and_the_values(run):
    client, result = mlflow_run(run)
    assert (result.info.run_name, result.info.status) == (f"toy_system/smoke/{run.name}", "FINISHED")
    assert client.get_experiment(result.info.experiment_id).name == "toy_system/smoke"
    assert result.data.params["model.init_args.net.class_path"] == "toy_system.Gain"
    history = client.get_metric_history(result.info.run_id, "val/error")
    assert is_recorded([(metric.step, metric.value) for metric in history], run)
    assert [file.path for file in client.list_artifacts(result.info.run_id)] == ["config.yaml"]


def test_train_log_has_the_summary_and_a_line_after_each_validation(run):
    text = (run / "train.log").read_text()
    assert "toy_system.GainTask" in text and "steps 1 to 20 in" in text
    for step, share in ((10, 50), (20, 100)):
        assert re.search(rf"step {step}/20 · {share} % · .*loss \S+ · val/error \S+", text)


def test_resume_continues_the_same_runs(run):
    assert main(["fit", "--allow-import", "toy_system", "--ckpt_path", str(run), "--trainer.max_steps=30"]) == 0
    first, second = (next(iter(records(path, "run"))) for path in offline_runs(run))
    assert (second.run_id, second.display_name, second.run_group) == (first.run_id, first.display_name, first.run_group)
    assert [event.step for event in hparams(run)[0].Scalars("val/error")] == [9, 19, 29]
    client, result = mlflow_run(run)
    assert result.info.status == "FINISHED"
    assert sorted(m.step for m in client.get_metric_history(result.info.run_id, "val/error")) == [9, 19, 29]
    assert main(["validate", "--allow-import", "toy_system", "--ckpt_path", str(run)]) == 0
    assert len(offline_runs(run)) == 2


def test_signal_leaves_results(tmp_path):
    run = tmp_path / "run"
    stop = callback("KillAt", step=23, signum=15)
    stopped = forked(*TOY_FIT, ALL, *stop, f"--trainer.default_root_dir={run}", cwd=tmp_path)
    assert stopped.returncode == 143
    names = {metric.name.tag for metric in hparams(run)[1]["experiment"].experiment.metric_infos}
    assert "best/val/error" in names
    assert mlflow_run(run)[1].info.status == "FAILED"
    assert [record.exit_code for record in records(offline_runs(run)[0], "exit")] == [1]
    assert read_run(run, tmp_path).state == "stopped"


def test_two_processes_write_once(tmp_path):
    run = tmp_path / "run"
    both = ["--trainer.devices=2", "--trainer.strategy=ddp", "--trainer.max_steps=10"]
    ranks = forked_ranks(*TOY_FIT, ALL, *both, f"--trainer.default_root_dir={run}", cwd=tmp_path)
    first, second = (good(rank).stderr for rank in ranks)
    assert len(offline_runs(run)) == 1
    assert len(list((run / "tensorboard").glob("events*"))) == 1
    assert mlflow_run(run)[1].data.params["run.processes"] == "2"
    assert first.count("\ntrained ") == first.count("step 10/10 ") == 1 and second == ""
    assert "4 = 2 per process x 2 processes" in first and "DDPStrategy" in first


class Refusing(Logger):
    name = version = experiment = "x"

    def log_metrics(self, metrics, step=None):
        pass

    def log_hyperparams(self, params, *args, **kwargs):
        self.params = params
        raise ConnectionError("no network")


def test_login_stays_here_and_a_refused_config_costs_nothing(tmp_path, caplog):
    import lightning as L

    trainer = L.Trainer(logger=Refusing(), default_root_dir=tmp_path, accelerator="cpu")
    address = "trainer:\n  logger:\n    tracking_uri: https://me:sec@ret@host:5000/x?token=1\n"
    RunInfoLogger("x/y", lambda: address).on_fit_start(trainer, L.LightningModule())
    assert "Refusing failed (ConnectionError: no network)" in caplog.text
    assert trainer.logger.params["trainer.logger.tracking_uri"] == "https://host:5000/x"
