"""What run folders tell without torch or Lightning: state, steps, metrics, log, samples, next commands.

Folders may be broken, half written or written to at this moment: what cannot be read counts as absent.
"""

from __future__ import annotations

import contextlib
import csv
import difflib
import math
import os
import re
import time
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from zoo.common.atomic_files import LOCK_NAME
from zoo.common.configs import load_yaml
from zoo.common.locks import is_locked
from zoo.runs.checkpoints import best_checkpoint, find_checkpoints, is_valid_checkpoint, parse_score, parse_step
from zoo.runs.run_folder import CONFIG_NAME, CSV_NAME, LOG_NAME, MEDIA_NAME, find_latest_run

FIXED_COLUMNS = ("step", "epoch")  # of metrics.csv, its first ones
RECIPE_MARK = "recipe: "  # in the comment above a run's config
STARTED_MARK, FINISHED_MARK = "fit starts in process", "fit finished at step"  # in train.log
SUMMARY_KEYS = {  # of a config, for a description of its run
    "model": "model.class_path",
    "data": "data.class_path",
    "batch size": "data.init_args.batch_size",
    "precision": "trainer.precision",
    "accelerator": "trainer.accelerator",
    "seed": "seed_everything",
    "init_from": "init_from",
}
_COMPARED = re.compile(
    r"model\.(?!init_args\.(optimizer|scheduler))|trainer\.(callbacks|gradient_clip)"
    r"|data\.(?!init_args\.(batch_size|items|seed)$|.*\.(num_workers|cache|cache_mode|root)$)"
)
_ENDS = re.compile(rf"{FINISHED_MARK}|`Trainer\.fit` stopped|ended by (\w+)")
_START = "summary: recipe "  # in train.log, where a training begins
_STOPS = ("Interrupted", "KeyboardInterrupt", "SystemExit", "SIGTERMException")
_TIME = re.compile(r"^(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d),\d{3} ", re.MULTILINE)
_TAIL_BYTES = 64 * 1024
_HEADER = ",".join(FIXED_COLUMNS)
_ROW = re.compile(r"(\d{1,18}),(\d{1,18})?(?:,|$)")  # its step and epoch
# what every run logs besides its losses, as `train/<name>`
SYSTEM_METRICS = ("grad_norm", "samples_per_sec", "data_wait", "memory_gib", "amp_scale")
_NO_LOSSES = tuple(f"train/{name}" for name in SYSTEM_METRICS)
Points = list[tuple[float, float]]


@dataclass(frozen=True)
class RunInfo:
    """Summary of a run."""

    folder: Path
    name: str  # its folder below the root
    recipe: str  # `<system>/<recipe>`, "?" where it is unknown
    # "running", "finished", "stopped" (by a signal), "failed", "killed", "corrupt" (its newest checkpoint), "empty"
    state: str
    step: int  # optimizer steps
    total: int | None  # to train; None where epochs are counted, or nothing limits the run
    epoch: int  # the one begun last, from 1
    epochs: int | None  # to train; None where steps are counted
    monitor: str | None  # the metric that decides which checkpoints are best
    mode: str  # "min" or "max"
    best: float | None  # value of that metric
    best_step: int | None  # optimizer steps when it was reached
    changed: float  # time of the last change, seconds since 1970


def is_run(folder: Path) -> bool:
    """Tell whether a folder holds what a fit writes."""
    return any((folder / name).is_file() for name in (CONFIG_NAME, CSV_NAME)) or bool(find_checkpoints(folder))


def find_runs(root: Path) -> Iterator[Path]:
    """Find run folders below a folder, in no order, without those within a run, in hidden folders or behind links.

    A checkpoint alone makes no run of the root itself.
    """
    for folder, folders, names in os.walk(root):
        is_complete = CONFIG_NAME in names or CSV_NAME in names
        if is_complete or (any(name.endswith(".ckpt") for name in names) and Path(folder) != root):
            yield Path(folder)
        if is_complete:  # a checkpoint alone, such as a converted one, may lie among runs
            folders.clear()
        # W&B writes a config.yaml into its own folders
        folders[:] = [name for name in folders if not name.startswith(".") and name != "wandb"]


def list_runs(root: Path, last: int | None = None) -> list[RunInfo]:
    """List the runs below a folder, the newest first; all, or the `last` so many."""
    folders = sorted(find_runs(root), key=lambda folder: (-_last_change(folder), folder))
    return [read_run(folder, root) for folder in folders[:last]]


