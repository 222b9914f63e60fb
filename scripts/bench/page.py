"""What the page costs, and how soon it tells: python -m scripts.bench.page warm|watch|all [--quick]."""

from __future__ import annotations

import math
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil

import zoo
from scripts.bench.tools import Finding, Settings, command, in_folders
from zoo.audio.analysis.mel import LogMel
from zoo.audio.io import files
from zoo.cli.trainer import ZooCLI
from zoo.hifigan.nets.generator import Generator
from zoo.runs.checkpoints import save_checkpoint
from zoo.runs.model_description import FORMAT
from zoo.ui.places import Places
from zoo.ui.warm.pool import Finished, Workers

SECONDS = 10
RUN = "hifigan/base/random"
WATCHED, ROWS, METRICS = "flow/demo/grown", 5000, 20
# Kong et al. (2020), V1 and V3; weights are random, which costs as much
V1 = {"initial_channels": 512, "upsample_rates": [8, 8, 2, 2], "upsample_kernel_sizes": [16, 16, 4, 4], "resblock": "1"}
V1 |= {"resblock_kernel_sizes": [3, 7, 11], "resblock_dilation_sizes": [[1, 3, 5]] * 3}
SMALL = {"initial_channels": 64, "upsample_rates": [8, 8, 4], "upsample_kernel_sizes": [16, 16, 8], "resblock": "2"}
SMALL |= {"resblock_kernel_sizes": [3, 5], "resblock_dilation_sizes": [[1, 2], [2, 6]]}
MEL = {"sample_rate": 22050, "n_fft": 1024, "hop_length": 256, "win_length": 1024, "n_mels": 80}


def warm(settings: Settings) -> list[Finding]:
    """10 s of audio through HiFi-GAN on a warm worker, beside the computation itself in this process, by turns."""
    places = Places(settings.folder, *(settings.folder / name for name in ("runs", "temp", "data")))
    for folder in (places.runs / RUN, places.temp, places.data):
        folder.mkdir(parents=True)
    _write_run(places.runs / RUN, SMALL if settings.quick else V1)
    source = places.temp / "input.wav"
    noise = np.random.default_rng(0).standard_normal(SECONDS * 22050)
    files.write(source, 0.1 * noise, 22050)
    model = zoo.load(places.runs / RUN)
    workers = Workers(places)

    def answer(number: int) -> None:
        folder = places.temp / f"answer{number}"
        folder.mkdir()
        *_, last = workers.ask(RUN, "", {"input": source}, folder, "benchmark")
        if not isinstance(last, Finished):
            raise ValueError(f"the worker did not answer: {last}")

    try:
        first = _seconds(partial(answer, 0))
        model.process_file(source, places.temp / "itself.wav")
        itself, answers = [], []
        for number in range(1, 1 + settings.few(7, 1)):
            itself.append(_seconds(lambda: model.process_file(source, places.temp / "itself.wav")))
            answers.append(_seconds(partial(answer, number)))
        memory = workers.list()[0].memory_mib
    finally:
        workers.close()
    ratio = statistics.median(a / b for a, b in zip(answers, itself, strict=True))
    details = {"answer_seconds": statistics.median(answers), "computation_seconds": statistics.median(itself)}
    details |= {"first_answer_seconds": first, "worker_mib": memory}
    return [Finding("second answer", ratio, "of the computation", at_most=1.3, details=details)]


