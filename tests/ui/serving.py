"""A started `zoo ui`, its folders, and sessions at it."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx

from tests.harness import environment
from zoo.ui.security import UPLOAD_PATH


class Server:
    """A started server, its folders, and sessions at it.

    Args:
        process: of the server.
        address: with the token.
        folder: where it was started.
    """

    def __init__(self, process: subprocess.Popen[str], address: str, folder: Path) -> None:
        self.process = process
        self.address = address
        self.folder = folder

    def enter(self) -> httpx.Client:
        """A new session."""
        client = httpx.Client(base_url=self.address.partition("?")[0], follow_redirects=True, timeout=60)
        assert client.get("/", params={"token": self.address.rpartition("=")[2]}).status_code == 200
        return client

    @property
    def temp(self) -> Path:
        """The server's temporary folder."""
        return next(self.folder.glob("zoo-ui-*"))

    def taken(self) -> set[str]:
        """What every file of the temporary folder holds."""
        return {path.read_text("utf-8", "replace") for path in self.temp.rglob("*") if path.is_file()}


def started(
    folder: Path, *options: str, program: Sequence[str] = (sys.executable, "-m", "zoo"), **variables: str
) -> Iterator[Server]:
    """A server in a folder; in the end its own folder must be gone."""
    said = folder / "said.txt"
    command = [*program, "ui", "--port", "0", *options]
    with said.open("w") as output:
        process = subprocess.Popen(
            command, cwd=folder, env=environment(TMPDIR=str(folder), **variables), stdout=output, stderr=output
        )
    end = time.monotonic() + 180
    while not (found := re.search(r"http://127\.0\.0\.1:\d+/\?token=\S+", said.read_text())):
        assert process.poll() is None and time.monotonic() < end, said.read_text()
        time.sleep(0.1)
    made = Server(process, found.group(), folder)
    while True:
        try:
            made.enter().close()
            break
        except httpx.TransportError:
            assert time.monotonic() < end
            time.sleep(0.2)
    yield made
    before = len(said.read_text())
    for _ in range(2):  # as somebody who presses Ctrl-C again while it ends
        process.send_signal(signal.SIGINT)
        time.sleep(0.3)
    assert process.wait(90) == 130
    assert "Traceback" not in said.read_text()[before:], said.read_text()
    assert not list(folder.glob("zoo-ui-*"))  # what was uploaded goes with the server


def upload(client: httpx.Client, *contents: bytes, name: str = "tone.wav") -> httpx.Response:
    """Send files as the page does."""
    return client.post(UPLOAD_PATH, files=[("files", (name, content)) for content in contents])