def find_run(name: str, root: Path) -> Path:
    """Find the folder of a run by a path, a name below the root or the end of one, or `last`.

    Raises:
        ValueError: there is none, or there are several; the message lists the nearest names.
    """
    for path in (Path(name), root / name):
        if path.exists() and path.suffix == ".ckpt":
            return path.parent
        if path.is_dir():
            return path
    folders = {folder.relative_to(root).as_posix(): folder for folder in find_runs(root)}
    if not folders:
        raise ValueError(f"no run {name!r}: there is none at all below {root} (--root names another folder)")
    if name == "last":
        return find_latest_run(root) or max(folders.values(), key=_last_change)
    matches = [each for each in sorted(folders) if f"/{each}".endswith(f"/{name}")]
    if len(matches) == 1:
        return folders[matches[0]]
    if matches:
        raise ValueError(f"{name!r} is the name of {len(matches)} runs below {root}: {', '.join(matches[:5])}")
    nearest = difflib.get_close_matches(name, folders, n=3, cutoff=0.0)
    raise ValueError(f"no run {name!r} below {root}; did you mean {', '.join(nearest)}? (`zoo runs` lists them)")


def read_run(folder: Path, root: Path) -> RunInfo:
    """Summarise the run of a folder."""
    settings = flatten_config(read_settings(folder))
    monitor = settings.get("checkpoints.monitor", "null")
    monitor = None if monitor == "null" else str(monitor)
    mode = "max" if settings.get("checkpoints.mode") == "max" else "min"
    limits = (settings.get(f"trainer.{key}") for key in ("max_steps", "max_epochs"))
    total, epochs = (limit if isinstance(limit, int) and limit > 0 else None for limit in limits)
    checkpoints = find_checkpoints(folder)
    last_step, epoch = _last_row(folder / CSV_NAME)
    step = max([last_step + 1, *map(parse_step, checkpoints)])
    best, best_step = _best(folder, monitor, mode)
    path = folder.relative_to(root) if folder != root and folder.is_relative_to(root) else folder
    return RunInfo(
        folder=folder,
        name=path.as_posix(),
        recipe=read_recipe_name(folder / CONFIG_NAME) or ("/".join(path.parts[:2]) if len(path.parts) == 3 else "?"),
        state=_state(folder, checkpoints, step, total),
        step=step,
        total=total,
        epoch=epoch + 1,
        epochs=epochs if total is None else None,
        monitor=monitor,
        mode=mode,
        best=best,
        best_step=best_step,
        changed=_last_change(folder),
    )


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def read_recipe_name(config: Path) -> str | None:
    """Read the recipe that the comment above a run's config names, None without one."""
    match = re.match(rf"(?:#.*\n)*?# *{RECIPE_MARK}(.*)", _read_text(config))
    return match[1].strip() or None if match else None


def _last_change(folder: Path) -> float:
    times = []
    for path in [folder / CSV_NAME, folder / LOG_NAME, folder / CONFIG_NAME, *folder.glob("*.ckpt")]:
        with contextlib.suppress(OSError):  # absent, or deleted in between
            times.append(path.stat().st_mtime)
    return max(times, default=0.0)


def _last_row(path: Path) -> tuple[int, int]:
    """Return step and epoch of the last complete row of a metrics.csv; -1 and -1 without one.

    A validation before step 1 is a row of step 0 without an epoch.
    """
    with contextlib.suppress(OSError), path.open(encoding="utf-8", errors="replace") as file:
        if file.read(len(_HEADER)) == _HEADER:  # else it is another program's
            rows = (_ROW.match(line) for line in reversed(tail_lines(path).splitlines()))
            trained = (row for row in rows if row and (int(row[1]) or row[2]))
            return next(((int(row[1]), int(row[2] or -1)) for row in trained), (-1, -1))
    return -1, -1


def _best(folder: Path, monitor: str | None, mode: str) -> tuple[float | None, int | None]:
    if monitor is None:
        return None, None
    checkpoint = best_checkpoint(folder, mode)
    if checkpoint is not None:
        return parse_score(checkpoint), parse_step(checkpoint)
    points = read_curves(folder / CSV_NAME).get(monitor, [])
    if not points:
        return None, None
    step, value = (min if mode == "min" else max)(points, key=lambda point: point[1])
    return value, int(step) + 1


