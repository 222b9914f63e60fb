"""What all open pages show of runs and of this machine, read once for all of them."""

from __future__ import annotations

import asyncio
import logging
import os
import stat
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from zoo.common.atomic_files import LOCK_NAME, TEMPORARY_MARK
from zoo.common.locks import LOCK_INFO_NAME, is_locked
from zoo.runs.run_folder import CONFIG_NAME, CSV_NAME, LOG_NAME
from zoo.runs.run_info import RunInfo, read_run
from zoo.ui.curves import Metrics
from zoo.ui.jobs.runs import NOTES_NAME, read_notes, size
from zoo.ui.jobs.trainings import Trainings
from zoo.ui.places import CONSOLE_NAME, RECORD_NAME, Places, check_name
from zoo.ui.readings import Load, machine_load

SCAN_SECONDS = 0.5
LOAD_SECONDS = 2.0
CLOSED_SECONDS = 5.0  # between two scans while no page is open
SHARE = 0.04  # of a core that scanning may take; then its turns come later
COSTLY_SECONDS = 0.02  # a record that takes longer is read less often
SIZE_SECONDS = 30.0  # a run that grows is measured again after so long
_SIZES_SECONDS = 0.01  # of a turn
_SETTLED_NS = 50_000_000  # two writes within a tick of the file system's clock leave one time
_SHOWN = (CONFIG_NAME, CSV_NAME, CONSOLE_NAME, RECORD_NAME)  # a folder with one of these, or a checkpoint, is listed
_READ = (*_SHOWN, LOG_NAME, NOTES_NAME, LOCK_NAME, LOCK_INFO_NAME)
# without a process that could change them: they stay what they are until a file changes
QUIET = ("finished", "stopped", "failed", "ended", "idle")
log = logging.getLogger(__name__)

Marks = tuple[tuple[str, int, int, int], ...]


@dataclass(frozen=True)
class Row:
    """A run as the page lists it.

    Args:
        name: `<system>/<recipe>/<time>`.
        state: of its process, see `Trainings.state`.
        run: what its folder says.
        owner: the session that started it; None for the command line.
        position: in the queue, from 1; None when it is not queued.
        size: bytes of its folder; None until it was measured.
    """

    name: str
    state: str
    run: RunInfo
    owner: str | None = None
    position: int | None = None
    label: str | None = None
    tags: tuple[str, ...] = ()
    size: int | None = None

    @property
    def word(self) -> str:
        """The state in one word; where no process is known, what the folder says."""
        ended = self.state == "active" and self.run.state in ("finished", "failed")  # its files are still fresh
        return self.run.state if ended or self.state in ("idle", "ended") else self.state


@dataclass
class _Known:
    """A row, and what its folder and the files in it were when it was read."""

    row: Row
    folder: tuple[int, int]
    marks: Marks
    read_at: float
    cost: float
    measured: Marks = ()
    measured_at: float = 0.0


