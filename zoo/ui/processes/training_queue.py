"""Trainings as processes that outlive the page; those that wait start first in, first out.

`process.json` of a run folder holds its last process, so that a later page finds it again. What waits is in memory.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from zoo.common.atomic_files import write_atomic
from zoo.common.configs import dump_yaml
from zoo.common.foreign_files import load_json
from zoo.common.locks import is_locked
from zoo.runs.checkpoints import find_checkpoints
from zoo.runs.run_folder import refuse_links
from zoo.runs.run_info import find_runs
from zoo.ui.folders import CHANGES_NAME, CONSOLE_NAME, Folders
from zoo.ui.processes.command import kill_tree, zoo_program

PROCESS_NAME = "process.json"
STOPPED_CODES = (143, 130, -signal.SIGTERM, -signal.SIGINT)
CLOCK_SECONDS = 2.0  # the clock of the system may be set in between
_RUN_OPTIONS = ("--trainer.default_root_dir=", "--ckpt_path=")  # that name the run folder in a command of the page
Training = tuple[Sequence[str], Mapping[str, Any]]  # arguments of `zoo fit`, and what becomes its `changes.yaml`


@dataclass(frozen=True)
class ProcessRecord:
    """The last process of a run."""

    pid: int
    create_time: float  # seconds since 1970; the system gives the number of an ended process to others
    command: Sequence[str] = ()
    exit_code: int | None = None  # also None when no page saw its end
    stopping: bool = False  # whether it was asked to end
    console_start: int = 0  # bytes of console.log that earlier processes wrote

    def is_running(self) -> bool:
        """Tell whether this very process runs."""
        try:
            process = psutil.Process(self.pid)
            is_same = abs(process.create_time() - self.create_time) < CLOCK_SECONDS
            return self.exit_code is None and is_same and process.status() != psutil.STATUS_ZOMBIE
        except (psutil.Error, ValueError, TypeError, OverflowError):
            return False


def read_record(folder: Path) -> ProcessRecord | None:
    """Read a run folder's record; None when none can be read, or it is of a folder that this one copies."""
    try:
        record = ProcessRecord(**load_json((folder / PROCESS_NAME).read_text(encoding="utf-8")))
        named = [Path(word.partition("=")[2]) for word in record.command if word.startswith(_RUN_OPTIONS)]
        return None if named and not any(path.exists() and path.samefile(folder) for path in named) else record
    except (OSError, ValueError, TypeError, AttributeError):
        return None


def find_records(root: Path) -> list[Path]:
    """Return the records of the runs below a folder; a run that is being deleted is in a hidden folder."""
    begun = {path / PROCESS_NAME for path in root.glob("[!.]*/[!.]*/[!.]*/")}  # perhaps without any file of a run yet
    return [path for path in begun | {run / PROCESS_NAME for run in find_runs(root)} if path.is_file()]


def write_record(folder: Path, record: ProcessRecord) -> None:
    """Write a run folder's record."""
    write_atomic(folder / PROCESS_NAME, lambda file: file.write(json.dumps(asdict(record), indent=2).encode()))


