"""Run folders: where a run writes, what its files are called, and how a later command finds its config."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import lightning as L

RUNS_ROOT = Path("runs")
CONFIG_NAME = "config.yaml"
CSV_NAME = "metrics.csv"
LOG_NAME = "train.log"
MEDIA_NAME = "media"
_named: set[Path] = set()  # given out by this process; a folder appears when its training begins
_RUN_VARIABLE = "ZOO_RUN_FOLDER"  # set by the first process, so that the ranks it starts write to the same folder


def new_run_folder(recipe: str) -> Path:
    """Name a fresh run folder `runs/<recipe>/<time>`; subprocess ranks get the name that the first process chose."""
    inherited = os.environ.get(_RUN_VARIABLE)
    if inherited and os.environ.get("LOCAL_RANK", "0") != "0":
        return Path(inherited)
    stamp = time.strftime("%Y%m%d-%H%M%S")
    folder = RUNS_ROOT / recipe / stamp
    number = 1
    while folder.exists() or folder in _named:
        number += 1
        folder = RUNS_ROOT / recipe / f"{stamp}-{number}"
    _named.add(folder)
    os.environ[_RUN_VARIABLE] = str(folder)
    return folder


def run_folder(trainer: L.Trainer) -> Path:
    """Return the folder that every rank of this run writes to: rank zero's choice, broadcast once."""
    folder = getattr(trainer, "_zoo_run_folder", None)
    if folder is None:
        folder = Path(trainer.strategy.broadcast(str(trainer.default_root_dir)))
        trainer._zoo_run_folder = folder  # type: ignore[attr-defined]
    return folder


def refuse_links(folder: Path) -> None:
    """Raise ValueError for a link in a run folder that leads out of it: a run writes nowhere else.

    W&B's own link to its log, of a part of a run that is over, may stay: nothing is written there again.
    """
    root = folder.resolve()
    for path in folder.rglob("*"):
        is_wandb_log = path.match("wandb/*run-*/logs/debug-core.log")
        if path.is_symlink() and not is_wandb_log and not path.resolve().is_relative_to(root):
            raise ValueError(f"{path} is a link out of the run folder: remove it, or copy what it names")


def find_latest_run(root: Path) -> Path | None:
    """Return the run folder below `root` (or `root` itself) that holds the most recently written checkpoint.

    Hidden folders are left out; a checkpoint alone makes no run of the root itself.
    """
    is_run = any((root / name).is_file() for name in (CONFIG_NAME, CSV_NAME))
    paths = [
        path
        for path in root.rglob("*.ckpt")
        if (is_run or path.parent != root) and not any(part.startswith(".") for part in path.relative_to(root).parts)
    ]
    times: dict[Path, float] = {}
    for path in paths:
        with contextlib.suppress(FileNotFoundError):  # deleted since by the training that wrote it
            times[path] = path.stat().st_mtime
    newest = max(times, key=times.__getitem__, default=None)
    return None if newest is None else newest.parent


def find_last_run(root: Path = RUNS_ROOT) -> Path:
    """Return the run below a folder whose checkpoint is the newest; FileNotFoundError where there is none."""
    if (run := find_latest_run(root)) is None:
        raise FileNotFoundError(f"last: no run with a checkpoint below {root}")
    return run


def has_config_file(path: Path) -> bool:
    """Tell whether a run folder, or the run that a checkpoint file lies in, holds its config."""
    return _config_path(path).is_file()


def find_config(path: Path) -> Path:
    """Find the config.yaml of a run folder, or of a checkpoint's run; FileNotFoundError where there is none."""
    config = _config_path(path)
    if not config.is_file():
        raise FileNotFoundError(f"no {CONFIG_NAME} in {config.parent}: name the recipe with --config")
    return config


def _config_path(path: Path) -> Path:
    return (path.parent if path.is_file() else path) / CONFIG_NAME
