"""Bulk inference on Ray against plain ranks: python -m scripts.bench.bulk_ray predict [--quick]."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import psutil

from scripts.bench.tools import Cost, Finding, Settings, command, in_folders, train_once
from zoo.audio.io import files
from zoo.cli.trainer import ZooCLI

REPOSITORY = Path(__file__).parents[2]
RECIPE = REPOSITORY / "configs" / "hifigan" / "smoke.yaml"
WORKERS = 2
ENGINES = {
    "ranks": ("--trainer.accelerator=cpu", f"--trainer.devices={WORKERS}", "--trainer.strategy=ddp"),
    "ray": ("--trainer.accelerator=cpu", "--engine=ray", f"--ray_workers={WORKERS}"),
}
SAMPLE_RATE = 22050
CASES = {"files of 0.1 s": 0.1, "files of 1 to 4 s": 4.0}  # the longest, in seconds


def predict(settings: Settings) -> list[Finding]:
    """`zoo predict` of HiFi-GAN (smoke) by two Ray actors and by two ranks, by turns: a whole command, and a file more.

    What a file more costs is the difference between many files and few; the rest is the start.
    """
    train_once(settings.folder / "run", ["fit", f"--config={RECIPE}", *_options(settings.folder)], quick=True)
    findings = []
    for case, longest in CASES.items():
        counts = (settings.few(20, 4), settings.few(220 if longest > 1 else 1020, 12))
        costs: dict[str, dict[int, list[Cost]]] = {engine: {count: [] for count in counts} for engine in ENGINES}
        for count in counts:
            _write(settings.folder / f"{longest:g}-{count}", count, longest)
        for turn in range(settings.few(3, 1)):
            for count in counts:
                for engine in ENGINES:
                    output = settings.folder / f"{engine}-{longest:g}-{count}-{turn}"
                    run = partial(_run, settings.folder, settings.folder / f"{longest:g}-{count}", output, engine)
                    costs[engine][count].append(_cost(run))
                    found = len(list(output.rglob("*.wav")))
                    if found != count:
                        raise ValueError(f"{engine} made {found} of {count} files in {output}")
        findings += _findings(case, costs, *counts)
    return findings


def _options(folder: Path) -> tuple[str, ...]:
    return (f"--trainer.default_root_dir={folder / 'run'}", "--trainer.accelerator=cpu")


def _write(folder: Path, count: int, longest: float) -> None:
    chance = np.random.default_rng(0)
    for number in range(count):
        samples = int(SAMPLE_RATE * (longest if longest < 1 else chance.uniform(1, longest)))
        files.write(folder / f"{number:05d}.wav", chance.normal(0, 0.1, samples).astype(np.float32), SAMPLE_RATE)


def _run(folder: Path, inputs: Path, output: Path, engine: str) -> subprocess.Popen[bytes]:
    given = [
        "--ckpt_path",
        folder / "run",
        "--input",
        inputs,
        "--output",
        output,
        "--trainer.enable_progress_bar=false",
    ]
    line = [sys.executable, "-m", "zoo", "-q", "predict", *map(str, given), *ENGINES[engine]]
    alone = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "RAY_ADDRESS": ""}
    return subprocess.Popen(line, env={**os.environ, **alone})


def _cost(run: Callable[[], subprocess.Popen[bytes]]) -> Cost:
    """Wall time, and processor time of the whole tree: Ray's daemons and actors are nobody's ended children."""
    began, spent = time.perf_counter(), dict[int, float]()
    process = run()
    top = psutil.Process(process.pid)
    while process.poll() is None:
        try:
            for each in (top, *top.children(recursive=True)):
                times = each.cpu_times()
                spent[each.pid] = times.user + times.system
        except psutil.Error:  # it ended while it was looked at
            pass
        time.sleep(0.1)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, process.args)
    return Cost(time.perf_counter() - began, sum(spent.values()))


def _findings(case: str, costs: dict[str, dict[int, list[Cost]]], few: int, many: int) -> list[Finding]:
    more = {
        engine: [(b - a) / (many - few) for a, b in zip(each[few], each[many], strict=True)]
        for engine, each in costs.items()
    }
    details = {f"{engine}, cpu ms": 1000 * median(cost.cpu for cost in each) for engine, each in more.items()}
    details |= {f"{engine}, wall ms": 1000 * median(cost.wall for cost in each) for engine, each in more.items()}
    ratio = [details[f"ray, {clock} ms"] / details[f"ranks, {clock} ms"] for clock in ("cpu", "wall")]
    found = [Finding(f"{case}: a file more", ratio[0], "of ranks", details=details | {"by wall time, x": ratio[1]})]
    for count in (few, many):
        whole = {
            f"{engine}, {clock} s": median(getattr(cost, clock) for cost in each[count])
            for engine, each in costs.items()
            for clock in ("cpu", "wall")
        }
        ratio = [whole[f"ray, {clock} s"] / whole[f"ranks, {clock} s"] for clock in ("cpu", "wall")]
        found.append(
            Finding(f"{case}: {count} files", ratio[0], "of ranks", details=whole | {"by wall time, x": ratio[1]})
        )
    return found


if __name__ == "__main__":
    command("bulk_ray", in_folders({"predict": predict}, partial(Settings, partial(ZooCLI, "fit"))))
