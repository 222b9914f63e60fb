"""Throughput by number of processes: scaling.py --config RECIPE --devices 1 2 [4 8] [more options of zoo fit]."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import harmonic_mean
from typing import Any

import lightning as L
import torch

from scripts.bench.tools import Finding, machine, save, show
from zoo.common.configs import load_yaml
from zoo.common.systems import recipe_root
from zoo.runs.metrics_csv import read_metrics
from zoo.runs.run_folder import find_config

RATE = "train/samples_per_sec"
EXPECTED = {1: 1.0, 2: 1.85, 4: 3.6, 8: 6.5}  # speed-up that the manual of the original's training expects on GPUs
QUICK_STEPS = 12
WINDOWS = 6  # logged means; the first has the start in it and does not count


class StopAfter(L.Callback):
    """Ends a training after so many optimizer steps; schedules keep the length that the recipe gives them.

    Args:
        steps: number.
    """

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        """Ask for the end when it is time."""
        trainer.should_stop = trainer.should_stop or trainer.global_step >= self.steps


def measure(
    config: Path,
    processes: Sequence[int],
    folder: Path,
    batch_sizes: Sequence[int] = (),
    steps: int = 60,
    accelerator: str = "auto",
    extra: Sequence[str] = (),
) -> list[Finding]:
    """Train a recipe for some steps with each number of processes, one after the other.

    On the CPU (gloo) every process has one thread.

    Args:
        config: the recipe.
        processes: numbers of them, the first of which is 1.
        folder: an empty folder for the runs.
        batch_sizes: per process, one for each number of processes; the recipe's by default.
        steps: of the optimizer in each training, of which the first sixth does not count.
        accelerator: "cpu", "gpu", or "auto": GPUs where there are enough.
        extra: further arguments of `zoo fit`.

    Returns:
        Samples per second of all processes together, for each number of them.

    Raises:
        ValueError: when the numbers do not begin with 1, there is not a batch size for each, or a training failed or
            was too short.
    """
    if not processes or processes[0] != 1:
        raise ValueError(f"speed-up is against 1 process, so the numbers of processes begin with it: {list(processes)}")
    if batch_sizes and len(batch_sizes) != len(processes):
        raise ValueError(f"expected a batch size for each of {list(processes)} processes, found {list(batch_sizes)}")
    if accelerator == "auto":
        accelerator = "gpu" if torch.cuda.device_count() >= max(processes) else "cpu"
    findings: list[Finding] = []
    for number, count in enumerate(processes):
        run = folder / f"{count}_processes"
        sized = [f"--data.init_args.batch_size={batch_sizes[number]}"] if batch_sizes else []
        _train(config, count, run, steps, accelerator, [*sized, *extra])
        rate = rate_of(run)
        recipe = load_yaml(find_config(run).read_text(encoding="utf-8"))
        batch_size = int(recipe["data"]["init_args"]["batch_size"])
        effective = batch_size * count * int(recipe["trainer"]["accumulate_grad_batches"])
        speed_up = rate / findings[0].value if findings else 1.0
        details = {
            "batch per process": batch_size, "effective batch": effective, "speed-up, x": speed_up,
            "efficiency": speed_up / count, "manual expects, x": EXPECTED.get(count),
        }  # fmt: skip
        findings.append(Finding(f"{count} processes", rate, "samples/s", details=details))
    return findings


def rate_of(run: Path) -> float:
    """Samples a second of a run, without its first logged mean.

    Raises:
        ValueError: when too little was logged.
    """
    rates = [float(row[RATE]) for row in read_metrics(run) if row.get(RATE)]
    if len(rates) < 2:
        raise ValueError(f"{run} logged {len(rates)} values of {RATE}, at least 2 are needed: train for more steps")
    return harmonic_mean(rates[1:])  # each is a mean over as many steps


def _train(config: Path, count: int, run: Path, steps: int, accelerator: str, extra: Sequence[str]) -> None:
    fragment = [f"--config={recipe_root() / 'trainer' / 'ddp.yaml'}"] if count > 1 else []
    command = [
        sys.executable, "-m", "zoo", "fit", f"--config={config}", *fragment, f"--trainer.devices={count}",
        f"--trainer.accelerator={accelerator}", f"--trainer.default_root_dir={run}", "--trainer.limit_val_batches=0",
        "--trainer.num_sanity_val_steps=0", f"--trainer.log_every_n_steps={max(1, steps // WINDOWS)}",
        "--trainer.enable_progress_bar=false", "--checkpoints.every_n_steps=1000000",
        "--trainer.callbacks+=scripts.bench.scaling.StopAfter", f"--trainer.callbacks.steps={steps}", *extra,
    ]  # fmt: skip
    threads = {"OMP_NUM_THREADS": "1"} if accelerator == "cpu" else {}
    result = subprocess.run(command, env={**os.environ, **threads}, capture_output=True, text=True, check=False)
    if result.returncode:
        said = (result.stderr.strip().splitlines() or ["nothing on standard error"])[-1]
        raise ValueError(f"training with {count} processes failed with exit code {result.returncode}: {said}")


def main() -> None:
    """Measure, print and keep; exits with 1 and one line when a training fails."""
    parser = argparse.ArgumentParser(description="Samples per second of short trainings; others go to zoo fit")
    parser.add_argument("--config", type=Path, required=True, help="the recipe")
    parser.add_argument("--devices", type=int, nargs="+", default=[1, 2], help="numbers of processes, 1 first")
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[], help="per process, one for each number")
    parser.add_argument("--steps", type=int, default=60, help="of each training (default: 60)")
    parser.add_argument("--quick", action="store_true", help="see that it runs; the figures are no evidence")
    parser.add_argument("--accelerator", choices=["auto", "cpu", "gpu"], default="auto", help="GPUs where enough")
    parser.add_argument("--output", type=Path, default=Path("runs/bench/scaling.json"), help="the JSON file")
    options, extra = parser.parse_known_args()
    try:
        with tempfile.TemporaryDirectory() as folder:
            findings = measure(
                options.config, options.devices, Path(folder), options.batch_sizes,
                QUICK_STEPS if options.quick else options.steps,                options.accelerator, extra,
            )  # fmt: skip
    except (ValueError, OSError) as error:
        sys.exit(f"scaling.py: {error}")
    facts = machine()
    show(f"{options.config}: {facts['cores']} cores, {facts['processor']}", findings)
    save(options.output, findings, benchmark="scaling", recipe=str(options.config), quick=options.quick)


if __name__ == "__main__":
    main()