def watch(settings: Settings) -> list[Finding]:
    """From a row of metrics.csv to the chart on the screen of a browser, and what the server takes for ten tabs."""
    from playwright.sync_api import sync_playwright

    folder = settings.folder / "runs" / WATCHED
    folder.mkdir(parents=True)
    _add_rows(folder, 0, settings.few(ROWS, 50))
    said = settings.folder / "said.txt"
    command_line = [sys.executable, "-m", "zoo", "ui", "--port", "0"]
    with said.open("w") as output:
        server = subprocess.Popen(command_line, cwd=settings.folder, stdout=output, stderr=output)
    try:
        while not (found := re.search(r"http://\S+", said.read_text())):
            if server.poll() is not None:
                raise ValueError(f"the page did not start: {said.read_text()}")
            time.sleep(0.1)
        with sync_playwright() as playwright:
            options = {"executable_path": shutil.which("chromium"), "args": ["--no-sandbox", "--disable-gpu"]}
            context = playwright.chromium.launch(**options).new_context()
            context.new_page().goto(found.group())
            pages = [_opened(context, found.group())]
            taken = [_until_seen(pages[0], folder, number) for number in range(settings.few(20, 2))]
            pages += [_opened(context, found.group()) for _ in range(settings.few(10, 2) - 1)]
            shares = [_server_share(server.pid, pages[0], folder, rows) for rows in (0, 10)]
    finally:
        server.terminate()
        server.wait()
    details = {"seconds_at_most": max(taken), "rows": settings.few(ROWS, 50), "metrics": METRICS}
    busy = {"without_rows_%": shares[0], "tabs": len(pages)}
    return [
        Finding("row to screen, median", statistics.median(taken), "s", at_most=1.0, details=details),
        Finding("server, a row a second", shares[1], "% of a core", details=busy),
    ]


def _add_rows(folder: Path, first: int, count: int, value: float | None = None) -> None:
    path = folder / "metrics.csv"
    with path.open("a") as file:
        if first == 0:
            file.write(",".join(["step", "epoch", *(f"train/metric_{number}" for number in range(METRICS))]) + "\n")
        for step in range(first, first + count):
            cell = math.exp(-step / 900) + 0.1 * math.sin(step) if value is None else value
            file.write(f"{step},0," + ",".join([repr(cell)] * METRICS) + "\n")


def _opened(context: Any, address: str) -> Any:
    page = context.new_page()
    page.set_default_timeout(120_000)
    page.goto(f"{address.partition('?')[0]}?tab=watch&run={WATCHED}")
    page.locator(".zoo-chart svg").nth(METRICS - 1).wait_for(state="attached")
    return page


def _until_seen(page: Any, folder: Path, number: int) -> float:
    page.wait_for_timeout(100 + 137 * number % 500)  # at any moment between two looks of the server
    shown = page.locator(".zoo-chart").last.locator(".zoo-small")
    before = time.perf_counter()
    _add_rows(folder, ROWS + number, 1, 1000.0 + number)
    shown.get_by_text(str(1000 + number)).wait_for()
    return time.perf_counter() - before


def _server_share(pid: int, page: Any, folder: Path, rows: int) -> float:
    """Per cent of a core that the server takes for ten seconds."""
    process = psutil.Process(pid)
    before, began = sum(process.cpu_times()[:2]), time.perf_counter()
    for number in range(10):
        if number < rows:
            _add_rows(folder, 2 * ROWS + number, 1)
        page.wait_for_timeout(1000)
    return 100 * (sum(process.cpu_times()[:2]) - before) / (time.perf_counter() - began)


def _seconds(function: Callable[[], object]) -> float:
    before = time.perf_counter()
    function()
    return time.perf_counter() - before


def _write_run(folder: Path, size: dict[str, object]) -> None:
    """A run folder with one checkpoint of a generator as it is built."""
    described = {
        "generator": {"class_path": "zoo.hifigan.Generator", "init_args": {"in_channels": MEL["n_mels"], **size}},
        "mel": {"class_path": "zoo.audio.LogMel", "init_args": MEL},
    }
    parts = {"generator": Generator(in_channels=MEL["n_mels"], **size), "mel": LogMel(**MEL)}  # type: ignore[arg-type]
    state = {f"{name}.{key}": value for name, part in parts.items() for key, value in part.state_dict().items()}
    specs = {
        "inference": "zoo.hifigan.Vocoder",
        "format": FORMAT,
        "components": {**described, "sample_rate": MEL["sample_rate"]},
    }
    save_checkpoint({"state_dict": state, "global_step": 1, "zoo": specs}, folder / "step_00000001.ckpt")


if __name__ == "__main__":
    command("page", in_folders({"warm": warm, "watch": watch}, partial(Settings, partial(ZooCLI, "fit"))))
