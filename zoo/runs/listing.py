"""What run folders say of themselves, read without torch or Lightning: state, steps, metrics, log, samples.

Folders may be broken, half written or written to at this moment: what cannot be read counts as not there.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from zoo.common.configs import load_yaml
from zoo.common.locks import LOCK_NAME, is_locked
from zoo.runs.checkpoints import best_checkpoint, find_checkpoints, is_sound, score_of, step_of

CONFIG_NAME = "config.yaml"
CSV_NAME = "metrics.csv"
FIXED_COLUMNS = ("step", "epoch")  # of metrics.csv, its first ones
LOG_NAME = "train.log"
MEDIA_NAME = "media"
RECIPE_MARK = "recipe: "  # in the comment above a run's config
FINISHED_MARK = "fit finished at step"  # in train.log
_ENDS = re.compile(rf"{FINISHED_MARK}|`Trainer\.fit` stopped|ended by (\w+)")
_STOPS = ("Interrupted", "KeyboardInterrupt", "SystemExit", "SIGTERMException")
_TIME = re.compile(r"^(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d),\d{3} ", re.MULTILINE)
_TAIL_BYTES = 64 * 1024
_DEPTH = 6  # folders below the root that are looked through
# what every run logs besides its losses
_NO_LOSSES = tuple(f"train/{name}" for name in ("grad_norm", "samples_per_sec", "data_wait", "memory_gib", "amp_scale"))
Points = list[tuple[float, float]]


@dataclass(frozen=True)
class Run:
    """One line on a run.

    Args:
        name: its folder below the root.
        recipe: `<system>/<recipe>`, the system alone where the recipe is unknown.
        state: "running", "finished", "stopped" (asked to), "failed", "killed", "torn" (its newest checkpoint is), or
            "empty" (no batch trained).
        step: batches trained.
        total: batches to train; None where epochs are counted, or nothing limits the run.
        epoch: begun last, from 1.
        epochs: to train; None where batches are counted.
        monitor: the metric that decides which checkpoints are best.
        mode: "min" or "max".
        best: value of that metric.
        best_step: batches trained when it was reached.
        changed: last sign of life, seconds since 1970.
    """

    folder: Path
    name: str
    recipe: str
    state: str
    step: int
    total: int | None
    epoch: int
    epochs: int | None
    monitor: str | None
    mode: str
    best: float | None
    best_step: int | None
    changed: float

    @property
    def short_name(self) -> str:
        """The name without the recipe, where it begins with it."""
        return self.name.removeprefix(f"{self.recipe}/")


def is_run(folder: Path) -> bool:
    """Whether a folder holds what a fit writes."""
    return any((folder / name).is_file() for name in (CONFIG_NAME, CSV_NAME)) or bool(find_checkpoints(folder))


def find_runs(root: Path) -> Iterator[Path]:
    """Run folders below a folder, in no order; those within a run are its own business, links are not followed."""
    pending = [(root, 0)]
    while pending:
        folder, depth = pending.pop()
        try:
            entries = list(os.scandir(folder))
        except OSError:
            continue
        if any(entry.name in (CONFIG_NAME, CSV_NAME) or entry.name.endswith(".ckpt") for entry in entries):
            yield folder
        elif depth < _DEPTH:
            below = (entry for entry in entries if entry.is_dir(follow_symlinks=False))
            pending += [(Path(entry.path), depth + 1) for entry in below if not entry.name.startswith(".")]


def list_runs(root: Path) -> list[Run]:
    """All runs below a folder, the newest first."""
    return sorted((read_run(folder, root) for folder in find_runs(root)), key=lambda run: (-run.changed, run.name))


def find_run(name: str, root: Path) -> Path:
    """The folder of a run.

    Args:
        name: a path, a name below the root or the end of one, or `last`.

    Raises:
        ValueError: there is none, or there are several; the message lists the nearest names.
    """
    for path in (Path(name), root / name):
        if path.exists() and path.suffix == ".ckpt":
            return path.parent
        if path.is_dir():
            return path
    folders = list(find_runs(root))
    if name == "last" and folders:
        return max(folders, key=_changed)
    names = {folder.relative_to(root).as_posix(): folder for folder in folders}
    found = [known for known in sorted(names) if f"/{known}".endswith(f"/{name}")]
    if len(found) == 1:
        return names[found[0]]
    if found:
        raise ValueError(f"{name!r} is the name of {len(found)} runs below {root}: {', '.join(found[:5])}")
    if not names:
        raise ValueError(f"no run {name!r}: there is none at all below {root} (--root names another folder)")
    ends = {known.rpartition("/")[2]: known for known in names}
    near = difflib.get_close_matches(name, [*names, *ends], n=3, cutoff=0.5)
    newest = sorted(names, key=lambda known: -_changed(names[known]))
    near = list(dict.fromkeys(ends.get(each, each) for each in near)) or newest[:3]
    raise ValueError(f"no run {name!r} below {root}; did you mean {', '.join(near)}? (`zoo runs` lists them)")


def read_run(folder: Path, root: Path) -> Run:
    """One line on the run of a folder."""
    text = _text(folder / CONFIG_NAME)
    settings = {key: _setting(text, section, key) for section, key in _SETTINGS}
    monitor, mode = settings["monitor"], settings["mode"] or "min"
    checkpoints = find_checkpoints(folder)
    last_step, epoch = _last_row(folder / CSV_NAME)
    step = max([last_step + 1, *map(step_of, checkpoints)])
    total, epochs = _positive(settings["max_steps"]), _positive(settings["max_epochs"])
    best, best_step = _best(folder, monitor, mode)
    return Run(
        folder=folder,
        name=folder.relative_to(root).as_posix() if folder != root and folder.is_relative_to(root) else str(folder),
        recipe=recorded_recipe(folder / CONFIG_NAME) or _guessed_recipe(text, folder, root),
        state=_state(folder, checkpoints, step, total),
        step=step,
        total=total,
        epoch=epoch + 1,
        epochs=epochs if total is None else None,
        monitor=monitor,
        mode=mode,
        best=best,
        best_step=best_step,
        changed=_changed(folder),
    )


_SETTINGS = (("trainer", "max_steps"), ("trainer", "max_epochs"), ("checkpoints", "monitor"), ("checkpoints", "mode"))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _setting(config: str, section: str, key: str) -> str | None:
    """A plain value of a written config's section; parsing all of it takes a hundred times as long."""
    block = re.search(rf"^{section}:\n((?:[ ].*\n?|\n)*)", config, re.MULTILINE)
    found = re.search(rf"^  {key}: *(.*?) *$", block[1], re.MULTILINE) if block else None
    value = found[1].strip("'\"") if found else ""
    return None if value in ("", "null", "~") else value


