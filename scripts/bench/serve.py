"""`zoo serve` under load: python -m scripts.bench.serve hifigan [--quick].

Requests one at a time, then the same ones 20 at once, against one server as its command starts it. Each has an input of
its own and must get the answer to that one: nothing lost, none twice.
"""

from __future__ import annotations

import io
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
import soundfile

from scripts.bench.tools import Finding, Settings, command, in_folders
from zoo.cli.main import main as zoo_main

REQUESTS, AT_ONCE = 200, 20
SECONDS = (0.5, 0.75, 1.0, 1.25)  # of recordings, by turns
RATE = 22050


def hifigan(settings: Settings) -> list[Finding]:
    """Copy synthesis by the recipe hifigan/smoke: recordings of four lengths."""

    def sound(number: int) -> bytes:
        file = io.BytesIO()
        noise = np.random.default_rng(number).standard_normal(int(SECONDS[number % len(SECONDS)] * RATE))
        soundfile.write(file, 0.1 * noise, RATE, format="WAV", subtype="PCM_16")
        return file.getvalue()

    def ask(client: httpx.Client, number: int) -> httpx.Response:
        files = {"input": (f"{number}.wav", sound(number))}
        return client.post("/predict", files=files, headers={"Accept": "audio/wav"})

    def check(number: int, found: bytes) -> bytes:
        samples = len(soundfile.read(io.BytesIO(found))[0])
        if samples != int(SECONDS[number % len(SECONDS)] * RATE):
            raise ValueError(f"request {number} got {samples} samples")
        return found

    return _measured("hifigan", settings, ask, check)


def _measured(
    system: str,
    settings: Settings,
    ask: Callable[[httpx.Client, int], httpx.Response],
    check: Callable[[int, bytes], bytes],
) -> list[Finding]:
    run = settings.folder / "run"
    training = ("--trainer.default_root_dir", str(run), "--trainer.max_steps", "2")
    if zoo_main(["fit", f"{system}/smoke", *training, "--trainer.enable_progress_bar", "false"]):
        raise ValueError(f"{system}/smoke was not trained")
    number = settings.few(REQUESTS, 12)
    with _server(settings.folder, run) as (client, process):
        warm = [ask(client, each) for each in range(3)]

        def timed(each: int) -> tuple[float, bytes]:
            began = time.perf_counter()
            found = ask(client, each)
            if found.status_code != 200:
                raise ValueError(f"request {each}: {found.status_code} {found.text[:200]}")
            return time.perf_counter() - began, check(each, found.content)

        with _peak(process) as peak:
            results, walls = {}, {}
            for at_once in (1, AT_ONCE):
                began = time.perf_counter()
                with ThreadPoolExecutor(at_once) as pool:
                    results[at_once] = list(pool.map(timed, range(number)))
                walls[at_once] = time.perf_counter() - began
        figures = client.get("/metrics").text

    def figure(name: str) -> float:
        return float(next(line.split()[-1] for line in figures.splitlines() if line.startswith(f"{name} ")))

    answered = figure("zoo_request_seconds_count")
    answers = {key: [content for _, content in rows] for key, rows in results.items()}
    batches = figure("zoo_batch_size_count") - number - len(warm)
    same = sum(one == other for one, other in zip(answers[1], answers[AT_ONCE], strict=True))
    findings = [
        Finding(f"{system}: answers lost or twice", abs(2 * number + len(warm) - answered), "requests", at_most=0),
        Finding(f"{system}: different answers", len(set(answers[AT_ONCE])) / number, "of requests", at_least=1),
        Finding(f"{system}: {AT_ONCE} at once", walls[1] / walls[AT_ONCE], "x the throughput of one at a time"),
        Finding(f"{system}: peak memory of all processes", max(peak) / 2**20, "MiB"),
    ]
    details = {"requests": number, "batches": batches, "bitwise_the_same_answers": same}
    for at_once, rows in results.items():
        p50, p95 = np.percentile([seconds for seconds, _ in rows], (50, 95))
        said = {"p95_seconds": float(p95), "requests_per_second": number / walls[at_once]}
        findings.append(Finding(f"{system}: p50, {at_once} at once", float(p50), "s", details={**said, **details}))
    return findings


@contextmanager
def _server(folder: Path, run: Path) -> Iterator[tuple[httpx.Client, psutil.Process]]:
    """A started server that is ready, and a client with its token."""
    said = folder / "said.txt"
    with said.open("w") as output:
        server = subprocess.Popen(
            [sys.executable, "-m", "zoo", "serve", str(run), "--port", str(free_port())], stdout=output, stderr=output
        )
    try:
        while not (found := re.search(r"(http://\S+) token (\S+)", said.read_text())):
            if server.poll() is not None:
                raise ValueError(f"the server did not start: {said.read_text()}")
            time.sleep(0.1)
        limits = httpx.Limits(max_connections=AT_ONCE)
        headers = {"Authorization": f"Bearer {found[2]}"}
        with httpx.Client(base_url=found[1], headers=headers, timeout=300, limits=limits) as client:
            while not _ready(client):
                time.sleep(0.1)
            yield client, psutil.Process(server.pid)
    finally:
        server.send_signal(signal.SIGTERM if os.name == "posix" else signal.SIGINT)
        server.wait(60)


def free_port() -> int:
    """Return a port that nothing listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _ready(client: httpx.Client) -> bool:
    try:
        return client.get("/healthz").status_code == 200
    except httpx.TransportError:
        return False


@contextmanager
def _peak(process: psutil.Process) -> Iterator[list[int]]:
    """The largest memory of a process and its children, looked at ten times a second, as the last entry."""
    seen, done = [0], threading.Event()

    def look() -> None:
        while not done.wait(0.1):
            used = sum(each.memory_info().rss for each in (process, *process.children(recursive=True)))
            seen.append(used)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        done.set()
        thread.join()


def _no_fit(arguments: list[str]) -> Any:
    raise ValueError("nothing is built here")


if __name__ == "__main__":
    command("serve", in_folders({"hifigan": hifigan}, partial(Settings, _no_fit)))
