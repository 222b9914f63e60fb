"""Trainings as processes of their own: queued, started, stopped, resumed, and found again by what lies in their folder.

Who changes a record holds the lock of the folder of runs, so that of several servers over it one starts a training, and
all together no more than are allowed at once.
"""

from __future__ import annotations

import contextlib
import glob
import logging
import math
import os
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
from filelock import FileLock, Timeout

from zoo.common.atomic_files import delete_path
from zoo.common.locks import is_locked, lock_folder
from zoo.runs.run_folder import CSV_NAME, LOG_NAME
from zoo.runs.run_info import is_run
from zoo.ui.jobs.commands import GRACE_SECONDS, PROGRAM, Commands, as_yaml, close, fit_command, let_begin
from zoo.ui.jobs.groups import ask_to_end
from zoo.ui.jobs.records import Record, find_process, identity, read_record, write_record
from zoo.ui.jobs.runs import set_aside, sweep
from zoo.ui.jobs.tied import KEPT, TIED
from zoo.ui.places import CONSOLE_NAME, RECORD_NAME, Places

log = logging.getLogger(__name__)

QUEUE_LOCK = ".zoo.queue.lock"
ACTIVE_SECONDS = 60.0
# The last is Windows' STATUS_CONTROL_C_EXIT, of a process that CTRL_BREAK reached before it took that over.
STOPPED_CODES = (143, 130, -signal.SIGTERM, -signal.SIGINT, 0xC000013A)
# In these states something writes to a run, or is going to.
BUSY = ("running", "stopping", "queued", "active")


@dataclass(frozen=True)
class Queue:
    """How trainings share the machine.

    Args:
        at_once: that run at a time, those that earlier servers or others over the same runs started included.
        most: of one session, queued or running.
        tied: whether they end with the server; else they go on, and a later server finds them.
    """

    at_once: int = 1
    most: int = 8
    tied: bool = False


@dataclass(frozen=True)
class _Child:
    process: subprocess.Popen[bytes]
    record: Record


