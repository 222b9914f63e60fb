"""A server in a process of its own, to be killed."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator

import psutil
import pytest

from zoo.ui.jobs.records import read_record
from zoo.ui.jobs.trainings import Trainings
from zoo.ui.places import Places

# what happens in the body is the test's; `server` is over the stand-in
BEGIN = """
import os, signal, sys, threading, time
from pathlib import Path
from zoo.ui.jobs import records, trainings
from zoo.ui.jobs.trainings import Trainings
from zoo.ui.places import Places
work = Path(sys.argv[1])
places = Places(work, work / "runs", work / "temp", work / "data")
recipe = places.recipe("flow", "smoke")
program = (sys.executable, str(work / "stand_in.py"))
"""


def wait(condition: Callable[[], object], seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def ended(pid: int) -> bool:
    """Whether a process is gone, or waits for nothing but a parent that asks for its exit code."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def command_of(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


@pytest.fixture
def serve(places: Places, trainings: Trainings) -> Iterator[Callable[[str], subprocess.Popen]]:
    """Run a body as a server, until it has written the file `ready` or is dead."""
    servers = []

    def begin(body: str) -> subprocess.Popen:
        ready = places.work / "ready"
        ready.unlink(missing_ok=True)
        code = BEGIN + textwrap.dedent(body)
        server = subprocess.Popen([sys.executable, "-c", code, str(places.work)])
        servers.append(server)
        wait(lambda: ready.exists() or server.poll() is not None, 120)
        return server

    yield begin
    for server in servers:
        server.kill()
        server.wait()


@pytest.fixture(autouse=True)
def nothing_goes_on(places: Places) -> Iterator[None]:
    yield
    for run in places.list_runs():
        record = read_record(places.run(run))
        if record and record.process():
            os.kill(record.pid, signal.SIGKILL)
