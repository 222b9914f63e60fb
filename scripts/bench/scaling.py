"""Throughput by number of processes: scaling.py --config RECIPE --devices 1 2 [4 8] [more options of zoo fit]."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from zoo.training.benchmark import machine
from zoo.training.scaling import keep, measure, show


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
