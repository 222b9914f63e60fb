"""Trainings as processes of their own: started, stopped and resumed, and found again by what lies in their folder."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
import yaml

from zoo.common.atomic import write_atomic
from zoo.common.reading.text import load_json, safe_load
from zoo.common.registry import admitted
from zoo.runs.listing import CSV_NAME, LOG_NAME
from zoo.ui.checks import Rules
from zoo.ui.places import CHANGES_NAME, CONSOLE_NAME, Places

RECORD_NAME = "process.json"
PROGRAM = (sys.executable, "-m", "zoo")
ACTIVE_SECONDS = 60.0
GRACE_SECONDS = 10.0
# Of a server's environment: what would make a child think that it is a rank, or lead it to the page's own files.
_NOT_INHERITED = ("GRADIO_", "ZOO_RUN_FOLDER", "LOCAL_RANK", "RANK", "WORLD_SIZE")
STOPPED_CODES = (143, 130, -signal.SIGTERM, -signal.SIGINT)


@dataclass
class Record:
    """`process.json` of a run folder: the process that trains or trained it last.

    Args:
        pid: its number, which the system gives again to others.
        started: when it began, seconds since 1970; pid and this together mean one process only.
        exit_code: None while it runs, or when nobody was there to see its end.
        stopping: whether the page asked it to stop.
    """

    pid: int
    started: float
    command: list[str]
    exit_code: int | None = None
    stopping: bool = False

    def process(self) -> psutil.Process | None:
        """The process while it runs."""
        try:
            process = psutil.Process(self.pid)
            # the clock that start times are computed with may be set while a process runs
            same = abs(process.create_time() - self.started) < 2.0
            return process if same and process.status() != psutil.STATUS_ZOMBIE else None
        except psutil.Error:
            return None


def read_record(folder: Path) -> Record | None:
    """Read a run folder's record; None when it has none that makes sense."""
    try:
        return Record(**load_json((folder / RECORD_NAME).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def write_record(folder: Path, record: Record) -> None:
    """Write a run folder's record."""
    text = json.dumps(asdict(record), indent=2)
    write_atomic(folder / RECORD_NAME, lambda file: file.write(text.encode()))


class Trainings:
    """Starts and watches the trainings of one server.

    Args:
        secrets: names of environment variables that no child inherits.
        program: the command line in front of a command's name.
    """

    def __init__(self, places: Places, secrets: Sequence[str] = (), program: Sequence[str] = PROGRAM) -> None:
        self.places = places
        self._program = [*program, *(f"--allow-import={package}" for package in admitted())]
        self._environment = {
            key: value for key, value in os.environ.items() if not key.startswith(_NOT_INHERITED) and key not in secrets
        } | {"PYTHONUNBUFFERED": "1"}
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._helpers: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.RLock()

    def start(self, configs: Sequence[Path], changes: Mapping[str, Any], run: str) -> None:
        """Begin a training.

        Args:
            configs: the recipe and what is laid over it.
            changes: nested config values laid over those; kept in the run folder as `changes.yaml`.

        Raises:
            OSError: the process cannot be started.
        """
        folder = self.places.run(run)
        command = fit_command([*configs, *self._written(folder, changes)])
        self._spawn(run, [*command, f"--trainer.default_root_dir={folder}"])

    def resume(self, run: str) -> None:
        """Go on with a run from its newest sound checkpoint, in its own folder.

        Raises:
            ValueError: it is running, or has nothing to go on from.
        """
        with self._lock:
            state = self.state(run)
            if state in ("running", "stopping", "active"):
                raise ValueError(f"{run} is {state}: one process at a time may write to it")
            if not self.places.checkpoints(run):
                raise ValueError(f"{run} holds no checkpoint to go on from")
            self._spawn(run, ["fit", "--ckpt_path", str(self.places.run(run))])

    def stop(self, run: str) -> None:
        """Ask a run to save and to end (SIGTERM).

        Raises:
            ValueError: no process of it runs.
        """
        folder = self.places.run(run)
        with self._lock:
            record = read_record(folder)
            process = record.process() if record else None
            if record is None or process is None:
                raise ValueError(f"{run} has no running process that the page started")
            with contextlib.suppress(psutil.NoSuchProcess):  # it ended just now
                process.terminate()
            write_record(folder, Record(**{**asdict(record), "stopping": True}))

    def state(self, run: str) -> str:
        """One word on a run.

        Returns:
            "running", "stopping", "finished", "stopped", "failed"; "ended" when nobody saw how; "active" when a process
            that the page did not start writes to it; "idle" without any process.
        """
        folder = self.places.run(run)
        with self._lock:
            record = read_record(folder)
            if record is None:
                return "active" if _written_lately(folder) else "idle"
            self._reap(run, folder, record)
        if record.process() is not None:
            return "stopping" if record.stopping else "running"
        if record.exit_code is None:
            return "ended"
        return "finished" if record.exit_code == 0 else "stopped" if record.exit_code in STOPPED_CODES else "failed"

    def call(self, *args: str, timeout: float = 600) -> tuple[int, str]:
        """Run a short command to its end.

        Returns:
            Its exit code, and what it said.
        """
        try:
            done = subprocess.run(
                [*self._program, *args],
                cwd=self.places.work,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=timeout,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return 124, f"`zoo {args[0]}` took longer than {timeout:.0f} s and was ended"
        text = done.stdout if done.returncode == 0 else done.stdout + done.stderr
        return done.returncode, text.decode("utf-8", "replace")

    def follow(self, console: Path, *args: str) -> Iterator[int | None]:
        """Run a command whose output goes to a file; yields None twice a second while it runs, then its exit code.

        The command ends with the iteration: a caller that goes away takes it along.
        """
        with console.open("wb") as output:
            child = subprocess.Popen(
                [*self._program, *args],
                cwd=self.places.work,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._helpers.add(child)
        try:
            while child.poll() is None:
                yield None
                time.sleep(0.5)
            yield child.returncode
        finally:
            self._end(child)

    def close(self) -> None:
        """End what `follow` runs; trainings go on."""
        for child in tuple(self._helpers):
            self._end(child)

    def _end(self, child: subprocess.Popen[bytes]) -> None:
        child.terminate()
        try:
            child.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        self._helpers.discard(child)

    def check(
        self, configs: Sequence[Path], changes: Mapping[str, Any], rules: Rules, known: Callable[[], Iterable[str]]
    ) -> str:
        """Parse a training's command line without running it, and check the complete config that comes of it.

        Args:
            known: tells the strings that the server itself put into configs and changes; asked while the parser works.

        Returns:
            The complete config.

        Raises:
            ValueError: what the parser says against it, or the first key or value that the rules refuse.
        """
        with ThreadPoolExecutor(1) as pool:
            parsing = pool.submit(self.parse, configs, changes)
            own = set(known())
        rules.check_config(safe_load(parsing.result()), own)
        return parsing.result()

    def parse(self, configs: Sequence[Path], changes: Mapping[str, Any]) -> str:
        """The complete config of a training's command line.

        Raises:
            ValueError: what the parser says against it.
        """
        with tempfile.TemporaryDirectory(dir=self.places.temp) as folder:
            code, text = self.call(*fit_command([*configs, *self._written(Path(folder), changes)]), "--print_config")
        if code != 0:
            raise ValueError(last_error(text))
        return text

    def _written(self, folder: Path, changes: Mapping[str, Any]) -> list[Path]:
        if not changes:
            return []
        text = yaml.safe_dump(dict(changes), sort_keys=False, allow_unicode=True)
        write_atomic(folder / CHANGES_NAME, lambda file: file.write(text.encode()))
        return [folder / CHANGES_NAME]

    def _spawn(self, run: str, args: Sequence[str]) -> None:
        folder = self.places.run(run)
        with self._lock, (folder / CONSOLE_NAME).open("ab") as console:
            child = subprocess.Popen(
                [*self._program, *args],
                cwd=self.places.work,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # neither Ctrl-C at the server nor its end reaches the training
            )
            self._children[run] = child
            try:
                started = psutil.Process(child.pid).create_time()
            except psutil.Error:  # it is gone already; its exit code says why
                started = time.time()
            write_record(folder, Record(child.pid, started, [*self._program, *args]))

    def _reap(self, run: str, folder: Path, record: Record) -> None:
        child = self._children.get(run)
        if child is None or child.pid != record.pid or child.poll() is None:
            return
        record.exit_code = child.returncode
        write_record(folder, record)
        del self._children[run]


def fit_command(configs: Sequence[Path]) -> list[str]:
    """`fit` with config files, later ones over earlier ones."""
    return ["fit", *(part for config in configs for part in ("--config", str(config)))]


def last_error(text: str) -> str:
    """The error of a command's output: its last line that says so, else its last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if "error:" in line]
    return (errors or lines or ["it said nothing"])[-1]


def _written_lately(folder: Path) -> bool:
    times = [(folder / name).stat().st_mtime for name in (CSV_NAME, LOG_NAME) if (folder / name).is_file()]
    return max(times, default=0.0) > time.time() - ACTIVE_SECONDS