def _positive(value: str | None) -> int | None:
    return int(value) if value is not None and value.isdecimal() and int(value) > 0 else None


def recorded_recipe(config: Path) -> str | None:
    """The recipe that the comment above a run's config names; None in configs written before it did."""
    for line in _text(config).splitlines():
        if not line.startswith("#"):
            break
        if line.lstrip("# ").startswith(RECIPE_MARK):
            return line.lstrip("# ").removeprefix(RECIPE_MARK).strip() or None
    return None


def _guessed_recipe(config: str, folder: Path, root: Path) -> str:
    parts = folder.relative_to(root).parts if folder.is_relative_to(root) else ()
    if len(parts) == 3:
        return "/".join(parts[:2])
    path = re.search(r"^model:\n  class_path: (\S+)", config, re.MULTILINE)
    return [*path[1].split("."), "?"][1] if path else "?"


def _changed(folder: Path) -> float:
    times = []
    for path in [folder / CSV_NAME, folder / LOG_NAME, folder / CONFIG_NAME, *folder.glob("*.ckpt")]:
        try:
            times.append(path.stat().st_mtime)
        except OSError:  # not there, or deleted in between
            continue
    return max(times, default=0.0)


def _last_row(path: Path) -> tuple[int, int]:
    """Step and epoch of the last whole row of a record; -1 and -1 without one."""
    for line in reversed(tail(path).splitlines()):
        step, _, rest = line.partition(",")
        if step.isdecimal():
            epoch = rest.partition(",")[0]
            return int(step), int(epoch) if epoch.isdecimal() else -1
    return -1, -1


def _best(folder: Path, monitor: str | None, mode: str) -> tuple[float | None, int | None]:
    if monitor is None:
        return None, None
    kept = best_checkpoint(folder, mode)
    if kept is not None and score_of(kept):  # a name has six decimals
        return score_of(kept), step_of(kept)
    points = read_curves(folder / CSV_NAME).get(monitor, [])
    if not points:
        return None, None
    step, value = (min if mode == "min" else max)(points, key=lambda point: point[1])
    return value, int(step) + 1


def _state(folder: Path, checkpoints: Sequence[Path], step: int, total: int | None) -> str:
    if is_locked(folder):
        return "running"
    if checkpoints and not _ends_whole(checkpoints[0]):
        return "torn"
    if total is not None and checkpoints and step_of(checkpoints[0]) >= total:
        return "finished"
    if (folder / LOCK_NAME).exists():
        return "killed"
    ends = list(_ENDS.finditer(tail(folder / LOG_NAME)))
    if ends:
        cause = ends[-1][1]
        return "finished" if cause is None else "stopped" if cause in _STOPS else "failed"
    return "stopped" if step else "empty"


