"""A Ray cluster of node processes on this machine, with separate ports and a separate folder."""

import contextlib
import random
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.harness import environment

SECONDS = 300  # for a node to come up; Ray itself would try for much longer
_WIDTH = 100  # worker ports of a node
_FIRST, _LAST = 20_000, 31_000  # above Ray's own worker ports, below the kernel's


@dataclass
class RayCluster:
    """The running cluster.

    Args:
        folder: of its files; short, as socket paths are limited.
        ports: the first of those that it may use; the head has this one.
        variables: of nodes and their clients.
    """

    folder: Path
    ports: int
    variables: dict[str, str]
    nodes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def address(self) -> str:
        """Of the head."""
        return f"127.0.0.1:{self.ports}"

    def start_node(self) -> None:
        """Start a node of one core, the first one as the head."""
        first = self.ports + _WIDTH * (1 + len(self.nodes))
        options = ["--block", "--disable-usage-stats", "--num-cpus=1", "--num-gpus=0", "--object-store-memory=80000000"]
        options += [f"--min-worker-port={first}", f"--max-worker-port={first + _WIDTH - 1}"]
        options += ["--include-log-monitor=false"]
        head = ["--head", f"--port={self.ports}", f"--temp-dir={self.folder}"]
        head += ["--include-dashboard=false", "--no-monitor", f"--ray-client-server-port={self.ports + 1}"]
        options += [f"--address={self.address}"] if self.nodes else head
        ray = [sys.executable, "-m", "ray.scripts.scripts", "start", *options]
        path, end = self.folder / f"node{len(self.nodes)}.log", time.monotonic() + SECONDS
        self.nodes.append(self._spawn(ray, path))
        while "Ray runtime started" not in (log := path.read_text(errors="replace")):
            assert time.monotonic() < end, log
            if self.nodes[-1].poll() is not None:  # Ray gives itself half a minute, which a loaded machine may not keep
                assert "timed out during startup" in log, log
                self.nodes[-1] = self._spawn(ray, path)
            time.sleep(0.1)

    def _spawn(self, command: list[str], log: Path) -> subprocess.Popen[bytes]:
        with log.open("wb") as file:
            return subprocess.Popen(command, env=self.variables, stdout=file, stderr=file, start_new_session=True)

    def kill_node(self, number: int) -> None:
        """Take a node away with all that runs on it, as a power cut does."""
        node = self.nodes[number]
        with contextlib.suppress(psutil.Error):
            top = psutil.Process(node.pid)
            for process in (top, *top.children(recursive=True)):
                with contextlib.suppress(psutil.Error):
                    process.kill()
        node.wait(30)

    def actors(self) -> list[psutil.Process]:
        """The processes that compute."""
        processes = []
        for node in self.nodes:
            with contextlib.suppress(psutil.Error):
                children = psutil.Process(node.pid).children(recursive=True)
                processes += [each for each in children if each.cmdline()[:1] and "PredictWorker" in each.cmdline()[0]]
        return processes


@contextlib.contextmanager
def ray_cluster(folder: Path, **variables: str) -> Iterator[RayCluster]:
    """Start a cluster of two nodes, and end all of it.

    Args:
        variables: of the nodes besides the tests' settings.
    """
    settings = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    settings |= {"RAY_health_check_initial_delay_ms": "1000", "RAY_health_check_period_ms": "1000"}
    cluster = RayCluster(folder, _free_ports(), environment(**settings, **variables))
    try:
        cluster.start_node()
        cluster.start_node()
        yield cluster
    finally:
        for number in range(len(cluster.nodes)):
            cluster.kill_node(number)
        for process in psutil.process_iter(["cmdline"]):  # what a node that did not come up left
            if str(folder) in " ".join(process.info["cmdline"] or ()):
                with contextlib.suppress(psutil.Error):
                    process.kill()


def _free_ports() -> int:
    """The first of some free ports."""
    while True:
        first = random.randrange(_FIRST, _LAST - 10 * _WIDTH)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", first)):
            return first