class Trainings(Commands):
    """Starts and watches the trainings of one server.

    Args:
        secrets: names of environment variables that no child inherits.
        program: the command line in front of a command's name, Python's first.
        queue: how they share the machine.
    """

    def __init__(
        self,
        places: Places,
        secrets: Sequence[str] = (),
        program: Sequence[str] = PROGRAM,
        queue: Queue = Queue(),
    ) -> None:
        super().__init__(places, secrets, program)
        self.queue = queue
        self._server = identity(os.getpid())
        self._lock = threading.RLock()  # a FileLock lets all threads of a process in
        self._files = FileLock(places.runs / QUEUE_LOCK, thread_local=False)
        self._queue: dict[str, Record] = {}  # what this server will start, the oldest first
        self._order: list[str] = []  # of these by their turn
        self._children: dict[str, _Child] = {}
        self._read: dict[str, tuple[tuple[int, int, int], Record | None]] = {}
        self._trouble = ""
        sweep(places)

    def start(self, configs: Sequence[Path], changes: Mapping[str, Any], run: str, owner: str) -> None:
        """Begin a training in a fresh run folder, or queue it.

        Args:
            configs: the recipe and what is laid over it.
            changes: nested config values laid over those; kept in the run folder as `changes.yaml`.
            owner: the session that asks.

        Raises:
            ValueError: the session has as many trainings as it may, and the folder is gone again; or the run has begun.
            OSError: the folder cannot be written.
        """
        folder = self.places.run(run)
        with self._alone():
            if self.state(run) != "idle":
                raise ValueError(f"{run} is no fresh run")
            try:
                record = Record(owner=owner, configs=[str(config) for config in configs], changes=as_yaml(changes))
                self._enqueue(run, record)
            except ValueError:
                with contextlib.suppress(OSError):
                    folder.rmdir()
                raise

    def resume(self, run: str, owner: str) -> None:
        """Go on with a run from its newest sound checkpoint, in its own folder; or queue that.

        Raises:
            ValueError: it is running or queued, has nothing to go on from, or the session has as many as it may.
        """
        with self._alone():
            state = self.state(run)
            if state in (*BUSY, "waiting"):
                raise ValueError(f"{run} is {state}: one process at a time may write to it")
            if not self.places.checkpoints(run):
                raise ValueError(f"{run} holds no checkpoint to go on from")
            record = read_record(self.places.run(run)) or Record()
            self._enqueue(run, replace(record, owner=owner, configs=[], changes=""))

    def adopt(self, run: str, owner: str) -> None:
        """Queue again what an earlier server has queued and not started.

        Raises:
            ValueError: it is not waiting, names configs that are no recipes, or the session has as many as it may.
        """
        with self._alone():
            state, record = self.state(run), read_record(self.places.run(run))
            if state != "waiting" or record is None:
                raise ValueError(f"{run} is {state}, not waiting")
            known = {path for name in self.places.systems() for path in self.places.recipes(name).values()}
            known.update(self.places.fragments().values())
            # the record may have come with a run folder of somebody else
            if any(Path(config) not in known for config in record.configs):
                raise ValueError(f"{run} names configs that are no recipes of this zoo; start it anew")
            self._enqueue(run, replace(record, owner=owner))

    def cancel(self, run: str) -> None:
        """Take a run out of the queue, or discard what is waiting; its folder goes if nothing was trained in it.

        Raises:
            ValueError: it is neither queued nor waiting.
        """
        folder, aside = self.places.run(run), None
        with self._alone():
            state, record = self.state(run), read_record(folder)
            if state not in ("queued", "waiting") or record is None:
                raise ValueError(f"{run} is {state}, not queued")
            if not is_run(folder):
                aside = set_aside(folder)
            elif record.pid:
                write_record(folder, replace(record, queued=None, server=""))
            else:
                (folder / RECORD_NAME).unlink()
            self.tick()
        if aside is not None:
            delete_path(aside)

    def delete(self, run: str) -> None:
        """Delete a run's folder.

        Raises:
            ValueError: something writes to it or will, it is reached by a link, or there is none.
            OSError: it cannot be moved.
        """
        folder = self.places.run(run)
        with self._alone():
            state = self.state(run)
            if state in BUSY:
                raise ValueError(f"{run} is {state}: stop or cancel it first")
            if folder.resolve() != self.places.runs.resolve() / run:
                raise ValueError(f"{run} is a link to another place: delete it there")
            with lock_folder(folder, "delete"):
                aside = set_aside(folder)
        delete_path(aside)

    def stop(self, run: str) -> None:
        """Ask a run to save and to end.

        Raises:
            ValueError: no process of it runs, or it cannot be reached.
        """
        folder = self.places.run(run)
        with self._alone():
            record = read_record(folder)
            process = record.process() if record else None
            if record is None or process is None:
                raise ValueError(f"{run} has no running process that the page started")
            try:
                ask_to_end(process)
            except psutil.NoSuchProcess:  # it ended just now
                pass
            except (OSError, psutil.AccessDenied) as error:
                raise ValueError(f"{run} cannot be stopped from here ({error}): press Ctrl-C where it runs") from error
            write_record(folder, replace(record, stopping=True))

    def state(self, run: str) -> str:
        """One word on a run.

        Returns:
            "queued"; "waiting" when it was queued by a server that has ended; "running", "stopping", "finished",
            "stopped", "failed"; "ended" when nobody saw how; "active" when a process that the page did not start writes
            to it; "idle" without any process.
        """
        folder, child = self.places.run(run), self._children.get(run)
        if child is not None and child.process.poll() is not None:
            self.tick()
        record = self._record(run)
        if record is None:
            return "active" if is_locked(folder) or _written_lately(folder) else "idle"
        if record.process() is not None:
            return "stopping" if record.stopping else "running"
        if record.queued is not None and (record.server == self._server or find_process(record.server)):
            return "queued"
        if is_locked(folder):
            return "active"
        if record.queued is not None:
            return "waiting"
        code = record.exit_code
        if code is None and child is not None:  # it ended just now, or its end cannot be noted
            code = child.process.poll()
        if code is None:
            return "ended"
        return "finished" if code == 0 else "stopped" if code in STOPPED_CODES else "failed"

    def owner(self, run: str) -> str | None:
        """The session that asked for a run's last or next training; None when the page does not know."""
        self.places.run(run)
        record = self._record(run)
        return record.owner if record else None

    def position(self, run: str) -> int | None:
        """A run's place in this server's queue, from 1; None when it is not in it."""
        order = self._order
        return order.index(run) + 1 if run in order else None

    def tick(self) -> None:
        """Note which trainings have ended and start those whose turn it is; twice a second, and upon any change."""
        with self._lock:
            if not self._queue and all(child.process.poll() is None for child in self._children.values()):
                return
            try:
                with self._files.acquire(timeout=0):
                    self._reap()
                    self._begin()
                self._trouble = ""
            except Timeout:  # another server changes something: the next tick comes soon
                return
            except OSError as error:  # a full disk, say: the next tick tries again
                if str(error) != self._trouble:
                    log.warning("the queue of trainings waits: %s", error)
                self._trouble = str(error)

    def close(self) -> None:
        """End what `follow` runs, and trainings that are tied; what is queued waits for a later server."""
        super().close()
        with self._lock:
            self._queue.clear()
            self._order = []
            if self.queue.tied:
                for run in self._children:
                    with contextlib.suppress(ValueError, OSError):
                        self.stop(run)
                end = time.monotonic() + GRACE_SECONDS
                for child in self._children.values():
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        child.process.wait(max(end - time.monotonic(), 0.0))
            self.tick()

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep other threads and other servers from changing records.

        Raises:
            ValueError: another server does not let go.
        """
        with self._lock:
            try:
                self._files.acquire(timeout=GRACE_SECONDS)
            except Timeout as error:
                raise ValueError("another server holds the queue of these runs; try again") from error
            try:
                yield
            finally:
                self._files.release()

    def _record(self, run: str) -> Record | None:
        """A run's record, not read again while it stays as it is."""
        folder = self.places.runs / run
        try:
            status = (folder / RECORD_NAME).stat()
        except OSError:
            self._read.pop(run, None)
            return None
        mark = (status.st_ino, status.st_mtime_ns, status.st_size)
        known = self._read.get(run)
        if known is None or known[0] != mark:
            known = self._read[run] = (mark, read_record(folder))
        return known[1]

    def _records(self) -> dict[str, Record]:
        """The records of all runs."""
        runs = {str(Path(path).parent) for path in glob.glob(f"*/*/*/{RECORD_NAME}", root_dir=self.places.runs)}
        self._read = {run: known for run, known in list(self._read.items()) if run in runs}
        found = {run: self._record(run) for run in runs}
        return {run: record for run, record in found.items() if record is not None}

    def _running(self, records: Mapping[str, Record]) -> dict[str, Record]:
        """What runs, also what has lost its record; a run that a link shows again counts once."""
        found = {run: each for run, each in records.items() if each.process()}
        found |= {run: child.record for run, child in self._children.items()}
        once = {record.pid: run for run, record in found.items()}
        return {run: found[run] for run in once.values()}

    def _enqueue(self, run: str, record: Record) -> None:
        records = self._records()
        running = self._running(records)
        queued = {each for each, entry in records.items() if entry.queued is not None and find_process(entry.server)}
        mine = [each for each in {*running, *queued} if {**running, **records}[each].owner == record.owner]
        if len(mine) >= self.queue.most:
            raise ValueError(
                f"{len(mine)} trainings of this session are queued or running, as many as it may have "
                "(--max_trainings); wait for one, or cancel one"
            )
        record = replace(record, queued=time.time(), server=self._server)
        write_record(self.places.run(run), record)
        self._queue[run] = record
        self.tick()

    def _reap(self) -> None:
        for run, child in list(self._children.items()):
            code = child.process.poll()
            if code is None:
                continue
            with contextlib.suppress(ValueError):  # its folder is gone
                folder = self.places.run(run)
                record = read_record(folder) or child.record
                if record.pid == child.record.pid:
                    write_record(folder, replace(record, exit_code=code))
            close(child.process.stdin)
            del self._children[run]

    def _begin(self) -> None:
        """Start what may run now: of the session with the fewest running, of equals that served longest ago."""
        records = self._records()
        for run in list(self._queue):
            found = records.get(run)
            if found is None or found.queued is None or found.server != self._server:  # cancelled, deleted or adopted
                del self._queue[run]
        running = self._running(records)
        order = self._by_turn(running, records)
        for run in order[: max(self.queue.at_once - len(running), 0)]:
            self._spawn(run, self._queue[run])
            del self._queue[run]
        self._order = [run for run in order if run in self._queue]

    def _by_turn(self, running: Mapping[str, Record], records: Mapping[str, Record]) -> list[str]:
        counts = Counter(record.owner for record in running.values())
        served = {record.owner: record.started for record in sorted(records.values(), key=lambda each: each.started)}
        left, order = dict(self._queue), []
        while left:
            owners = {run: record.owner for run, record in left.items()}
            run = min(left, key=lambda run: (counts[owners[run]], served.get(owners[run], 0.0)))  # of equals the oldest
            counts[owners[run]] += 1
            served[owners[run]] = math.inf
            del left[run]
            order.append(run)
        return order

    def _spawn(self, run: str, record: Record) -> None:
        folder = self.places.runs / run
        begun = replace(record, queued=None, server="", configs=[], changes="", exit_code=None, stopping=False)
        try:
            if record.configs:
                args = [
                    *fit_command(record.configs, record.changes, folder),
                    f"--trainer.default_root_dir={folder}",
                ]
            else:
                args = ["fit", "--ckpt_path", str(folder)]
            with (folder / CONSOLE_NAME).open("ab") as console:
                child = self._launch(args, console, subprocess.STDOUT)
        except (OSError, ValueError) as error:  # ValueError: changes of an adopted record that are no text
            with (folder / CONSOLE_NAME).open("a", encoding="utf-8") as console:
                console.write(f"zoo: error: the training cannot be started: {error}\n")
            write_record(folder, replace(begun, exit_code=1))
            return
        try:
            begun = replace(begun, pid=child.pid, birth=identity(child.pid), started=time.time())
            write_record(folder, replace(begun, command=[*self._program, *args]))
        except BaseException:
            child.kill()
            child.wait()
            close(child.stdin)
            raise
        self._children[run] = _Child(child, begun)
        let_begin(child.stdin, TIED if self.queue.tied else KEPT)
        if not self.queue.tied:
            close(child.stdin)


def _written_lately(folder: Path) -> bool:
    times = [(folder / name).stat().st_mtime for name in (CSV_NAME, LOG_NAME) if (folder / name).is_file()]
    return any(abs(time.time() - each) < ACTIVE_SECONDS for each in times)
