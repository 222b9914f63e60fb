"""TensorBoard, W&B and MLflow beside the CSV record; a logger that fails never stops a training."""

from __future__ import annotations

import functools
import logging
import os
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from lightning.pytorch.loggers import Logger, MLFlowLogger, TensorBoardLogger, WandbLogger
from lightning.pytorch.utilities.rank_zero import rank_zero_only

from zoo.common.locks import is_rank_zero

log = logging.getLogger(__name__)

LoggerName = Literal["tensorboard", "wandb", "mlflow"]
WANDB_ID_FILE = "wandb_run_id"
MLFLOW_ID_FILE = "mlflow_run_id"
_MLFLOW_VARIABLE = "MLFLOW_TRACKING_URI"
_FILE_STORE_VARIABLE = "MLFLOW_ALLOW_FILE_STORE"  # mlflow 3.7 and later refuse a folder without it


@dataclass
class WandbSettings:
    """Weights & Biases. The key of an account is read from WANDB_API_KEY only, never from a config.

    Args:
        name: run name; `<system>/<recipe>/<name of the run folder>` when None.
        entity: user or team.
        mode: "offline" needs no account (send it later by `wandb sync`); the variable WANDB_MODE overrides it.
        group: runs that W&B shows together; `<system>/<recipe>` when None.
        notes: free text shown with the run.
        job_type: kind of the run within its group.
        log_model: checkpoints that go to W&B as artifacts: "best" the best one when the fit ends (without a monitor the
            last), "all" each as it is saved.
    """

    project: str = "zoo"
    name: str | None = None
    entity: str | None = None
    mode: Literal["online", "offline"] = "offline"
    tags: list[str] | None = None
    group: str | None = None
    notes: str | None = None
    job_type: str = "fit"
    log_model: Literal["best", "all", "none"] = "none"


class ZooWandbLogger(WandbLogger):
    """Lightning's logger, whose run ends with the fit, so that the next one in this process has its own.

    Args:
        keeps: see `WandbSettings.log_model`.
    """

    def __init__(self, keeps: str, **options: Any) -> None:
        super().__init__(**options)
        self.keeps = keeps

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """End the run; online this waits until all is sent."""
        super().finalize(status)
        if self._experiment is not None:
            self._experiment.finish(exit_code=int(status != "success"))
            self._experiment = None


def make_loggers(
    names: Sequence[str],
    wandb: WandbSettings,
    folder: Path,
    configured: Sequence[Logger] = (),
    recipe: str = "unnamed",
    step: int | None = None,
    trained_steps: int | None = None,
) -> list[Logger]:
    """Build the loggers that a config names, and shield them and those that it brings; they write below the run folder.

    Args:
        names: "tensorboard", "wandb", "mlflow".
        recipe: `<system>/<recipe>`, for names and groups.
        step: of every value, in place of the trainer's, which knows none when it only evaluates.
        trained_steps: of the checkpoint that a run resumes from: what TensorBoard has from there on is logged again.

    Returns:
        Those whose service can be had.

    Raises:
        ImportError: mlflow is asked for and not installed.
    """
    makers = {
        "tensorboard": lambda: TensorBoardLogger(
            save_dir=folder, name="", version="tensorboard", purge_step=trained_steps
        ),
        "wandb": lambda: _wandb(wandb, folder, recipe),
        "mlflow": lambda: _mlflow(folder, recipe),
    }
    loggers, address = [], os.environ.get(_MLFLOW_VARIABLE)
    for logger in [*(makers[name]() for name in names), *configured]:
        if isinstance(logger, WandbLogger):
            logger._wandb_init.pop("anonymous", None)  # Lightning sets what W&B warns of
        if isinstance(logger, MLFlowLogger) and logger._run_id is None:
            logger._run_id = _read_id(folder / MLFLOW_ID_FILE)
        if _opens(logger):
            loggers.append(_at_step(shield(logger), step))
    if address is None:
        os.environ.pop(_MLFLOW_VARIABLE, None)  # mlflow sets it, and would lead this process's next run to this store
    return loggers


