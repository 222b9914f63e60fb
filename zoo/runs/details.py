"""Describe one run from its files, without torch or Lightning."""

from __future__ import annotations

import shlex
import time
from dataclasses import asdict
from typing import Any

from zoo.runs import listing
from zoo.runs.listing import Run

# what a reader of a config asks first, by dotted key
SUMMARY = {
    "model": "model.class_path",
    "data": "data.class_path",
    "batch size": "data.init_args.batch_size",
    "precision": "trainer.precision",
    "accelerator": "trainer.accelerator",
    "seed": "seed_everything",
    "init_from": "init_from",
}
_SHOWN_FILES = 6


def record(run: Run) -> dict[str, Any]:
    """A run's line as plain values."""
    return {**asdict(run), "folder": str(run.folder)}


def described(run: Run) -> dict[str, Any]:
    """All on a run; its checkpoints are read to tell whether they are sound."""
    flat = listing.flatten(listing.read_settings(run.folder))
    curves = listing.read_curves(run.folder / listing.CSV_NAME)
    first = [*listing.losses_of(list(curves)), *(key for key in curves if key.startswith("val/"))]
    media = next((folder for folder in listing.media_of(run.folder) if any(folder.iterdir())), None)
    names = sorted(path.name for path in media.iterdir()) if media else []
    more = [f"and {len(names) - _SHOWN_FILES} more"] if len(names) > _SHOWN_FILES else []
    return {
        **record(run),
        "progress": f"{run.step} of {run.total}"
        if run.total
        else f"{run.step}, epoch {run.epoch} of {run.epochs or '?'}",
        "seconds": listing.trained_seconds(run.folder),
        "best": None if run.best is None else {"value": run.best, "step": run.best_step},
        "config": {name: flat[key] for name, key in SUMMARY.items() if flat.get(key, "null") != "null"},
        "checkpoints": listing.checkpoints_of(run.folder),
        "last": {key: curves[key][-1][1] for key in dict.fromkeys(first)},
        "media": {"folder": str(media), "files": names[:_SHOWN_FILES] + more} if media else None,
        "next": next_commands(run),
    }


def next_commands(run: Run) -> list[str]:
    """What one does next with a run in its state."""
    folder = shlex.quote(str(run.folder))
    watch = [f"tail -f {folder}/{listing.LOG_NAME}"]
    resume = [f"zoo fit --ckpt_path {folder}"]
    use = [
        f"zoo validate --ckpt_path {folder}",
        f"zoo predict --ckpt_path {folder} --input PATH --output FOLDER",
        f"zoo export {folder} FOLDER",
    ]
    config = run.folder / listing.CONFIG_NAME
    if run.state == "running":
        return watch
    if next(run.folder.glob("*.ckpt"), None) is None:
        return [f"zoo fit --config {shlex.quote(str(config))}"] if config.is_file() else []
    return [*([] if run.state == "finished" else resume), *use, f"zoo compare {folder} OTHER"]


def ago(then: float) -> str:
    """The time since then, in one unit."""
    return duration(max(time.time() - then, 0.0))


def duration(seconds: float) -> str:
    """A time in one unit: `45 s`, `12 min`, `3.5 h`, `9 d`."""
    for unit, size in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= size * (2 if unit == "d" else 1):
            value = seconds / size
            return f"{value:.1f} {unit}" if value < 10 and unit == "h" else f"{value:.0f} {unit}"
    return f"{seconds:.0f} s"
