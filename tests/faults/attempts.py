"""Many command lines in one process that may be spoiled by them: what each returned and printed."""

from __future__ import annotations

import contextlib
import io
import os
import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from unittest import mock

from zoo.cli.main import main

MEMORY = 8 * 2**30  # more than any recipe's nets take


class Attempt(NamedTuple):
    """One call of `zoo`."""

    code: int
    output: str
    seconds: float

    @property
    def errors(self) -> list[str]:
        return [line for line in self.output.splitlines() if line.startswith("zoo") and "error: " in line]


def parse_and_build(configs: Sequence[str], build: bool, bait: str = "") -> list[tuple[Attempt, bool]]:
    """Give each text to `zoo fit` as a config, up to the first batch; also tell whether the bait was taken.

    Args:
        configs: YAML texts.
        build: build model, data and trainer; otherwise parse only.
        bait: folder with a module `bait` that no config may import.
    """
    sys.path.insert(0, bait)
    attempts = []
    stop = contextlib.ExitStack()
    stop.enter_context(mock.patch("zoo.cli.trainer.fit"))
    if not build:
        stop.enter_context(mock.patch("zoo.cli.trainer.ZooCLI.instantiate_classes"))
    with limited_memory(), tempfile.TemporaryDirectory() as folder, stop:
        os.chdir(folder)
        for text in configs:
            Path("config.yaml").write_bytes(text.encode("utf-8", "surrogateescape"))
            attempts.append(
                (attempt(["fit", "--config", "config.yaml", "--allow-import", "toy_wing"]), "bait" in sys.modules)
            )
    return attempts


def attempt(args: list[str]) -> Attempt:
    output = io.StringIO()
    started = time.monotonic()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        code = main(args)
    return Attempt(code, output.getvalue(), time.monotonic() - started)


@contextlib.contextmanager
def limited_memory():
    """Let a net of absurd size fail instead of taking the machine."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
