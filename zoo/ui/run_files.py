"""The files of a run: its log, why it failed, how fast it is, its samples and label; deletion."""

from __future__ import annotations

import csv
import re
import time
from itertools import islice
from pathlib import Path

from zoo.common.atomic_files import delete_path, temporary_path, write_atomic
from zoo.common.locks import is_locked, lock_folder
from zoo.runs.checkpoints import find_checkpoints
from zoo.runs.run_folder import LOG_NAME, MEDIA_NAME
from zoo.runs.run_info import find_runs, sample_folders, tail_lines
from zoo.ui.folders import CONSOLE_NAME, MEDIA_TYPES, Folders
from zoo.ui.processes.training_queue import read_record

LABEL_NAME = "label.txt"
EXPORTS_NAME = "exports"
MAX_LABEL, MAX_LABEL_BYTES = 64, 1024  # characters that are shown, bytes that are read
LOG_LINES = 200
MAX_ROWS, MAX_CELL = 100, 2000  # rows of a table, characters of a cell
_PROGRESS = "progress: step "
_ERROR = "zoo: error: "
_TRACEBACK = re.compile(r"^Traceback \(most recent call last\):\n(?:[ \t].*\n|\n)+(\w.*)$", re.MULTILINE)
_EXCEPTION = re.compile(r"^[\w.]*(?:Error|Exception|Interrupt)\b.*", re.MULTILINE)
Table = tuple[list[str], list[list[str]]]


def read_log(run: Path, failed: bool) -> str:
    """Return the end of train.log; of the console where there is no log, and both of a run that failed."""
    log, console = tail_lines(run / LOG_NAME, LOG_LINES), tail_lines(run / CONSOLE_NAME, 20)
    if not log:
        return console
    return f"{log}\n\n--- console ---\n{console}" if failed and console else log


def failure_reason(run: Path) -> str:
    """Return the error of the command, the exception of the last traceback, or that of train.log, in one line."""
    record = read_record(run)
    console = tail_lines(run / CONSOLE_NAME, LOG_LINES, record.console_start if record else 0)
    errors = [line for line in console.splitlines() if line.startswith(_ERROR)]
    if errors:
        return errors[-1].removeprefix(_ERROR)
    if tracebacks := _TRACEBACK.findall(console):
        return str(tracebacks[-1])
    exceptions = _EXCEPTION.findall(tail_lines(run / LOG_NAME, LOG_LINES).rpartition("ended by ")[2])
    return exceptions[-1] if exceptions else ""


def training_speed(run: Path) -> str:
    """Return batches a second and the time left from the newest line of progress in train.log, "" without one.

    Lines of a process before the one that the page started do not count.
    """
    record = read_record(run)
    start = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.create_time if record else 0.0))
    text = tail_lines(run / LOG_NAME, LOG_LINES)
    lines = [line for line in text.splitlines() if _PROGRESS in line and line >= start]
    parts = lines[-1].split(_PROGRESS)[1].split(" · validation ")[0].split(" · ") if lines else []
    return " · ".join(part for part in parts if part.endswith((" it/s", " s/it")) or part.startswith("ETA "))


def sample_steps(run: Path) -> list[str]:
    """List the names of the step folders of a run's samples, the oldest first."""
    folders = [folder for folder in reversed(sample_folders(run)) if re.fullmatch(r"step_\d+", folder.name)]
    return [folder.name for folder in folders if folder.resolve().is_relative_to(run.resolve())]


def sample_files(run: Path, step: str) -> tuple[list[str], dict[str, Table]]:
    """List the audio files and pictures of a step, audio first, and read its tables by name; links are left out."""
    names, tables = [], {}
    for path in sorted((run / MEDIA_NAME / step).glob("*")):
        if path.is_symlink() or not path.is_file() or not path.name.isprintable():  # a page cannot show other bytes
            continue
        if path.suffix.lower() in MEDIA_TYPES:
            names.append(path.name)
        elif path.suffix == ".csv":
            tables[path.stem] = read_csv_table(path)
    return sorted(names, key=lambda name: not is_audio(name)), tables


def read_csv_table(path: Path) -> Table:
    """Read the columns and first rows of a csv file; long cells are cut."""
    try:
        with path.open(newline="", encoding="utf-8", errors="replace") as file:
            rows = [[cell[:MAX_CELL] for cell in row] for row in islice(csv.reader(file), MAX_ROWS + 1)]
    except (OSError, csv.Error):
        rows = []
    return (rows[0], rows[1:]) if rows else ([], [])


def is_audio(name: str) -> bool:
    """Tell whether a browser plays a file."""
    return MEDIA_TYPES[Path(name).suffix.lower()].startswith("audio/")


def read_label(folder: Path) -> str:
    """Read a run folder's label; "" where there is none that can be read."""
    try:
        with (folder / LABEL_NAME).open("rb") as file:
            text = file.read(MAX_LABEL_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
    return " ".join(text.split())[:MAX_LABEL]


def write_label(folder: Path, label: str) -> None:
    """Write a run folder's label."""
    write_atomic(folder / LABEL_NAME, lambda file: file.write(label.encode()))


def delete_run(folders: Folders, run: str) -> None:
    """Delete a run's folder; ValueError when a command writes into it, it holds runs or is a link, or there is none."""
    folder = folders.run(run)
    if folder.resolve() != folders.runs.resolve() / run:
        raise ValueError(f"{run} is a link: delete its folder where it is")
    runs = [each for path in folder.iterdir() if path.is_dir() for each in find_runs(path)]
    # W&B's folders have a config.yaml as well
    inner = [each for each in runs if find_checkpoints(each) or is_locked(each)]
    if inner:
        raise ValueError(f"{run} holds another run: {inner[0].relative_to(folder)}; move or delete its folder first")
    with lock_folder(folder, "delete"):
        hidden = temporary_path(folder)  # no half of it is listed while it is deleted
        folder.rename(hidden)
    delete_path(hidden)