def _ends_whole(checkpoint: Path) -> bool:
    """Whether a checkpoint's end is there, which a cut one lacks; `is_sound` reads all of it."""
    try:
        return any(checkpoint.iterdir()) if checkpoint.is_dir() else zipfile.is_zipfile(checkpoint)
    except OSError:
        return False


def checkpoints_of(folder: Path) -> list[dict[str, Any]]:
    """Name, bytes, and whether it is sound, of each checkpoint of a run; all of them are read."""
    return [{"name": path.name, "bytes": size_of(path), "sound": is_sound(path)} for path in find_checkpoints(folder)]


def size_of(path: Path) -> int:
    """Bytes of a file or of all in a folder; links count as themselves, what vanishes meanwhile as nothing."""
    if not path.is_dir():
        return path.stat().st_size if path.is_file() else 0
    total, pending = 0, [str(path)]
    while pending:
        with contextlib.suppress(OSError):
            for entry in os.scandir(pending.pop()):
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)
                else:
                    total += entry.stat(follow_symlinks=False).st_size
    return total


def read_settings(folder: Path) -> dict[str, Any]:
    """A run's config as plain values; {} where there is none that can be read."""
    try:
        content = load_yaml(_text(folder / CONFIG_NAME))
    except (ValueError, yaml.YAMLError):
        return {}
    return content if isinstance(content, dict) else {}


def flatten(config: Any, key: str = "") -> dict[str, Any]:
    """Nested values by dotted keys: `model.init_args.net.init_args.channels`.

    Returns:
        Numbers, booleans and texts; None is "null", a list of plain values its text.
    """
    if isinstance(config, Mapping) and config:
        below = ((str(name), value) for name, value in config.items())
    elif isinstance(config, list) and any(isinstance(entry, Mapping | list) for entry in config):
        below = ((str(number), value) for number, value in enumerate(config))
    else:
        plain = config if isinstance(config, bool | int | float | str) else "null" if config is None else str(config)
        return {key: plain}
    flat: dict[str, Any] = {}
    for name, part in below:
        flat |= flatten(part, f"{key}.{name}" if key else name)
    return flat


def read_curves(path: Path) -> dict[str, Points]:
    """Curves of a record (metrics.csv) by metric: (step, value) in the file's order, finite values only."""
    curves: dict[str, Points] = {}
    try:
        with path.open(newline="", encoding="utf-8", errors="replace") as file:
            add_rows(csv.DictReader(file), curves)
    except (OSError, csv.Error):
        pass
    return curves


def add_rows(rows: Iterable[dict[str, Any]], curves: dict[str, Points]) -> None:
    """Add the finite values of a record's rows to curves."""
    for row in rows:
        step = _number(row.pop("step", None))
        for key, text in row.items():
            value = _number(text) if isinstance(text, str) else None
            if key and step is not None and value is not None:
                curves.setdefault(key, []).append((step, value))


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "nan")
    except ValueError:  # the last row may be half written
        return None
    return value if math.isfinite(value) else None


def losses_of(metrics: Sequence[str]) -> list[str]:
    """The metrics worth showing first: total losses of training and validation, else the terms that there are."""
    rest = [key for key in metrics if "/" in key and not is_rate(key) and not key.startswith(_NO_LOSSES)]
    totals = [key for key in rest if key.startswith("train/") and "loss" in key and key.count("/") == 1]
    terms = [key for key in rest if key.startswith("train/")][:6]
    return [*(totals or terms), *[key for key in rest if key.startswith("val/")][:2]]


def is_rate(key: str) -> bool:
    """Whether a metric is a learning rate."""
    return key.startswith("train/lr_")


def tail(path: Path, lines: int = 60) -> str:
    """The last lines of a text file; of a progress bar's line its last state."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ""
    shown = [line.rstrip("\r").rpartition("\r")[2].rstrip() for line in text.split("\n")]
    return "\n".join([line for line in shown if line][-lines:])


def trained_seconds(folder: Path) -> float | None:
    """Seconds from the first line of train.log to the last sign of life, without the pauses before a resume."""
    found, last, seconds = list(_TIME.finditer(text := _text(folder / LOG_NAME))), None, 0.0
    for match in found:
        now = time.mktime(time.strptime(match[1], "%Y-%m-%d %H:%M:%S"))
        if last is not None and not _ENDS.search(text, last[1], match.start()):
            seconds += max(now - last[0], 0.0)
        last = now, match.start()
    if last is not None and not _ENDS.search(text, last[1]):  # running or killed: it logs values, no lines
        seconds += max(_changed(folder) - last[0], 0.0)
    return seconds if found else None


def media_of(folder: Path) -> list[Path]:
    """The step folders of a run's samples, the newest first."""
    return sorted((folder / MEDIA_NAME).glob("step_*/"), reverse=True)
