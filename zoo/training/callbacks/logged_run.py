"""What loggers record of a run besides its values: config, code, machine; results and checkpoints when it ends."""

from __future__ import annotations

import logging
import re
import shlex
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.loggers import Logger, MLFlowLogger, TensorBoardLogger, WandbLogger

from zoo import __version__
from zoo.common.atomic_files import TEMPORARY_MARK
from zoo.common.configs import load_yaml
from zoo.common.environment import describe_device
from zoo.runs.checkpoints import HASH_SUFFIX, best_checkpoint, find_checkpoints, score_of, step_of
from zoo.runs.csv_log import RunCSV
from zoo.runs.folder import run_folder
from zoo.runs.listing import CONFIG_NAME, FINISHED_MARK, flatten
from zoo.training.callbacks.checkpoint import Checkpoints, is_fast_dev_run
from zoo.training.callbacks.loggers import MLFLOW_ID_FILE, ZooWandbLogger, warn_once

log = logging.getLogger(__name__)

HPARAMS_SUFFIX = ".hparams"
FACTS = "run"  # the key of the facts beside the config's own
_GIT_SECONDS = 5
_LOGIN = re.compile(r"://[^/@\s]+@")  # user and password in an address stay here
_PACKAGE = Path(__file__).parents[2]


class LoggedRun(L.Callback):
    """Hands the resolved config and the run's facts to every logger, and its results when it ends, also by a signal.

    Args:
        recipe: `<system>/<recipe>`.
        read_config: returns the config as YAML when the fit begins.
    """

    def __init__(self, recipe: str, read_config: Callable[[], str]) -> None:
        self.recipe = recipe
        self._read_config = read_config
        self._text = ""
        self._config: dict[str, Any] = {}
        self._facts: dict[str, Any] = {}
        self._began = False  # here, on the first rank, and for more than a trial

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Hand over config and facts."""
        folder = run_folder(trainer)
        if not trainer.is_global_zero or is_fast_dev_run(trainer):
            return
        self._began = True
        if all(isinstance(logger, RunCSV) for logger in trainer.loggers):
            return
        self._text = _LOGIN.sub("://", self._read_config())
        self._config = load_yaml(self._text)
        self._facts = facts(trainer, self.recipe)
        for logger in trainer.loggers:
            warn_once(self._introduce, type(logger).__name__)(logger, folder, _checkpoints(trainer))
        if any(isinstance(logger, ZooWandbLogger) and logger.keeps == "all" for logger in trainer.loggers):
            _checkpoints(trainer).listeners.append(self._keep)

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Hand over the results."""
        self._conclude(trainer, finished=True)

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        """Hand over what there is."""
        if trainer.state.fn == "fit":
            self._conclude(trainer, finished=False)

    def _introduce(self, logger: Logger, folder: Path, checkpoints: Checkpoints) -> None:
        everything = {**self._config, FACTS: self._facts}
        if isinstance(logger, TensorBoardLogger):
            write_hparams(Path(logger.log_dir), flatten(everything))
        elif isinstance(logger, WandbLogger):
            logger.log_hyperparams(everything)
            if checkpoints.monitor is not None:
                logger.experiment.define_metric(
                    checkpoints.monitor,
                    step_metric="trainer/global_step",
                    step_sync=True,
                    summary=f"{checkpoints.mode},last",
                )
        elif isinstance(logger, MLFlowLogger):
            _introduce_to_mlflow(logger, flatten(everything), self._text, folder)
        else:
            logger.log_hyperparams(flatten(everything))

    def _conclude(self, trainer: L.Trainer, finished: bool) -> None:
        if not self._began:
            return
        self._began = False
        for logger in trainer.loggers:
            warn_once(self._report, type(logger).__name__)(trainer, logger, finished)
        for note in logger_notes(trainer):
            log.info("%s", note)
        if finished:
            log.info("%s %d", FINISHED_MARK, trainer.global_step)

    def _report(self, trainer: L.Trainer, logger: Logger, finished: bool) -> None:
        if isinstance(logger, TensorBoardLogger):
            results = {key: float(value) for key, value in trainer.logged_metrics.items() if key != "epoch"}
            monitor, best = _checkpoints(trainer).monitor, _best(trainer)
            if best is not None:
                results[f"best/{monitor}"] = score_of(best)
                logger.log_metrics({f"best/{monitor}": score_of(best)}, trainer.global_step)
            everything = flatten({**self._config, FACTS: self._facts})
            write_hparams(Path(logger.log_dir), everything, results, finished)
        elif isinstance(logger, ZooWandbLogger) and logger.keeps == "best":
            folder = run_folder(trainer)
            path = _best(trainer) or next(iter(find_checkpoints(folder, "step_*.ckpt")), None)
            if path is not None:
                self._keep(trainer, path)

    def _keep(self, trainer: L.Trainer, path: Path) -> None:
        """Send a checkpoint to W&B, with what belongs to it."""
        for logger in trainer.loggers if trainer.is_global_zero else ():
            if isinstance(logger, ZooWandbLogger):
                warn_once(self._send, type(logger).__name__)(trainer, logger, path)

    def _send(self, trainer: L.Trainer, logger: ZooWandbLogger, path: Path) -> None:
        import wandb

        checkpoints = _checkpoints(trainer)
        is_best = path.name.startswith("best-")
        known = trainer.callback_metrics.get(checkpoints.monitor or "")
        metadata = {
            "step": step_of(path),
            "monitor": checkpoints.monitor,
            "value": score_of(path) if is_best else None if known is None else float(known),
            "config": self._config,
            **self._facts,
        }
        artifact = wandb.Artifact(f"model-{logger.version}", type="model", metadata=metadata)
        for file in (path, path.with_name(path.name + HASH_SUFFIX), path.with_name(CONFIG_NAME)):
            if file.is_dir():  # a sharded checkpoint
                artifact.add_dir(str(file), name=file.name)
            elif file.is_file():
                artifact.add_file(str(file), name=file.name)
        aliases = ["latest", f"step_{step_of(path)}", *(["best"] if is_best else [])]
        logger.experiment.log_artifact(artifact, aliases=aliases)