def _state(folder: Path, checkpoints: Sequence[Path], step: int, total: int | None) -> str:
    if is_locked(folder):
        return "running"
    if checkpoints and not zipfile.is_zipfile(checkpoints[0]):  # a file that was cut lacks its end
        return "corrupt"
    if total is not None and checkpoints and parse_step(checkpoints[0]) >= total:
        return "finished"
    if (folder / LOCK_NAME).exists():
        return "killed"
    ends = list(_ENDS.finditer(tail_lines(folder / LOG_NAME, _TAIL_BYTES)))  # a traceback of many lines may follow
    if ends:
        cause = ends[-1][1]
        return "finished" if cause is None else "stopped" if cause in _STOPS else "failed"
    return "stopped" if step else "empty"


def path_size(path: Path) -> int:
    """Return the bytes of a file or of all files in a folder; links count as themselves, what vanishes as nothing."""
    files = [os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names]
    total = 0
    for file in files if path.is_dir() else [path]:
        with contextlib.suppress(OSError):
            total += os.lstat(file).st_size
    return total


def read_settings(folder: Path) -> dict[str, Any]:
    """Read a run's config as plain values; {} where there is none that can be read."""
    try:
        content = load_yaml(_read_text(folder / CONFIG_NAME))
    except (ValueError, yaml.YAMLError):
        return {}
    return content if isinstance(content, dict) else {}


def flatten_config(config: Any, key: str = "") -> dict[str, Any]:
    """Flatten nested values by dotted keys: `model.init_args.net.init_args.channels`.

    Values are numbers, booleans and texts; None is "null", a list of plain values its text.
    """
    if isinstance(config, Mapping) and config:
        entries = ((str(name), value) for name, value in config.items())
    elif isinstance(config, list) and any(isinstance(entry, Mapping | list) for entry in config):
        entries = ((str(index), value) for index, value in enumerate(config))
    elif isinstance(config, bool | int | float | str):
        return {key: config}
    else:
        return {key: "null" if config is None else str(config)}
    flat: dict[str, Any] = {}
    for name, value in entries:
        flat |= flatten_config(value, f"{key}.{name}" if key else name)
    return flat


def read_curves(path: Path) -> dict[str, Points]:
    """Read the curves of a metrics.csv by metric: (step, value) in the file's order, finite values only."""
    curves: dict[str, Points] = {}
    with contextlib.suppress(OSError, csv.Error), path.open(newline="", encoding="utf-8", errors="replace") as file:
        add_rows(csv.DictReader(file), curves)
    return curves


def note_not_finite(row: Mapping[str, Any], since: dict[str, str]) -> None:
    """Note which metrics a row of a metrics.csv makes NaN or infinite, by the first such step, and which no more."""
    for metric, text in row.items():
        if metric and text in ("nan", "inf", "-inf"):
            since.setdefault(metric, row.get("step", ""))
        elif metric and text:
            since.pop(metric, None)


def describe_divergence(path: Path) -> str:
    """Return which metrics of a metrics.csv have become NaN or infinite, and since when; "" for none."""
    since: dict[str, str] = {}
    with contextlib.suppress(OSError, csv.Error), path.open(newline="", encoding="utf-8", errors="replace") as file:
        for row in csv.DictReader(file):
            note_not_finite(row, since)
    return format_divergence(since)


def format_divergence(since: Mapping[str, str]) -> str:
    """Format what `note_not_finite` has noted."""
    return ", ".join(f"{metric} is not finite since step {step}" for metric, step in since.items())


def _precedes_training(row: Mapping[str, Any]) -> bool:
    """Tell whether a row is that of a validation before step 1, which alone has no epoch (`ZooTask`)."""
    is_first = row.get("step") == "0" and row.get("epoch") == ""
    return is_first and any(key and key.startswith("val/") and value for key, value in row.items())


def add_rows(rows: Iterable[dict[str, Any]], curves: dict[str, Points]) -> None:
    """Add the finite values of the rows of a metrics.csv to curves.

    A validation before step 1 is left out: its values are not the training's.
    """
    for row in rows:
        if _precedes_training(row):
            continue
        step = parse_finite(row.pop("step", None))
        for key, text in row.items():
            value = parse_finite(text) if isinstance(text, str) else None
            if key and step is not None and value is not None:
                curves.setdefault(key, []).append((step, value))


def parse_finite(text: str | None) -> float | None:
    """Parse a finite number, None where the text is none."""
    try:
        value = float(text or "nan")
    except ValueError:  # the last row may be half written
        return None
    return value if math.isfinite(value) else None