def _wandb(settings: WandbSettings, folder: Path, recipe: str) -> Logger:
    mode = os.environ.get("WANDB_MODE", settings.mode)
    folder.mkdir(parents=True, exist_ok=True)
    if settings.log_model != "none":
        os.environ.setdefault("WANDB_DATA_DIR", str(folder.absolute() / "wandb"))  # copies that wait for `wandb sync`
    return ZooWandbLogger(
        settings.log_model,
        save_dir=folder.absolute(),  # its service keeps the folder in which it was started
        project=settings.project,
        name=settings.name or run_name(recipe, folder),
        id=run_id(folder),
        resume="allow",
        mode=mode,
        entity=settings.entity,
        tags=settings.tags,
        group=settings.group or recipe,
        notes=settings.notes,
        job_type=settings.job_type,
        settings={"quiet": True} if mode == "online" else {"silent": True},
    )


def _mlflow(folder: Path, recipe: str) -> Logger:
    uri = os.environ.get(_MLFLOW_VARIABLE) or (folder.absolute() / "mlflow").as_uri()
    if uri.startswith("file:"):
        os.environ.setdefault(_FILE_STORE_VARIABLE, "true")
    logging.getLogger("lightning.pytorch.loggers.mlflow").setLevel(logging.ERROR)  # it warns of each new experiment
    try:
        return MLFlowLogger(experiment_name=recipe, run_name=run_name(recipe, folder), tracking_uri=uri)
    except ModuleNotFoundError as error:
        raise ImportError(f"loggers: mlflow needs a package: pip install 'zoo[mlflow]' ({error})") from error


def run_name(recipe: str, folder: Path) -> str:
    """How loggers call the run of a folder, the same after every resume."""
    return f"{recipe}/{folder.name}"


def _opens(logger: Logger) -> bool:
    """Whether a logger's service answers; in Lightning's hands its error would end the run."""
    if not is_rank_zero():  # the first process writes alone
        return True
    try:
        logger.experiment  # type: ignore[attr-defined]  # noqa: B018
    except Exception as error:  # whatever a service raises: metrics.csv is the record
        log.warning(
            "%s is left out (%s: %s); training goes on, metrics.csv is complete (W&B needs no account in mode offline)",
            type(logger).__name__,
            type(error).__name__,
            " ".join(str(error).split()),
        )
        return False
    return True


def run_id(folder: Path) -> str:
    """The W&B id of a run folder: chosen once, kept over every resume."""
    file = folder / WANDB_ID_FILE
    if not file.is_file() and is_rank_zero():
        file.write_text(uuid.uuid4().hex[:8] + "\n", encoding="utf-8")
    return _read_id(file) or uuid.uuid4().hex[:8]


def _read_id(file: Path) -> str | None:
    return (file.read_text(encoding="utf-8").strip() or None) if file.is_file() else None


def shield(logger: Logger) -> Logger:
    """Let a logger's errors end in one warning instead of the training."""
    for method in ("log_metrics", "log_hyperparams", "save", "finalize", "after_save_checkpoint"):
        setattr(logger, method, warn_once(getattr(logger, method), type(logger).__name__))
    return logger


def _at_step(logger: Logger, step: int | None) -> Logger:
    if step is not None:
        method = logger.log_metrics
        setattr(logger, "log_metrics", lambda metrics, *_, **__: method(metrics, step=step))  # noqa: B010
    return logger


def warn_once(method: Callable[..., Any], name: str) -> Callable[..., Any]:
    """A method of the logger of that name whose first error is a warning; the others are not mentioned."""
    failed = False

    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal failed
        try:
            return method(*args, **kwargs)
        except Exception as error:  # whatever a service raises: metrics.csv is the record
            if not failed:
                failed = True
                log.warning(
                    "%s failed (%s: %s); training goes on, metrics.csv is complete", name, type(error).__name__, error
                )
            return None

    return call
