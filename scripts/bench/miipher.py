"""Benchmarks of Miipher-2: miipher.py step|blocks|original|buckets|features|checkpointing|restore|all."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from zoo.miipher.benchmark import BENCHMARKS, FULL, SMALL
from zoo.training.benchmark import save, show


def main() -> None:
    """Run the benchmarks, print a table for each and write the figures as JSON."""
    parser = argparse.ArgumentParser(description="Benchmarks of Miipher-2")
    parser.add_argument("benchmark", choices=[*BENCHMARKS, "all"])
    parser.add_argument("--quick", action="store_true", help="see that it runs; the figures are no evidence")
    parser.add_argument("--threads", type=int, default=1, help="of torch; 1 keeps waiting threads out of the figures")
    parser.add_argument("--output", type=Path, default=Path("runs/bench/miipher"), help="folder of the JSON files")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    for name in BENCHMARKS if options.benchmark == "all" else [options.benchmark]:
        findings = BENCHMARKS[name](SMALL if options.quick else FULL)
        show(f"{name}: {(BENCHMARKS[name].__doc__ or '').strip()}", findings)
        save(options.output / f"{name}.json", findings, benchmark=name, quick=options.quick)


if __name__ == "__main__":
    main()