@dataclass
class Board:
    """Rows of all runs, the newest first, and the load of the machine; kept up to date while the server runs.

    A folder is read again when one of its files has changed. Where no process writes, a new, renamed or deleted file is
    seen at once, by the folder's time; one that somebody edits in place, with every eighth scan.

    Args:
        pages: the open pages; without one there is less to do.
        every: all files of a quiet folder are looked at with each so many scans.
    """

    places: Places
    trainings: Trainings
    pages: Collection[str] = ()
    every: int = 8
    metrics: Metrics = field(default_factory=Metrics)
    rows: dict[str, Row] = field(default_factory=dict)
    loads: list[Load] = field(default_factory=list)
    version: int = 0
    """Counts the changes of `rows`."""
    _known: dict[str, _Known] = field(default_factory=dict)
    _turn: int = 0
    _lock: Any = field(default_factory=threading.Lock)

    async def watch(self) -> None:
        """Read again and again; what cannot be read is told in the log and is no reason to end."""
        said = ""
        scanned = loaded = pause = 0.0
        while True:
            now = time.monotonic()
            try:
                await asyncio.to_thread(self.trainings.tick)
                if now - scanned >= (max(pause - SCAN_SECONDS, 0.0) if self.pages else CLOSED_SECONDS):
                    used = await asyncio.to_thread(self._timed_scan)
                    scanned, pause = time.monotonic(), used / SHARE
                if self.pages and now - loaded >= LOAD_SECONDS:
                    self.loads = await asyncio.to_thread(machine_load)
                    loaded = now
            except Exception as error:  # whatever lies in a folder: the page goes on
                if said != (said := f"{type(error).__name__}: {error}"):
                    log.warning("the runs could not be read: %s", said)
            await asyncio.sleep(SCAN_SECONDS)

    def _timed_scan(self) -> float:
        began = time.thread_time()
        self.scan()
        return time.thread_time() - began

    def scan(self) -> None:
        """Look at all runs once and read what has changed."""
        with self._lock:
            self._turn += 1
            known: dict[str, _Known] = {}
            first, published = not self._known, time.monotonic()
            for index, (name, folder) in enumerate(self._folders()):
                try:
                    look = self._look(name, folder, index)
                    if look is not None:
                        known[name] = look
                except (ValueError, OSError):  # deleted just now; of a run that is there a file was, say a checkpoint
                    if name in self._known and folder.is_dir():
                        known[name] = self._known[name]
                if first and time.monotonic() > published + SCAN_SECONDS:  # many runs: some of them now
                    self._publish(known)
                    published = time.monotonic()
            self._known = known
            self._measure()
            self._publish(known)

    def _publish(self, known: Mapping[str, _Known]) -> None:
        order = sorted(known, key=lambda name: (-known[name].row.run.changed, name))
        rows = {name: known[name].row for name in order}
        if list(rows.items()) != list(self.rows.items()):
            self.rows = rows
            self.version += 1

    def _folders(self) -> Iterator[tuple[str, Path]]:
        """Folders that may hold a run, by name; links are followed within `runs` only."""
        root = self.places.runs.resolve()
        pending: list[tuple[Path, tuple[str, ...]]] = [(root, ())]
        while pending:
            folder, parts = pending.pop()
            try:
                entries = list(os.scandir(folder))
            except OSError:
                continue
            for entry in entries:
                try:
                    below = (*parts, check_name(entry.name))
                    inside = not entry.is_symlink() or Path(entry.path).resolve().is_relative_to(root)
                    if not (inside and entry.is_dir()):
                        continue
                except (ValueError, OSError):
                    continue
                if len(below) < 3:
                    pending.append((Path(entry.path), below))
                else:
                    yield "/".join(below), self.places.runs.joinpath(*below)

    def _look(self, name: str, folder: Path, index: int) -> _Known | None:
        former, status = self._known.get(name), os.stat(folder)
        mark = (status.st_mtime_ns, status.st_ino)
        if (
            former is not None
            and former.folder == mark
            and former.row.state in QUIET
            and former.row.run.state != "running"
            and abs(former.read_at * 1e9 - status.st_mtime_ns) > _SETTLED_NS
            and (self._turn + index) % self.every
        ):
            return former
        marks = _marks(folder)
        if not marks:
            return None
        if former is None:
            return self._read(name, folder, mark, marks, None)
        row, now = former.row, time.time()
        changed = marks != former.marks
        unsettled = any(abs(former.read_at * 1e9 - each[1]) < _SETTLED_NS for each in marks)
        left = row.run.state == "running" and not is_locked(folder)  # no file tells that a lock's holder was killed
        early = former.cost > COSTLY_SECONDS and now - former.read_at < former.cost / SHARE
        if (changed or unsettled or left) and not early:
            return self._read(name, folder, mark, marks, former)
        if changed or row.state not in QUIET:
            former.row = self._with_process(row)
        if not changed and now * 1e9 - mark[0] > _SETTLED_NS:
            former.folder = mark
        return former

    def _read(self, name: str, folder: Path, mark: tuple[int, int], marks: Marks, former: _Known | None) -> _Known:
        read_at, began = time.time(), time.thread_time()
        run, notes = read_run(folder, self.places.runs), read_notes(folder)
        cost = time.thread_time() - began
        row = self._with_process(
            Row(name, "", run, label=notes.label, tags=notes.tags, size=former.row.size if former else None)
        )
        folder.stat()  # one that vanished meanwhile was read as an empty one
        row = former.row if former is not None and former.row == row else row
        known = _Known(row, mark, marks, read_at, cost)
        return replace(known, measured=former.measured, measured_at=former.measured_at) if former else known

    def _with_process(self, row: Row) -> Row:
        state = self.trainings.state(row.name)
        position = self.trainings.position(row.name) if state in ("queued", "waiting") else None
        owner = self.trainings.owner(row.name)
        return (
            row
            if (state, position, owner) == (row.state, row.position, row.owner)
            else replace(row, state=state, position=position, owner=owner)
        )

    def _measure(self) -> None:
        """Sizes of some folders that have changed, those that wait longest first."""
        now = time.time()
        waiting = [
            known
            for known in self._known.values()
            if known.measured != known.marks and now - known.measured_at > SIZE_SECONDS
        ]
        end = time.monotonic() + _SIZES_SECONDS
        for known in sorted(waiting, key=lambda known: known.measured_at):
            known.measured, known.measured_at = known.marks, now
            try:
                measured = size(self.places, known.row.name)
            except (ValueError, OSError):
                continue
            known.row = known.row if known.row.size == measured else replace(known.row, size=measured)
            if time.monotonic() > end:
                break


def _marks(folder: Path) -> Marks:
    """Name, time, bytes and identity of each file that a row is made of; () where there is no run."""
    found, listed = [], False
    for entry in os.scandir(folder):
        checkpoint = entry.name.endswith(".ckpt") and TEMPORARY_MARK not in entry.name
        if checkpoint or entry.name in _READ:
            try:
                status = entry.stat()
            except OSError:
                continue
            listed |= checkpoint or (entry.name in _SHOWN and stat.S_ISREG(status.st_mode))
            found.append((entry.name, status.st_mtime_ns, status.st_size, status.st_ino))
    return tuple(sorted(found)) if listed else ()
