"""Hosts with names and addresses of their own on this machine: network namespaces on a bridge of their own."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

INTERFACE = "eth0"


@dataclass(frozen=True)
class Host:
    """One of them.

    Args:
        name: of the host; its namespace is called the same.
        address: in the network of these hosts.
    """

    name: str
    address: str

    def command(self, *command: object) -> list[str]:
        """A command line as one starts it in this host."""
        named = ["sh", "-c", 'hostname "$0" && exec "$@"', self.name]
        return ["ip", "netns", "exec", self.name, "unshare", "--uts", *named, *map(str, command)]

    def processes(self) -> list[int]:
        """All that run in this host."""
        return list(map(int, _ip("netns", "pids", self.name).split()))

    def kill(self) -> None:
        """Take the host's power away."""
        end = time.monotonic() + 20
        while found := self.processes():
            assert time.monotonic() < end, found
            for process in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            time.sleep(0.05)


def _ip(*arguments: str) -> str:
    return subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True, timeout=30).stdout


@cache
def available() -> bool:
    """Whether this user may make network namespaces."""
    if os.name == "nt" or os.geteuid() != 0 or not all(map(shutil.which, ("ip", "unshare"))):
        return False
    name = f"zoo{os.getpid()}t"
    try:
        _ip("netns", "add", name)
        _ip("netns", "delete", name)
    except subprocess.CalledProcessError:
        return False
    return True


@contextlib.contextmanager
def hosts(count: int = 2) -> Iterator[Sequence[Host]]:
    """Make some hosts that reach each other and nobody else; what still runs in them ends with them."""
    unique = os.getpid() % 2**16
    network = f"10.{200 + unique % 50}.{unique // 256}"
    made = [Host(f"zoo{unique}{chr(97 + number)}", f"{network}.{number + 1}") for number in range(count)]
    bridge = f"zoo{unique}"
    try:
        _ip("link", "add", bridge, "type", "bridge")
        _ip("link", "set", bridge, "up")
        for host in made:
            files = Path("/etc/netns") / host.name  # ip(8) puts them in the place of those in /etc
            files.mkdir(parents=True)
            names = "".join(f"{each.address} {each.name}\n" for each in made)
            (files / "hosts").write_text(f"127.0.0.1 localhost\n{names}")
            _ip("netns", "add", host.name)
            _ip("link", "add", f"{host.name}v", "type", "veth", "peer", "name", INTERFACE, "netns", host.name)
            _ip("link", "set", f"{host.name}v", "master", bridge, "up")
            _ip("-n", host.name, "address", "add", f"{host.address}/24", "dev", INTERFACE)
            _ip("-n", host.name, "link", "set", INTERFACE, "up")
            _ip("-n", host.name, "link", "set", "lo", "up")
        yield made
    finally:
        for host in made:
            with contextlib.suppress(subprocess.CalledProcessError):
                host.kill()
                _ip("netns", "delete", host.name)
            shutil.rmtree(Path("/etc/netns") / host.name, ignore_errors=True)
        with contextlib.suppress(subprocess.CalledProcessError):
            _ip("link", "delete", bridge)
