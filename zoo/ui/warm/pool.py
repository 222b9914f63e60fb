"""Trained systems that stay loaded: one process for each, few at a time, and a line of who waits for them.

    workers = Workers(places)
    for event in workers.ask(run, "", {"input": upload, "seed": 1}, folder, session):
        ...  # Progress (waiting, loading, computing), and at the end one Finished or Failed

Every call blocks; a page makes it in a thread. Whoever stops to iterate cancels.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import psutil

from zoo.common.journal import load_json
from zoo.common.registry import allowed_packages
from zoo.runs.inference.forms import FILE_FIELDS, FILE_OUTPUTS, InputField, Output, read_form
from zoo.ui.jobs.commands import child_environment
from zoo.ui.jobs.groups import kill_group, own_group
from zoo.ui.places import Places

PROGRAM = (sys.executable, "-m", "zoo.ui.warm.worker")
NEWEST = ""  # in the place of a checkpoint's name: the newest sound one
JOB_SECONDS = 300.0
LOAD_SECONDS = 120.0
POLL_SECONDS = 0.25
GRACE_SECONDS = 5.0  # in which those that nobody waits for any more are let go
PLACES_IN_LINE = 4  # that one owner may have
MIB = 2**20
_LONGEST_LINE = 2**24  # bytes that a worker may say at once
_KEPT_FIELDS = 64


@dataclass(frozen=True)
class Progress:
    """How far a request is.

    Args:
        fraction: 0 to 1 of the computation; 0 while it waits or loads.
        text: a few words.
        token: names the request, for `Workers.cancel`.
        position: in the line, 1 is the next; 0 once it is its turn.
    """

    fraction: float
    text: str
    token: str
    position: int = 0


@dataclass(frozen=True)
class Finished:
    """The answer.

    Args:
        parts: files are named as they lie in the request's folder.
        seconds: that the computation took.
    """

    parts: tuple[Output, ...]
    seconds: float


@dataclass(frozen=True)
class Failed:
    """Why there is no answer, in one line."""

    error: str
    cancelled: bool = False


@dataclass(frozen=True)
class Warm:
    """One worker, as a list shows it.

    Args:
        checkpoint: "" for the newest.
        state: "loading", "busy" or "idle".
        idle_seconds: since its last request.
        owner: of the present request; "" without one.
    """

    run: str
    checkpoint: str
    memory_mib: float
    state: str
    idle_seconds: float
    owner: str


Event = Progress | Finished | Failed
_Key = tuple[str, str]
_Stamp = tuple[str, int, int, int]


class _RefusedError(Exception):
    """Ends a request with a line for its owner."""

    def __init__(self, text: str, cancelled: bool = False) -> None:
        super().__init__(text)
        self.cancelled = cancelled


@dataclass(eq=False)
class _Request:
    key: _Key
    owner: str
    token: str
    worker: _Worker | None = None  # once it is its turn
    cancelled: bool = False
    whole: bool = True  # no answer is under way


@dataclass(eq=False)
class _Worker:
    key: _Key
    stamp: _Stamp
    child: subprocess.Popen[bytes]
    errors: IO[bytes]
    lines: queue.SimpleQueue[bytes | None] = field(default_factory=queue.SimpleQueue)
    fields: tuple[InputField, ...] | None = None
    request: _Request | None = None
    used: float = field(default_factory=time.monotonic)

    def read(self) -> None:
        """Take in what the child says, until it says no more."""
        assert self.child.stdout is not None
        with contextlib.suppress(OSError, ValueError):
            while line := self.child.stdout.readline(_LONGEST_LINE):
                self.lines.put(line)
            self.child.stdout.close()
        self.lines.put(None)

    def memory(self) -> int:
        """Bytes that the process holds; 0 when it is gone."""
        try:
            return psutil.Process(self.child.pid).memory_info().rss
        except psutil.Error:
            return 0

    def tell(self, line: Mapping[str, Any]) -> None:
        """Send a line of JSON."""
        assert self.child.stdin is not None
        self.child.stdin.write(json.dumps(line).encode() + b"\n")
        self.child.stdin.flush()

    def ended(self) -> str:
        """Why it ended by itself, in one line."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.child.wait(5.0)
        code = self.child.returncode
        if code is not None and code < 0:
            name = signal.Signals(-code).name
            return f"the process that computes was ended by {name}" + (" (out of memory?)" if -code == 9 else "")
        size = self.errors.seek(0, os.SEEK_END)
        self.errors.seek(max(size - 4096, 0))
        lines = [line.strip() for line in self.errors.read().decode("utf-8", "replace").splitlines()]
        last = next((line for line in reversed(lines) if line), "it said nothing")
        return f"the process that computes ended: {last[:300]}"

    def end(self) -> None:
        """Kill the process and what it started."""
        kill_group(self.child.pid)
        self.child.wait()
        for file in (self.child.stdin, self.errors):
            assert file is not None
            with contextlib.suppress(OSError):
                file.close()