class TrainingQueue:
    """The trainings of one server; used by its event loop alone.

    Args:
        at_once: how many run at a time, those that an earlier server started included.
        program: the command line in front of `fit`.
    """

    def __init__(
        self, folders: Folders, environment: dict[str, str], at_once: int = 1, program: Sequence[str] | None = None
    ) -> None:
        self.folders = folders
        self.at_once = at_once
        self.waiting: dict[str, Training] = {}  # by run, the first in first
        self.launch_errors: dict[str, str] = {}  # why no process of a run could be started
        self._environment = environment
        self._program = list(program or zoo_program())
        records = {path.parent: read_record(path.parent) for path in find_records(folders.runs)}
        running = [folder for folder, record in records.items() if record is not None and record.is_running()]
        self._running: dict[str, subprocess.Popen[bytes] | None] = {
            folder.relative_to(folders.runs).as_posix(): None for folder in running
        }

    def start(self, recipe: str, files: Sequence[Path], changes: Mapping[str, Any]) -> str:
        """Start or queue a training; returns the name of the new run, and raises OSError when no process starts.

        `recipe` is `<system>/<recipe>`; `changes` are nested values merged over the files in their order.
        """
        stamp, number = f"{recipe}/{time.strftime('%Y%m%d-%H%M%S')}", 1
        run = stamp
        while run in self.waiting or run in self.launch_errors or (self.folders.runs / run).exists():
            number += 1
            run = f"{stamp}-{number}"
        folder = self.folders.runs / run
        paths = [str(file) for file in files] + ([str(folder / CHANGES_NAME)] if changes else [])
        arguments = [f"--config={path}" for path in paths]
        self._enqueue(run, ([*arguments, f"--trainer.default_root_dir={folder}"], changes))
        return run

    def resume(self, run: str, options: Sequence[str] = ()) -> None:
        """Resume or queue a run with further options of `zoo fit`; ValueError when that is not possible."""
        folder = self.folders.run(run)
        record = read_record(folder)
        is_running = record is not None and record.is_running()  # also one of another server
        if run in self.waiting or run in self._running or is_running or is_locked(folder):
            raise ValueError(f"{run} is running or queued")
        refuse_links(folder)  # the console's log is written before `zoo fit` looks
        if not find_checkpoints(folder):
            raise ValueError(f"{run} has no checkpoint to resume from")
        self._enqueue(run, ([f"--ckpt_path={folder}", *options], {}))

    def _enqueue(self, run: str, training: Training) -> None:
        """Start a training, or queue it."""
        self.launch_errors.pop(run, None)
        self.waiting[run] = training
        self.tick()
        if run in self.launch_errors:
            raise OSError(f"{run} cannot be started: {self.launch_errors.pop(run)}")

    def cancel(self, run: str) -> None:
        """Take a training out of the queue; ValueError when it has started."""
        if self.waiting.pop(run, None) is None:
            raise ValueError(f"{run} is not queued")

    def stop(self, run: str) -> None:
        """Ask a training to save and end, and kill it when it was asked before; ValueError when none runs."""
        folder = self.folders.run(run)
        record = read_record(folder)
        if record is None or not record.is_running():
            raise ValueError(f"{run} has no running process that the page started")
        if record.stopping:
            kill_tree(record.pid)
        else:
            with contextlib.suppress(psutil.NoSuchProcess):
                psutil.Process(record.pid).terminate()
        write_record(folder, replace(record, stopping=True))

    def is_busy(self, run: str) -> bool:
        """Tell whether a run is queued or trains."""
        self.tick()
        return run in self.waiting or run in self._running

    def tick(self) -> None:
        """Record which trainings have ended, and start those whose turn it is."""
        for run, process in list(self._running.items()):
            record = read_record(self.folders.runs / run)
            code = process.poll() if process is not None else None
            if code is None and (process is not None or (record is not None and record.is_running())):
                continue
            del self._running[run]
            if record is not None and code is not None:
                with contextlib.suppress(OSError):
                    write_record(self.folders.runs / run, replace(record, exit_code=code))
        while self.waiting and len(self._running) < self.at_once:
            run = next(iter(self.waiting))
            try:
                self._running[run] = self._launch(run, *self.waiting.pop(run))
            except (OSError, psutil.Error) as error:
                self.launch_errors[run] = str(error)

    def _launch(self, run: str, arguments: Sequence[str], changes: Mapping[str, Any]) -> subprocess.Popen[bytes]:
        folder = self.folders.runs / run
        folder.mkdir(parents=True, exist_ok=True)
        if changes:
            write_atomic(folder / CHANGES_NAME, lambda file: file.write(dump_yaml(dict(changes)).encode()))
        command = [*self._program, "fit", *arguments]
        with (folder / CONSOLE_NAME).open("ab") as console:
            console_start = console.tell()
            process = subprocess.Popen(
                command, cwd=self.folders.work, env=self._environment, start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=console, stderr=subprocess.STDOUT,
            )  # fmt: skip
        try:
            created = psutil.Process(process.pid).create_time()
            write_record(folder, ProcessRecord(process.pid, created, command, console_start=console_start))
        except (OSError, psutil.Error):  # without a record no page could stop it
            process.kill()
            process.wait()
            raise
        return process
