"""Commands of the zoo as processes, processes that answer in lines of JSON, and the parser of configs as one."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from zoo.common.registry import allowed_packages, import_options
from zoo.runs.run_info import tail_lines

MAX_LINE = 2**26  # bytes
PARSER = "zoo.cli.config_worker"  # imports for seconds, and parses in a fraction of one
# what would make a child think that it is a rank, or lead it to the page's own files
_NOT_INHERITED = ("NICEGUI_", "ZOO_RUN_FOLDER", "LOCAL_RANK", "RANK", "WORLD_SIZE")


def zoo_program() -> list[str]:
    """Return the command line in front of a command's name."""
    return [sys.executable, "-m", "zoo", *import_options()]


def child_environment(secret: str | None = None) -> dict[str, str]:
    """Return the server's environment without its ranks, its files and the variable that holds the token."""
    names = {name for name in os.environ if not name.startswith(_NOT_INHERITED) and name != secret}
    return {name: os.environ[name] for name in names} | {"PYTHONUNBUFFERED": "1"}


async def run_command(arguments: Sequence[str], environment: dict[str, str]) -> tuple[int, str]:
    """Run a command; returns its exit code and what it printed. It is killed when the caller is cancelled."""
    process = await asyncio.create_subprocess_exec(
        *zoo_program(), *arguments, env=environment, start_new_session=True, stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    try:
        output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            kill_tree(process.pid)
    return process.returncode or 0, output.decode("utf-8", "replace").strip()


def kill_tree(pid: int) -> None:
    """Kill a process and what it has started."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        for each in (process, *process.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()


def last_error(output: str) -> str:
    """Return the line of a command's output that says why it failed: the last `zoo: error:`, else the last line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line.removeprefix("zoo: error: ") for line in lines if line.startswith("zoo: error: ")]
    return (errors or lines or ["it printed nothing"])[-1]


class JsonProcess:
    """A module of Python as a process that reads and writes JSON lines, inside `exchange`, and ends with this one.

    Args:
        log: file for what the process prints besides.
    """

    def __init__(self, module: str, arguments: Sequence[str], environment: dict[str, str], log: Path) -> None:
        self._program = [sys.executable, "-m", module, *arguments]
        self._environment = environment
        self._log = log
        self._lock = asyncio.Lock()
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int | None:
        """Number of the process while it runs."""
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    @asynccontextmanager
    async def exchange(self) -> AsyncIterator[None]:
        """Keep other callers out until all replies are read; the process is killed when the caller is cancelled."""
        async with self._lock:
            try:
                yield
            except asyncio.CancelledError:  # the reply would be taken for that of the next request
                await self.close()
                raise

    async def start(self) -> None:
        """Start the process unless it runs."""
        if self.pid is None:
            with self._log.open("wb") as log:
                self._process = await asyncio.create_subprocess_exec(
                    *self._program, env=self._environment, start_new_session=True, limit=MAX_LINE,
                    stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=log,
                )  # fmt: skip

    async def send(self, message: dict[str, Any]) -> None:
        """Send a line; starts the process unless it runs."""
        await self.start()
        assert self._process is not None and self._process.stdin is not None
        with contextlib.suppress(ConnectionError):  # it has ended: `receive` raises the reason
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            await self._process.stdin.drain()

    async def receive(self) -> dict[str, Any]:
        """Return the next line; ValueError with its error, ChildProcessError with the reason why the process ended."""
        assert self._process is not None and self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            code = await self._process.wait()
            if code == -signal.SIGKILL:
                raise ChildProcessError("the process was killed; perhaps the machine has too little memory")
            raise ChildProcessError(f"the process ended with code {code}: {last_error(tail_lines(self._log, 5))}")
        message: dict[str, Any] = json.loads(line)
        if "error" in message:
            raise ValueError(message["error"])
        return message

    async def close(self) -> None:
        """Kill the process."""
        if self._process is not None:
            if self.pid is not None:
                kill_tree(self.pid)
            await self._process.wait()
            self._process = None


@dataclass(frozen=True)
class ParsedConfig:
    """The complete config of a training."""

    config: dict[str, Any]
    text: str  # as the run's `config.yaml` holds it
    arguments: Mapping[str, Mapping[str, Any]]  # `help`, `type`, `choices` by section or class, then by name


class ConfigParser:
    """Parses recipes with changes merged over them, one after the other."""

    def __init__(self, environment: dict[str, str], temp: Path, worker: str = PARSER) -> None:
        self._process = JsonProcess(worker, allowed_packages(), environment, temp / "config_parser.log")

    async def parse(self, files: Sequence[Path], changes: Mapping[str, Any]) -> ParsedConfig:
        """Parse the command line `zoo fit` with these files; ValueError with its message, which names the key."""
        async with self._process.exchange():
            await self._process.send({"files": [str(file) for file in files], "changes": dict(changes)})
            return ParsedConfig(**await self._process.receive())

    async def start(self) -> None:
        """Start the process before it is needed."""
        async with self._process.exchange():
            await self._process.start()

    async def close(self) -> None:
        """End the process."""
        await self._process.close()