def facts(trainer: L.Trainer, recipe: str) -> dict[str, Any]:
    """What a run is, beside its config: recipe, version and commit of the code, what it runs on."""
    known = {
        "recipe": recipe,
        "zoo": __version__,
        "commit": commit(),
        "device": describe_device(trainer.strategy.root_device),
        "processes": trainer.world_size,
        "precision": str(trainer.precision),
    }
    return {key: value for key, value in known.items() if value is not None}


def commit() -> str | None:
    """The commit of the checkout that the zoo runs from, `-dirty` with changes; None for an installed one."""
    checkout = _PACKAGE.parent
    if not (checkout / ".git").exists():
        return None
    command = ["git", "-C", str(checkout), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=_GIT_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip() or None


def write_hparams(
    folder: Path, params: Mapping[str, Any], metrics: Mapping[str, float] | None = None, finished: bool = False
) -> None:
    """Write what TensorBoard's page of hyperparameters shows of a run, in place of what was written before.

    TensorBoard keeps the first of several such records, so one file for them is rewritten.

    Args:
        folder: of the run's events.
        metrics: results; without them TensorBoard lists those that it finds.
        finished: else the run counts as one that has not ended.
    """
    from torch.utils.tensorboard import SummaryWriter
    from torch.utils.tensorboard.summary import hparams

    former = [path for path in folder.glob(f"events.*{HPARAMS_SUFFIX}") if TEMPORARY_MARK not in path.name]
    experiment, start, end = hparams(dict(params), dict(metrics or {}))
    with SummaryWriter(str(folder), filename_suffix=HPARAMS_SUFFIX) as writer:
        file = writer._get_file_writer()
        for record in ([experiment] if metrics else []) + [start] + ([end] if finished else []):
            file.add_summary(record)
    for path in former:
        path.unlink()


def _introduce_to_mlflow(logger: MLFlowLogger, params: dict[str, Any], text: str, folder: Path) -> None:
    """Parameters are written once in MLflow: a resume adds those that are new; config.yaml holds what was changed."""
    client, run = logger.experiment, str(logger.run_id)
    (folder / MLFLOW_ID_FILE).write_text(run + "\n", encoding="utf-8")
    client.update_run(run, status="RUNNING")
    known = client.get_run(run).data.params
    logger.log_hyperparams({key: value for key, value in params.items() if key not in known})
    client.log_text(run, text, CONFIG_NAME)


def logger_notes(trainer: L.Trainer) -> list[str]:
    """Where each logger's record can be seen: a command or an address, one line each."""
    notes = []
    for logger in trainer.loggers:
        note = warn_once(_note, type(logger).__name__)(logger)
        notes += [note] if note else []
    return notes


def _note(logger: Logger) -> str | None:
    if isinstance(logger, TensorBoardLogger):
        return f"TensorBoard: tensorboard --logdir {shlex.quote(logger.log_dir)}"
    if isinstance(logger, WandbLogger):
        online = getattr(logger.experiment, "offline", True) is False
        runs = f"{shlex.quote(str(logger.save_dir))}/wandb/offline-run-*-{logger.version}"
        return f"W&B: {logger.experiment.url}" if online else f"W&B: wandb sync {runs}"
    if isinstance(logger, MLFlowLogger):
        uri = logger._tracking_uri
        if uri.startswith("file:"):
            return f"MLflow: MLFLOW_ALLOW_FILE_STORE=true mlflow ui --backend-store-uri {shlex.quote(uri)}"
        return f"MLflow: run {logger.run_id} at {uri}"
    return None


def _checkpoints(trainer: L.Trainer) -> Checkpoints:
    return next(callback for callback in trainer.checkpoint_callbacks if isinstance(callback, Checkpoints))


def _best(trainer: L.Trainer) -> Path | None:
    return best_checkpoint(run_folder(trainer), _checkpoints(trainer).mode)
