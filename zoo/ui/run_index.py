"""The runs that all pages list; a run is read again when one of its files has changed."""

from __future__ import annotations

import contextlib
import math
import os
import stat
import threading
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from zoo.common.locks import LOCK_INFO_NAME
from zoo.runs.run_folder import CONFIG_NAME, CSV_NAME, LOG_NAME
from zoo.runs.run_info import RunInfo, find_runs, path_size, read_run
from zoo.ui.folders import CONSOLE_NAME, Folders, resolve_below
from zoo.ui.processes.training_queue import (
    PROCESS_NAME,
    STOPPED_CODES,
    ProcessRecord,
    TrainingQueue,
    find_records,
    read_record,
)
from zoo.ui.run_files import LABEL_NAME, read_label

ACTIVE_STATES = ("running", "stopping", "active", "queued")
_FILES = (CONFIG_NAME, CSV_NAME, LOG_NAME, CONSOLE_NAME, PROCESS_NAME, LABEL_NAME, LOCK_INFO_NAME)
FileTimes = tuple[tuple[str, int, int], ...]


@dataclass(frozen=True)
class RunRow:
    """A run as the page lists it."""

    name: str  # of its folder below the root of the runs
    info: RunInfo
    state: str  # "queued", "running", "stopping", "active" (by a command that the page did not start), or `RunInfo`'s
    position: int | None = None  # in the queue, from 1
    label: str = ""
    size: int = 0  # bytes of the folder

    @property
    def title(self) -> str:
        """The label, or the last part of the name."""
        return self.label or self.name.rpartition("/")[2]


class _CachedRun(NamedTuple):
    times: FileTimes
    record: ProcessRecord | None
    row: RunRow  # as it is when nothing is queued or runs


class RunIndex:
    """Rows of all runs by name, the newest first."""

    def __init__(self, folders: Folders, queue: TrainingQueue) -> None:
        self.folders = folders
        self.queue = queue
        self.rows: dict[str, RunRow] = {}
        self._cache: dict[str, _CachedRun] = {}
        self._lock = threading.Lock()

    def scan(self) -> None:
        """Read what has changed in the folders of the runs; one thread at a time."""
        with self._lock:
            root, waiting, unstarted = self.folders.runs, list(self.queue.waiting), list(self.queue.launch_errors)
            folders = {*find_runs(root), *(path.parent for path in find_records(root))}
            names = {folder.relative_to(root).as_posix() for folder in folders} - {"."}
            names = {name for name in names if name.isprintable()}  # a page cannot show other bytes
            cache = {name: self._read(name) for name in {*names, *waiting, *unstarted}}
            self._cache = {name: cached for name, cached in cache.items() if cached is not None}
            rows = []
            for name, cached in self._cache.items():
                position = waiting.index(name) + 1 if name in waiting else None
                state = "queued" if position else find_state(cached.row.info, cached.record)
                state = "failed" if name in unstarted else state
                rows.append(replace(cached.row, state=state, position=position))
            rows.sort(key=lambda row: (row.state not in ACTIVE_STATES, -row.info.changed, row.name))
            self.rows = {row.name: row for row in rows}

    def _read(self, name: str) -> _CachedRun | None:
        folder, before = self.folders.runs / name, self._cache.get(name)
        try:
            resolve_below(self.folders.runs, name)
            times = _file_times(folder)
        except (OSError, ValueError) as error:  # deleted, or with what may not be read
            warnings.warn(f"{name} is not listed: {error}", stacklevel=1)  # Python shows a text once
            return None
        # a process that was killed changes no file
        if before is not None and before.times == times and before.row.info.state != "running":
            return before
        info = read_run(folder, self.folders.runs)
        row = RunRow(name, info, info.state, None, read_label(folder), path_size(folder))
        record = read_record(folder)
        changed = {file: time for file, time, _ in times}
        if record and record.exit_code is not None and changed.get(LOG_NAME, 0) > changed.get(PROCESS_NAME, math.inf):
            record = None  # a command that the page did not start has trained since
        return _CachedRun(times, record, row)


def find_state(info: RunInfo, record: ProcessRecord | None) -> str:
    """Return the state of a run that is not queued."""
    if record is not None and record.is_running():
        return "stopping" if record.stopping else "running"
    if info.state == "running":
        return "active"
    if record is not None and record.exit_code is None:  # no page saw its end
        return "failed" if info.state == "empty" else info.state
    failed = record is not None and record.exit_code not in (0, *STOPPED_CODES)
    return "failed" if failed and info.state in ("empty", "stopped", "finished") else info.state


def _file_times(folder: Path) -> FileTimes:
    """Return name, time and bytes of the files that tell about a run; ValueError for a pipe, device or link out."""
    if not folder.exists():  # queued
        return ()
    entries = [entry for entry in os.scandir(folder) if entry.name in _FILES or entry.name.endswith((".ckpt", ".lock"))]
    times = []
    for entry in entries:
        if entry.is_symlink():
            resolve_below(folder, entry.name)
        with contextlib.suppress(FileNotFoundError):  # just deleted, or a link to nothing
            status = entry.stat()
            if stat.S_IFMT(status.st_mode) not in (stat.S_IFREG, stat.S_IFDIR):  # to read it may never end
                raise ValueError(f"{entry.path} is no regular file")
            times.append((entry.name, status.st_mtime_ns, status.st_size))
    return tuple(sorted(times))
