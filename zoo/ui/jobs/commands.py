"""Commands of the zoo as processes that end with the page's server, however it ends."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

import yaml

from zoo.common.atomic_files import write_atomic
from zoo.common.configs import load_yaml
from zoo.common.registry import allowed_packages
from zoo.ui.checks import Rules
from zoo.ui.jobs.groups import ask_to_end, own_group
from zoo.ui.jobs.tied import TIED
from zoo.ui.places import CHANGES_NAME, Places

PROGRAM = (sys.executable, "-m", "zoo")
GRACE_SECONDS = 10.0
_GATE = ("-m", "zoo.ui.jobs.tied")
# Of a server's environment: what would make a child think that it is a rank, or lead it to the page's own files.
_NOT_INHERITED = ("NICEGUI_", "ZOO_RUN_FOLDER", "LOCAL_RANK", "RANK", "WORLD_SIZE")


def child_environment(secrets: Sequence[str]) -> dict[str, str]:
    """The server's environment without what would make a child think that it is a rank, and without secrets."""
    kept = {key for key in os.environ if not key.startswith(_NOT_INHERITED) and key not in secrets}
    return {key: os.environ[key] for key in kept} | {"PYTHONUNBUFFERED": "1"}


class Commands:
    """Runs commands and parses trainings' configs.

    Args:
        secrets: names of environment variables that no child inherits.
        program: the command line in front of a command's name, Python's first.
    """

    def __init__(self, places: Places, secrets: Sequence[str] = (), program: Sequence[str] = PROGRAM) -> None:
        self.places = places
        self._program = [*program, *(f"--allow-import={package}" for package in allowed_packages())]
        self._environment = child_environment(secrets)
        self._helpers: set[subprocess.Popen[bytes]] = set()

    def call(self, *args: str, timeout: float = 600) -> tuple[int, str]:
        """Run a short command to its end.

        Returns:
            Its exit code, and what it said.
        """
        child = self._launch(args, subprocess.PIPE, subprocess.PIPE)
        pipe, child.stdin = child.stdin, None  # `communicate` would close it, which ends the command
        let_begin(pipe, TIED)
        try:
            said, complained = child.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            return 124, f"`zoo {args[0]}` took longer than {timeout:.0f} s and was ended"
        finally:
            child.kill()
            child.wait()
            close(pipe)
        text = said if child.returncode == 0 else said + complained
        return child.returncode, text.decode("utf-8", "replace")

    def follow(self, console: Path, *args: str) -> Iterator[int | None]:
        """Run a command whose output goes to a file; yields None twice a second while it runs, then its exit code.

        The command ends with the iteration: a caller that goes away takes it along.
        """
        with console.open("wb") as output:
            child = self._launch(args, output, subprocess.STDOUT)
        self._helpers.add(child)
        try:
            let_begin(child.stdin, TIED)
            while child.poll() is None:
                yield None
                time.sleep(0.5)
            yield child.returncode
        finally:
            self._end(child)

    def close(self) -> None:
        """End what `follow` runs."""
        for child in tuple(self._helpers):
            self._end(child)

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
        rules.check_config(load_yaml(parsing.result()), own)
        return parsing.result()

    def parse(self, configs: Sequence[Path], changes: Mapping[str, Any]) -> str:
        """The complete config of a training's command line.

        Raises:
            ValueError: what the parser says against it.
        """
        with tempfile.TemporaryDirectory(dir=self.places.temp) as folder:
            code, text = self.call(*fit_command(configs, as_yaml(changes), Path(folder)), "--print_config")
        if code != 0:
            raise ValueError(last_error(text))
        return text

    def _launch(self, args: Sequence[str], stdout: int | IO[bytes], stderr: int | IO[bytes]) -> subprocess.Popen[bytes]:
        """Start a process that waits for `let_begin`."""
        python, *program = self._program
        return subprocess.Popen(
            [python, *_GATE, *program, *args],
            bufsize=0,
            cwd=self.places.work,
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=stdout,
            stderr=stderr,
            **own_group(),
        )

    def _end(self, child: subprocess.Popen[bytes]) -> None:
        with contextlib.suppress(OSError):
            ask_to_end(child)
        try:
            child.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        close(child.stdin)
        self._helpers.discard(child)


def let_begin(pipe: IO[bytes] | None, word: bytes) -> None:
    """Let a launched process begin (see `zoo.ui.jobs.tied`)."""
    with contextlib.suppress(BrokenPipeError):  # it is gone already; its exit code says why
        if pipe is not None:
            pipe.write(word)


def close(pipe: IO[bytes] | None) -> None:
    """Close a process's pipe, which ends what is tied to it."""
    if pipe is not None:
        pipe.close()


def as_yaml(changes: Mapping[str, Any]) -> str:
    """Nested config values as a file's text; "" for none."""
    return yaml.safe_dump(dict(changes), sort_keys=False, allow_unicode=True) if changes else ""


def fit_command(configs: Sequence[str | Path], changes: str, folder: Path) -> list[str]:
    """`fit` with config files, later ones over earlier ones, and changes over these, which are written to a folder."""
    files = [str(config) for config in configs]
    if changes:
        write_atomic(folder / CHANGES_NAME, lambda file: file.write(changes.encode()))
        files.append(str(folder / CHANGES_NAME))
    return ["fit", *(part for file in files for part in ("--config", file))]


def last_error(text: str) -> str:
    """The error of a command's output: its last line that says so, else its last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if "error:" in line]
    return (errors or lines or ["it said nothing"])[-1]
