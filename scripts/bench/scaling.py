"""Throughput by number of processes: scaling.py --config RECIPE --devices 1 2 [4 8] [more options of zoo fit]."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import harmonic_mean
from typing import Any

import lightning as L
import torch
from rich.console import Console
from rich.table import Table

from scripts.bench.tools import Finding, machine, save
from zoo.common.reading.text import safe_load
from zoo.common.systems import recipe_root
from zoo.runs.csv_log import read_metrics
from zoo.runs.folder import find_config

RATE = "train/samples_per_sec"
EXPECTED = {1: 1.0, 2: 1.85, 4: 3.6, 8: 6.5}  # speed-up that the manual of the original's training expects on GPUs
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


@dataclass(frozen=True)
class Row:
    """Throughput of one number of processes.

    Args:
        processes: number.
        batch_size: items per process and batch.
        effective_batch: items per optimizer step, of all processes.
        samples_per_second: of all processes.
        speed_up: against one process.
        efficiency: share of a speed-up as large as the number of processes.
        expected: speed-up by the manual; None where it names none.
    """

    processes: int
    batch_size: int
    effective_batch: int
    samples_per_second: float
    speed_up: float
    efficiency: float
    expected: float | None


def measure(
    config: Path,
    processes: Sequence[int],
    folder: Path,
    batch_sizes: Sequence[int] = (),
    steps: int = 60,
    accelerator: str = "auto",
    extra: Sequence[str] = (),
) -> list[Row]:
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
        A row for each number of processes.

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
    rows: list[Row] = []
    for number, count in enumerate(processes):
        run = folder / f"{count}_processes"
        sized = [f"--data.init_args.batch_size={batch_sizes[number]}"] if batch_sizes else []
        _train(config, count, run, steps, accelerator, [*sized, *extra])
        rate = rate_of(run)
        recipe = safe_load(find_config(run).read_text(encoding="utf-8"))
        batch_size = int(recipe["data"]["init_args"]["batch_size"])
        effective = batch_size * count * int(recipe["trainer"]["accumulate_grad_batches"])
        speed_up = rate / rows[0].samples_per_second if rows else 1.0
        rows.append(Row(count, batch_size, effective, rate, speed_up, speed_up / count, EXPECTED.get(count)))
    return rows


def rate_of(run: Path) -> float:
    """Samples a second of a run, without its first logged mean.

    Raises:
        ValueError: when too little was logged.
    """
    rates = [float(row[RATE]) for row in read_metrics(run) if row.get(RATE)]
    if len(rates) < 2:
        raise ValueError(f"{run} logged {len(rates)} values of {RATE}, at least 2 are needed: train for more steps")
    return harmonic_mean(rates[1:])  # each is a mean over as many steps


def show(title: str, rows: Sequence[Row], console: Console | None = None) -> None:
    """Print rows beside the manual's expectation."""
    table = Table(title=title, title_justify="left")
    heads = (
        "processes",
        "batch per process",
        "effective batch",
        "samples/s",
        "speed-up",
        "efficiency",
        "manual expects",
    )
    for head in heads:
        table.add_column(head, justify="right", overflow="fold")
    for row in rows:
        counts = (row.processes, row.batch_size, row.effective_batch)
        expected = "" if row.expected is None else f"{row.expected:g}x"
        figures = (f"{row.samples_per_second:.1f}", f"{row.speed_up:.2f}x", f"{row.efficiency:.0%}", expected)
        table.add_row(*map(str, counts), *figures)
    (console or Console()).print(table)


def keep(path: Path, rows: Sequence[Row], recipe: str) -> None:
    """Write rows as JSON, with the machine."""
    findings = [
        Finding(f"{row.processes} processes", row.samples_per_second, "1/s", details=asdict(row)) for row in rows
    ]
    save(path, findings, benchmark="scaling", recipe=recipe)


def _train(config: Path, count: int, run: Path, steps: int, accelerator: str, extra: Sequence[str]) -> None:
    fragment = [f"--config={recipe_root() / 'trainer' / 'ddp.yaml'}"] if count > 1 else []
    command = [
        sys.executable, "-m", "zoo", "fit", f"--config={config}", *fragment, f"--trainer.devices={count}",
        f"--trainer.accelerator={accelerator}", f"--trainer.default_root_dir={run}", "--trainer.limit_val_batches=0",
        "--trainer.num_sanity_val_steps=0", f"--trainer.log_every_n_steps={max(1, steps // WINDOWS)}",
        "--trainer.enable_progress_bar=false", "--checkpoints.every_n_batches=1000000",
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
    parser.add_argument("--accelerator", choices=["auto", "cpu", "gpu"], default="auto", help="GPUs where enough")
    parser.add_argument("--output", type=Path, default=Path("runs/bench/scaling.json"), help="the JSON file")
    options, extra = parser.parse_known_args()
    try:
        with tempfile.TemporaryDirectory() as folder:
            rows = measure(
                options.config, options.devices, Path(folder), options.batch_sizes, options.steps,
                options.accelerator, extra,
            )  # fmt: skip
    except (ValueError, OSError) as error:
        sys.exit(f"scaling.py: {error}")
    facts = machine()
    show(f"{options.config}: {facts['cores']} cores, {facts['processor']}", rows)
    keep(options.output, rows, str(options.config))


if __name__ == "__main__":
    main()
