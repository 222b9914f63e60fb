"""A started `zoo ui`, its folders, and clients with its cookie."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import httpx

from tests.harness import environment


class Server(NamedTuple):
    """A started server.

    Args:
        address: with the token.
        folder: where it was started.
    """

    process: subprocess.Popen[str]
    address: str
    folder: Path

    @property
    def home(self) -> str:
        """The address without the token."""
        return self.address.partition("/?")[0]

    def enter(self) -> httpx.Client:
        """Return a client with the cookie and the Origin of the page."""
        client = httpx.Client(base_url=self.home, follow_redirects=True, timeout=60, headers={"Origin": self.home})
        assert client.get("/", params={"token": self.address.rpartition("=")[2]}).status_code == 200
        return client


def start_server(folder: Path, *options: str, end: int = signal.SIGINT, **variables: str) -> Iterator[Server]:
    """Start a server in a folder; a signal ends it, and its temporary folder must be gone then."""
    log = folder / "server.txt"
    command = [sys.executable, "-m", "zoo", "ui", "--port", "0", *options]
    with log.open("w") as output:
        process = subprocess.Popen(
            command, cwd=folder, env=environment(TMPDIR=str(folder), **variables), stdout=output, stderr=output
        )
    deadline = time.monotonic() + 180
    while not (match := re.search(r"http://127\.0\.0\.1:\d+/\?token=\S+", log.read_text())):
        assert process.poll() is None and time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)
    server = Server(process, match.group(), folder)
    server.enter().close()
    yield server
    for _ in range(2):  # a user presses Ctrl-C again while it ends
        process.send_signal(end)
        time.sleep(0.05)
    assert process.wait(90) == (130 if end == signal.SIGINT else 143)
    assert "Traceback" not in log.read_text(), log.read_text()
    assert not list(folder.glob("zoo-ui-*"))
