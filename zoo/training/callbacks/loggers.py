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

import lightning as L
from lightning.pytorch.loggers import Logger, MLFlowLogger, TensorBoardLogger, WandbLogger
from lightning.pytorch.utilities.rank_zero import rank_zero_only

from zoo import __version__
from zoo.common.configs import load_yaml, remove_credentials
from zoo.common.environment import describe_device
from zoo.common.locks import is_rank_zero
from zoo.runs.checkpoints import HASH_SUFFIX, best_checkpoint, find_checkpoints, parse_score, parse_step
from zoo.runs.metrics_csv import MetricsCSV
from zoo.runs.run_folder import CONFIG_NAME, run_folder
from zoo.runs.run_info import FINISHED_MARK, flatten_config
from zoo.training.callbacks.checkpoint import find_checkpoints_callback, is_fast_dev_run

log = logging.getLogger(__name__)

LoggerName = Literal["tensorboard", "wandb", "mlflow"]
WANDB_ID_FILE = "wandb_run_id"
MLFLOW_ID_FILE = "mlflow_run_id"


@dataclass
class WandbSettings:
    """Weights & Biases; its variables give the rest (WANDB_NOTES, ...), and WANDB_API_KEY alone the key of an account.

    Args:
        project: name of the project that the runs belong to.
        name: run name; `<system>/<recipe>/<name of the run folder>` when None.
        entity: user or team.
        mode: "offline" needs no account (send it later by `wandb sync`); the variable WANDB_MODE overrides it.
        tags: of the run.
        log_model: "best" sends the best checkpoint (without a monitor the last) as an artifact when the fit ends.
    """

    project: str = "zoo"
    name: str | None = None
    entity: str | None = None
    mode: Literal["online", "offline"] = "offline"
    tags: list[str] | None = None
    log_model: Literal["best", "none"] = "none"


class ZooWandbLogger(WandbLogger):
    """Lightning's logger, whose run ends with the fit, so that the next one in this process has its own."""

    def __init__(self, send_best: bool, **options: Any) -> None:
        super().__init__(**options)
        self.send_best = send_best
        self._wandb_init.pop("anonymous")  # Lightning sets what W&B warns of

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
    trained_steps: int | None = None,
) -> list[Logger]:
    """Build the loggers that a config names, which write below the run folder; return those that can be opened.

    `configured` are those of `trainer.logger`, whose errors end no run either. TensorBoard forgets what it has from the
    step of a resumed checkpoint on.
    """
    address = os.environ.get("MLFLOW_TRACKING_URI")
    makers: dict[str, Callable[[], Logger]] = {
        "tensorboard": lambda: TensorBoardLogger(folder, "", "tensorboard", purge_step=trained_steps),
        "wandb": lambda: _make_wandb(wandb, folder, recipe),
        "mlflow": lambda: _make_mlflow(folder, recipe),
    }
    loggers = [*(makers[name]() for name in names), *configured]
    if is_rank_zero():  # the first process writes alone
        loggers = [each for each in loggers if catch_errors(lambda logger: [logger.experiment], each)(each)]
    for logger in loggers:
        for name in ("log_metrics", "log_hyperparams", "save", "finalize", "after_save_checkpoint"):
            setattr(logger, name, catch_errors(getattr(logger, name), logger))
    if address is None:
        os.environ.pop("MLFLOW_TRACKING_URI", None)  # mlflow sets it, and would lead the next run to this store
    return loggers


def _make_wandb(settings: WandbSettings, folder: Path, recipe: str) -> Logger:
    mode = os.environ.get("WANDB_MODE", settings.mode)
    folder.mkdir(parents=True, exist_ok=True)
    id_file = folder / WANDB_ID_FILE  # the same over every resume
    if not id_file.is_file() and is_rank_zero():
        id_file.write_text(uuid.uuid4().hex[:8], encoding="utf-8")
    return ZooWandbLogger(
        settings.log_model == "best",
        save_dir=folder.absolute(),  # its service keeps the folder in which it was started
        project=settings.project,
        name=settings.name or f"{recipe}/{folder.name}",
        id=_read_id(id_file),
        resume="allow",
        mode=mode,
        entity=settings.entity,
        tags=settings.tags,
        group=recipe,
        settings={"quiet": True} if mode == "online" else {"silent": True},
    )


def _make_mlflow(folder: Path, recipe: str) -> Logger:
    uri = os.environ.get("MLFLOW_TRACKING_URI") or (folder.absolute() / "mlflow").as_uri()
    if uri.startswith("file:"):
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # mlflow 3.7 and later refuse a folder without it
    logging.getLogger("lightning.pytorch.loggers.mlflow").setLevel(logging.ERROR)  # it warns of each new experiment
    run_id = _read_id(folder / MLFLOW_ID_FILE)
    try:
        return MLFlowLogger(recipe, run_name=f"{recipe}/{folder.name}", tracking_uri=uri, run_id=run_id)
    except ModuleNotFoundError as error:
        raise ImportError(f"loggers: mlflow needs a package: pip install 'zoo[mlflow]' ({error})") from error


def _read_id(file: Path) -> str | None:
    return (file.read_text(encoding="utf-8").strip() or None) if file.is_file() else None


