"""TensorBoard and W&B beside the CSV record; a logger that fails never stops a training."""

from __future__ import annotations

import functools
import logging
import os
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from lightning.pytorch.loggers import Logger

log = logging.getLogger(__name__)

WANDB_ID_FILE = "wandb_run_id"


@dataclass
class WandbSettings:
    """Weights & Biases.

    Args:
        project: project name.
        name: run name; the run folder's name when None.
        entity: user or team.
        mode: "offline" needs no account (send it later by `wandb sync`); the variable WANDB_MODE overrides it.
        tags: of the run.
    """

    project: str = "zoo"
    name: str | None = None
    entity: str | None = None
    mode: Literal["online", "offline"] = "offline"
    tags: list[str] | None = None


def make_loggers(
    names: Sequence[str], wandb: WandbSettings, folder: Path, configured: Sequence[Logger] = ()
) -> list[Logger]:
    """Build the loggers that a config names, and shield them and those that it brings; they write below the run folder.

    Args:
        names: "tensorboard", "wandb".

    Returns:
        Those whose service can be had.
    """
    built = [_tensorboard(folder) if name == "tensorboard" else _wandb(wandb, folder) for name in names]
    return [shield(logger) for logger in [*built, *configured] if _opens(logger)]


def _tensorboard(folder: Path) -> Logger:
    from lightning.pytorch.loggers import TensorBoardLogger

    return TensorBoardLogger(save_dir=folder, name="", version="tensorboard")


def _wandb(settings: WandbSettings, folder: Path) -> Logger:
    from lightning.pytorch.loggers import WandbLogger

    mode = os.environ.get("WANDB_MODE", settings.mode)
    folder.mkdir(parents=True, exist_ok=True)
    return WandbLogger(
        save_dir=folder,
        project=settings.project,
        name=settings.name or folder.name,
        id=run_id(folder),
        resume="allow",
        offline=mode != "online",
        entity=settings.entity,
        tags=settings.tags,
    )


def _opens(logger: Logger) -> bool:
    """Whether a logger's service answers; in Lightning's hands its error would end the run."""
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
    if not file.is_file():
        file.write_text(uuid.uuid4().hex[:8] + "\n", encoding="utf-8")
    return file.read_text(encoding="utf-8").strip()


def shield(logger: Logger) -> Logger:
    """Let a logger's errors end in one warning instead of the training."""
    for method in ("log_metrics", "log_hyperparams", "save", "finalize", "after_save_checkpoint"):
        setattr(logger, method, _warn_once(getattr(logger, method), type(logger).__name__))
    return logger


def _warn_once(method: Callable[..., Any], name: str) -> Callable[..., Any]:
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