def select_loss_metrics(metrics: Sequence[str]) -> list[str]:
    """Select the metrics to show first: total losses of training and validation, else the terms that there are."""
    losses = [key for key in metrics if "/" in key and not is_learning_rate(key) and not key.startswith(_NO_LOSSES)]
    totals = [key for key in losses if key.startswith("train/") and "loss" in key and key.count("/") == 1]
    terms = [key for key in losses if key.startswith("train/")][:6]
    return [*(totals or terms), *[key for key in losses if key.startswith("val/")][:2]]


def is_learning_rate(key: str) -> bool:
    """Tell whether a metric is a learning rate."""
    return key.startswith("train/lr_")


def tail_lines(path: Path, lines: int = 60, start: int = 0) -> str:
    """Return the last lines of a text file from a byte on; of a progress bar's line its last state."""
    try:
        with path.open("rb") as file:
            file.seek(max(start, path.stat().st_size - _TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ""
    states = [line.rstrip("\r").rpartition("\r")[2].rstrip() for line in text.split("\n")]
    return "\n".join([line for line in states if line][-lines:])


def trained_seconds(folder: Path) -> float | None:
    """Return the seconds from the first line of train.log to the last change, without the pauses before a resume."""
    text = _read_text(folder / LOG_NAME)
    marks = [(datetime.fromisoformat(match[1]).timestamp(), match.start()) for match in _TIME.finditer(text)]
    if not marks:
        return None
    marks.append((_last_change(folder), len(text)))  # a run that still trains or was killed logs values, no lines
    total, has_ended = 0.0, False
    for (before, start), (after, end) in pairwise(marks):
        has_ended = (has_ended and _START not in text[start:end]) or _ENDS.search(text, start, end) is not None
        was_killed = STARTED_MARK in text[end:].partition("\n")[0]
        total += 0.0 if has_ended or was_killed else max(after - before, 0.0)
    return total


def newest_samples(folder: Path) -> list[Path]:
    """List the files of the newest step folder of a run that has samples."""
    return next((files for each in sample_folders(folder) if (files := sorted(each.iterdir()))), [])


def sample_folders(folder: Path) -> list[Path]:
    """List the step folders of a run's samples, the newest first."""
    return sorted((folder / MEDIA_NAME).glob("step_*/"), reverse=True)


def describe_run(run: RunInfo) -> dict[str, Any]:
    """Describe a run in full; its checkpoints are read completely to tell whether they are valid."""
    settings = flatten_config(read_settings(run.folder))
    curves = read_curves(run.folder / CSV_NAME)
    metrics = [*select_loss_metrics(list(curves)), *(key for key in curves if key.startswith("val/"))]
    return {
        **asdict(run),
        "seconds": trained_seconds(run.folder),
        "config": {name: settings[key] for name, key in SUMMARY_KEYS.items() if settings.get(key, "null") != "null"},
        "checkpoints": [
            {"name": path.name, "bytes": path_size(path), "valid": is_valid_checkpoint(path)}
            for path in find_checkpoints(run.folder)
        ],
        "last": {key: curves[key][-1][1] for key in dict.fromkeys(metrics)},
        "samples": newest_samples(run.folder),
    }


def format_age(changed: float) -> str:
    """Format the time since then, in one unit."""
    return format_duration(max(time.time() - changed, 0.0))


def format_duration(seconds: float) -> str:
    """Format a time in one unit: `45 s`, `12 min`, `3.5 h`, `9 d`."""
    for unit, size in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= size * (2 if unit == "d" else 1):
            value = seconds / size
            return f"{value:.1f} {unit}" if value < 10 and unit == "h" else f"{value:.0f} {unit}"
    return f"{seconds:.0f} s"


def describe_config_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Describe in one line what another config changes in model, data, callbacks and clipping; "" for nothing.

    Optimizers, schedules, batch size, items and seed are left out: a resume compares them with the checkpoint's.
    """
    old, new = (
        {key: value for key, value in flatten_config(each).items() if _COMPARED.match(key)} for each in (before, now)
    )
    changed = [key for key in {**old, **new} if old.get(key) != new.get(key)]
    texts = [f"{key} {new.get(key)} (was {old.get(key)})" for key in changed if not key.startswith("trainer.callbacks")]
    return ", ".join([*texts, *(["other trainer.callbacks"] if len(texts) < len(changed) else [])])