def catch_errors(method: Callable[..., Any], logger: Logger) -> Callable[..., Any]:
    """Return a method for a logger whose first error is a warning; the others are not mentioned."""
    failed = False

    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal failed
        try:
            return method(*args, **kwargs)
        except Exception as error:  # whatever a service raises: metrics.csv is the record
            if not failed:
                message = "%s failed (%s: %s); training goes on, metrics.csv is complete"
                log.warning(message, type(logger).__name__, type(error).__name__, " ".join(str(error).split()))
            failed = True
            return None

    return call


class RunInfoLogger(L.Callback):
    """Sends config, code and machine to every logger, and the results when a fit ends, also by a signal.

    `read_config` returns the config of the recipe `<system>/<recipe>` as YAML.
    """

    def __init__(self, recipe: str, read_config: Callable[[], str]) -> None:
        self.recipe = recipe
        self._read_config = read_config
        self._is_active = False  # a fit, on the first rank
        self._text = ""
        self._info: dict[str, Any] = {}  # the config, and facts of the run under `run`

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Log the config."""
        self._is_active = trainer.is_global_zero and not is_fast_dev_run(trainer)
        if self._is_active:
            self._text = remove_credentials(self._read_config())
            device = describe_device(trainer.strategy.root_device)
            run = {"recipe": self.recipe, "zoo": __version__, "device": device, "precision": str(trainer.precision)}
            self._info = {**load_yaml(self._text), "run": {**run, "processes": trainer.world_size}}
            for logger in trainer.loggers:
                catch_errors(self._log_config, logger)(trainer, logger)

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Log the results."""
        if self._is_active:
            self.on_exception(trainer)
            log.info("%s %d", FINISHED_MARK, trainer.global_step)

    def on_exception(self, trainer: L.Trainer, *_: Any) -> None:
        """Log the results so far."""
        if not self._is_active:
            return
        self._is_active = False
        checkpoints = find_checkpoints_callback(trainer)
        monitor = None if checkpoints is None else checkpoints.monitor
        best = best_checkpoint(run_folder(trainer), checkpoints.mode) if checkpoints and monitor else None
        path = best or next(iter(find_checkpoints(run_folder(trainer), "step_*.ckpt")), None)
        for logger in trainer.loggers:
            if isinstance(logger, TensorBoardLogger):
                metrics = trainer.callback_metrics
                values = {f"final/{key}": float(value) for key, value in metrics.items() if key.startswith("val/")}
                values |= {} if best is None else {f"best/{monitor}": parse_score(best)}
                logger.log_hyperparams(flatten_config(self._info), values, trainer.global_step)
            elif isinstance(logger, ZooWandbLogger) and logger.send_best and path is not None:
                catch_errors(self._send_checkpoint, logger)(logger, path, monitor)

    def _log_config(self, trainer: L.Trainer, logger: Logger) -> None:
        if isinstance(logger, WandbLogger):
            logger.log_hyperparams(self._info)
            checkpoints = find_checkpoints_callback(trainer)
            if checkpoints is not None and checkpoints.monitor is not None:
                axis = {"step_metric": "trainer/global_step", "step_sync": True}
                logger.experiment.define_metric(checkpoints.monitor, summary=f"{checkpoints.mode},last", **axis)
        elif isinstance(logger, MLFlowLogger):
            run_id = str(logger.run_id)
            (run_folder(trainer) / MLFLOW_ID_FILE).write_text(run_id + "\n", encoding="utf-8")
            logger.experiment.update_run(run_id, status="RUNNING")
            logged = logger.experiment.get_run(run_id).data.params  # a resume may add parameters, not change them
            logger.log_hyperparams(
                {key: value for key, value in flatten_config(self._info).items() if key not in logged}
            )
            logger.experiment.log_text(run_id, self._text, CONFIG_NAME)
        elif not isinstance(logger, MetricsCSV | TensorBoardLogger):  # TensorBoard takes it with the results
            logger.log_hyperparams(flatten_config(self._info))

    def _send_checkpoint(self, logger: ZooWandbLogger, path: Path, monitor: str | None) -> None:
        """Send a checkpoint to W&B with its hash and config."""
        import wandb

        value = parse_score(path) if monitor else None
        metadata = {"step": parse_step(path), "monitor": monitor, "value": value, "config": self._info}
        chosen = os.environ.get("WANDB_DATA_DIR")  # of copies that wait for `wandb sync`
        os.environ["WANDB_DATA_DIR"] = chosen or str(path.parent.absolute() / "wandb")
        try:
            artifact = wandb.Artifact(f"model-{logger.version}", type="model", metadata=metadata)
            for file in (path, path.with_name(path.name + HASH_SUFFIX)):
                if file.is_file():
                    artifact.add_file(str(file), name=file.name)
            with artifact.new_file(CONFIG_NAME, encoding="utf-8") as config:
                config.write(self._text)
        finally:
            if chosen is None:  # the next run of this process has its own folder
                del os.environ["WANDB_DATA_DIR"]
        logger.experiment.log_artifact(artifact, aliases=["best", "latest", f"step_{parse_step(path)}"])
