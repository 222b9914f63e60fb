"""What the page costs beside the computation itself: python -m scripts.bench.page warm [--quick]."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

import zoo
from scripts.bench.tools import Finding, Settings, command, in_folders
from zoo.audio.analysis.mel import LogMel
from zoo.audio.io import files
from zoo.cli.trainer import ZooCLI
from zoo.hifigan.nets.generator import Generator
from zoo.runs.checkpoints import save_checkpoint
from zoo.ui.places import Places
from zoo.ui.warm.pool import Finished, Workers

SECONDS = 10
RUN = "hifigan/base/random"
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
    specs = {"inference": "zoo.hifigan.Vocoder", "parts": {**described, "sample_rate": MEL["sample_rate"]}}
    save_checkpoint({"state_dict": state, "global_step": 1, "zoo": specs}, folder / "step_00000001.ckpt")


if __name__ == "__main__":
    command("page", in_folders({"warm": warm}, partial(Settings, partial(ZooCLI, "fit"))))