class Workers:
    """The workers of one server.

    Args:
        secrets: names of environment variables that no worker inherits.
        limit: workers at a time.
        memory_mib: a worker that holds more ends after its request; one that holds twice as much is ended at once.
        idle_seconds: after so many without a request a worker ends.
        program: the command line of a worker.
        device: where they compute; a GPU if there is one.
        job_seconds: that a request may take.
    """

    def __init__(
        self,
        places: Places,
        secrets: Sequence[str] = (),
        limit: int = 2,
        memory_mib: int = 4096,
        idle_seconds: float = 300.0,
        program: Sequence[str] = PROGRAM,
        job_seconds: float = JOB_SECONDS,
        device: str | None = None,
    ) -> None:
        self.places = places
        self.limit = limit
        self.memory_mib = memory_mib
        self.idle_seconds = idle_seconds
        self.job_seconds = job_seconds
        self.device = device
        self._program = list(program)
        self._environment = child_environment(secrets)
        self._workers: list[_Worker] = []
        self._line: list[_Request] = []
        self._fields: dict[tuple[_Key, _Stamp], tuple[InputField, ...]] = {}
        self._changed = threading.Condition()
        self._closed = False
        threading.Thread(target=self._keep_house, name="warm workers", daemon=True).start()

    def fields(self, run: str, checkpoint: str = NEWEST) -> tuple[InputField, ...]:
        """What a person may give to this run; loads it where that is not known yet.

        Raises:
            ValueError: there is no such run or checkpoint, or it cannot be loaded.
        """
        key = (run, checkpoint)
        known = self._fields.get((key, self._stamp(key)))
        if known is not None:
            return known
        request = _Request(key, "", secrets.token_hex(8))
        try:
            for _ in self._turn(request):
                pass
            assert request.worker is not None and request.worker.fields is not None
            return request.worker.fields
        except _RefusedError as error:
            raise ValueError(str(error)) from error
        finally:
            self._leave(request)

    def ask(
        self, run: str, checkpoint: str, values: Mapping[str, Any], folder: Path, owner: str, token: str | None = None
    ) -> Iterator[Event]:
        """Have something computed; when the iteration ends early, the computation ends too.

        Args:
            values: for the run's fields; files as paths below `places.temp`.
            folder: for the files of the answer, below `places.temp`; it is there and empty.
            owner: who asks; may hold a few places in the line.
            token: a name for `cancel`; a new one by default, which every `Progress` tells.

        Yields:
            Progress, whenever there is some, and at the end one Finished or Failed.
        """
        request = _Request((run, checkpoint), owner, token or secrets.token_hex(8))
        try:
            yield from self._turn(request)
            yield from self._compute(request, values, folder)
        except _RefusedError as error:
            yield Failed(str(error), error.cancelled)
        finally:
            self._leave(request)

    def cancel(self, token: str) -> bool:
        """End a request, whether it waits or is being computed; False when there is none of that name."""
        with self._changed:
            found = [each for each in self._requests() if each.token == token]
            for request in found:
                request.cancelled = True
                if request.worker is not None:
                    self._end(request.worker)
            self._changed.notify_all()
        return bool(found)

    def list(self) -> tuple[Warm, ...]:
        """All workers."""
        with self._changed:
            now = time.monotonic()
            return tuple(
                Warm(
                    *worker.key,
                    round(worker.memory() / MIB, 1),
                    "loading" if worker.fields is None else "busy" if worker.request else "idle",
                    0.0 if worker.request else now - worker.used,
                    worker.request.owner if worker.request else "",
                )
                for worker in self._workers
            )

    def close(self) -> None:
        """End all workers and refuse further requests."""
        with self._changed:
            self._closed = True
            for worker in tuple(self._workers):
                self._end(worker)
            self._changed.notify_all()

    def _requests(self) -> Iterator[_Request]:
        yield from self._line
        yield from (worker.request for worker in self._workers if worker.request is not None)

    def _stamp(self, key: _Key) -> _Stamp:
        """What changes when a run is trained on or replaced.

        Raises:
            ValueError: there is no such run or checkpoint.
        """
        run, checkpoint = key
        try:
            if not checkpoint:
                names = self.places.checkpoints(run)
                if not names:
                    raise ValueError(f"{run} holds no checkpoint yet")
                checkpoint = names[0]
            path = self.places.checkpoint(run, checkpoint)
            found = path.stat()
        except OSError as error:
            raise ValueError(f"{run}: {checkpoint} is there no more") from error
        return str(path), found.st_mtime_ns, found.st_size, found.st_ino

    def _turn(self, request: _Request) -> Iterator[Progress]:
        """Wait in the line, then until the worker has loaded; afterwards the request has its worker."""
        with self._changed:
            mine = sum(each.owner == request.owner for each in self._line)
            if request.owner and mine >= PLACES_IN_LINE:
                raise _RefusedError(f"you have {mine} requests in the line already; wait for one of them")
            self._line.append(request)
        told = 0
        while True:
            with self._changed:
                self._serve_line()
                self._check_wanted(request)
                if request.worker is not None:
                    break
                position = self._line.index(request) + 1
                if position == told:
                    self._changed.wait(1.0)
                    continue
            told = position
            yield Progress(0.0, f"waiting, number {position} in the line", request.token, position)
        if request.worker.fields is None:
            yield Progress(0.0, "loading the model", request.token)
            self._load(request, request.worker)

    def _serve_line(self) -> None:
        """Give a worker to everybody in the line who can have one, in the order of the line."""
        for request in tuple(self._line):
            with contextlib.suppress(ValueError):  # whose run is gone finds out on its own
                worker = self._free_worker(request.key, self._stamp(request.key))
                if worker is not None:
                    self._line.remove(request)
                    request.worker, worker.request = worker, request
                    self._changed.notify_all()

    def _free_worker(self, key: _Key, stamp: _Stamp) -> _Worker | None:
        """The run's worker, or a new one; None when it is busy, or all places are taken by others that are."""
        idle = sorted((each for each in self._workers if each.request is None), key=lambda each: each.used)
        for worker in self._workers:
            if worker.key == key and (worker not in idle or self._is_current(worker, stamp)):
                return worker if worker in idle else None
        for worker in [each for each in idle if each.key == key] or idle:
            if worker.key == key or len(self._workers) >= self.limit:
                self._end(worker)
        if len(self._workers) >= self.limit:
            return None
        worker = self._spawn(key, stamp)
        self._workers.append(worker)
        return worker

    def _spawn(self, key: _Key, stamp: _Stamp) -> _Worker:
        errors = tempfile.TemporaryFile(dir=self.places.temp)
        run, checkpoint = key
        path = self.places.checkpoint(run, checkpoint) if checkpoint else self.places.run(run)
        child = subprocess.Popen(
            self._program,
            cwd=self.places.work,
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            **own_group(),
        )
        worker = _Worker(key, stamp, child, errors)
        threading.Thread(target=worker.read, daemon=True).start()
        with contextlib.suppress(OSError):  # it ended already; what it said is read later
            order = {"path": str(path), "temp": str(self.places.temp), "allow_import": allowed_packages()}
            worker.tell({**order, "device": self.device})
        return worker

    def _load(self, request: _Request, worker: _Worker) -> None:
        line = next(self._lines(request, worker, LOAD_SECONDS))
        if "failed" in line:
            raise _RefusedError(str(line["failed"]))
        with _understanding():
            worker.fields = tuple(InputField(**row) for row in line["fields"])
        with self._changed:
            if len(self._fields) >= _KEPT_FIELDS:
                self._fields.clear()
            self._fields[worker.key, worker.stamp] = worker.fields

    def _compute(self, request: _Request, values: Mapping[str, Any], folder: Path) -> Iterator[Event]:
        worker = request.worker
        assert worker is not None and worker.fields is not None
        try:
            values = self._sent(worker.fields, values)
            self._own(folder)
        except ValueError as error:
            yield Failed(str(error))
            return
        yield Progress(0.0, "computing", request.token)
        request.whole = False
        with contextlib.suppress(OSError, ValueError):  # it ended; reading says how
            worker.errors.truncate(0)
            worker.tell({"values": values, "folder": str(folder)})
        for line in self._lines(request, worker, self.job_seconds):
            with _understanding():
                event = _event(line, request.token, folder)
            request.whole = not isinstance(event, Progress)
            yield event
            if request.whole:
                return

    def _sent(self, declared: Sequence[InputField], values: Mapping[str, Any]) -> dict[str, Any]:
        """The values as JSON holds them."""
        result = read_form(declared, values)
        for each in declared:
            if each.kind in FILE_FIELDS and result[each.name] is not None:
                result[each.name] = str(self._own(result[each.name]))
        return result

    def _own(self, path: Path) -> Path:
        if not path.is_absolute() or not path.resolve().is_relative_to(self.places.temp.resolve()):
            raise ValueError(f"{path.name[:60]} is no file of this page")
        return path

    def _lines(self, request: _Request, worker: _Worker, seconds: float) -> Iterator[dict[str, Any]]:
        """What the worker says; the request ends when it takes too long, and as `_heard` says."""
        end = time.monotonic() + seconds
        while True:
            line = self._heard(request, worker, POLL_SECONDS)
            if time.monotonic() > end:
                raise _too_late(seconds)
            if line is not None:
                yield line

    def _heard(self, request: _Request, worker: _Worker, seconds: float) -> dict[str, Any] | None:
        """What the worker says within so long; the request ends when it says nonsense, takes too much, or dies."""
        line: bytes | None = b""
        with contextlib.suppress(queue.Empty):
            line = worker.lines.get(timeout=seconds)
        self._check_wanted(request)
        if line is None:
            raise _RefusedError(worker.ended())
        if worker.memory() > 2 * self.memory_mib * MIB:
            raise _RefusedError(f"it took more than {2 * self.memory_mib} MiB and was ended: ask for less")
        if not line:
            return None
        with _understanding():
            return dict(load_json(line))

    def _check_wanted(self, request: _Request) -> None:
        if request.cancelled:
            raise _RefusedError("cancelled", cancelled=True)
        if self._closed:
            raise _RefusedError("the page has ended", cancelled=True)
        if request.worker is None:
            try:
                self._stamp(request.key)
            except ValueError as error:
                raise _RefusedError(str(error)) from error

    def _leave(self, request: _Request) -> None:
        """Take a request out; a worker that has not answered to the end goes with it."""
        with self._changed:
            if request in self._line:
                self._line.remove(request)
            worker = request.worker
            if worker is not None and worker in self._workers:
                worker.request, worker.used = None, time.monotonic()
                if not request.whole or worker.fields is None or worker.memory() > self.memory_mib * MIB:
                    self._end(worker)
            self._changed.notify_all()

    def _end(self, worker: _Worker) -> None:
        if worker in self._workers:
            self._workers.remove(worker)
            worker.end()

    def _is_current(self, worker: _Worker, stamp: _Stamp) -> bool:
        return worker.stamp == stamp and worker.child.poll() is None

    def _keep_house(self) -> None:
        """End workers that are idle for long, dead, or of runs that changed or are gone."""
        while True:
            with self._changed:
                if self._closed:
                    return
                for worker in [each for each in self._workers if each.request is None]:
                    try:
                        kept = self._is_current(worker, self._stamp(worker.key))
                    except ValueError:
                        kept = False
                    if not kept or time.monotonic() - worker.used > self.idle_seconds:
                        self._end(worker)
            time.sleep(min(1.0, self.idle_seconds / 4))


def _too_late(seconds: float) -> _RefusedError:
    said = f"it took longer than {seconds:.0f} s and was ended; ask for less, or use zoo predict"
    return _RefusedError(said)


def _event(line: Mapping[str, Any], token: str, folder: Path) -> Event:
    if "progress" in line:
        return Progress(float(line["progress"]), str(line["text"]), token)
    if "failed" in line:
        return Failed(str(line["failed"]))
    parts = tuple(Output(**row) for row in line["parts"])
    return Finished(tuple(part for part in parts if _is_there(part, folder)), float(line["seconds"]))


@contextlib.contextmanager
def _understanding() -> Iterator[None]:
    try:
        yield
    except (ValueError, KeyError, TypeError) as error:
        raise _RefusedError("the process that computes said what nobody understands") from error


def _is_there(part: Output, folder: Path) -> bool:
    path = folder / part.name
    return part.kind not in FILE_OUTPUTS or (path.is_file() and not path.is_symlink())
