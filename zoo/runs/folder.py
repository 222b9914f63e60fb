"""Run folders: where a run writes, and how a later command finds its config and newest sound checkpoint."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from zoo.runs.checkpoints import find_checkpoints, is_sound
from zoo.runs.listing import CONFIG_NAME

if TYPE_CHECKING:
    import lightning as L

RUNS_ROOT = Path("runs")
_RUN_VARIABLE = "ZOO_RUN_FOLDER"  # set by the first process, so that the ranks it starts write to the same folder


def new_run_folder(recipe: str, root: Path = RUNS_ROOT) -> Path:
    """Name a fresh run folder `root/<recipe>/<time>`; subprocess ranks get the name that the first process chose."""
    inherited = os.environ.get(_RUN_VARIABLE)
    if inherited and os.environ.get("LOCAL_RANK", "0") != "0":
        return Path(inherited)
    stamp = time.strftime("%Y%m%d-%H%M%S")
    folder = root / recipe / stamp
    number = 1
    while folder.exists():
        number += 1
        folder = root / recipe / f"{stamp}-{number}"
    os.environ[_RUN_VARIABLE] = str(folder)
    return folder


def run_folder(trainer: L.Trainer) -> Path:
    """The folder that every rank of this run writes to (rank zero's choice, broadcast once)."""
    known = getattr(trainer, "_zoo_run_folder", None)
    if known is None:
        known = Path(trainer.strategy.broadcast(str(trainer.default_root_dir)))
        trainer._zoo_run_folder = known  # type: ignore[attr-defined]
    return known


def newest_run(root: Path) -> Path | None:
    """The run folder below `root` (or `root` itself) that holds the most recently written checkpoint."""
    if not root.is_dir():
        return None
    newest = max(root.rglob("*.ckpt"), key=lambda path: path.stat().st_mtime, default=None)
    return None if newest is None else newest.parent


def find_checkpoint(path: Path) -> Path:
    """Find the checkpoint that a path means.

    Args:
        path: a checkpoint, or a run folder (its newest sound checkpoint; torn ones are named and passed over).

    Returns:
        The checkpoint file.

    Raises:
        FileNotFoundError: when there is none.
        ValueError: when the named file is torn.
    """
    if path.is_file():
        if not is_sound(path):
            raise ValueError(f"{path} is torn or altered (its zip directory or sha256 does not match); use another one")
        return path
    if not path.is_dir():
        raise FileNotFoundError(f"no checkpoint or run folder at {path}")
    candidates = find_checkpoints(path)
    if not candidates:
        raise FileNotFoundError(f"no checkpoint (*.ckpt) in the folder {path}")
    for candidate in candidates:
        if is_sound(candidate, warn=True):
            return candidate
    raise ValueError(f"every checkpoint in {path} is torn: {', '.join(c.name for c in candidates)}")


def has_config(path: Path) -> bool:
    """Whether a run folder, or the run that a checkpoint file lies in, holds its config."""
    return _config_of(path).is_file()


def find_config(path: Path) -> Path:
    """Find the config.yaml of a run folder or of the run that a checkpoint file lies in.

    Raises:
        FileNotFoundError: when there is none.
    """
    config = _config_of(path)
    if not config.is_file():
        raise FileNotFoundError(f"no {CONFIG_NAME} in {config.parent}: name the recipe with --config")
    return config


def _config_of(path: Path) -> Path:
    return (path.parent if path.is_file() else path) / CONFIG_NAME
