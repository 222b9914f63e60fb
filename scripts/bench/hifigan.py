"""Benchmarks of HiFi-GAN: python scripts/bench/hifigan.py overhead|order|loader|streaming|inference|all."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch

from zoo.hifigan.benchmark import BENCHMARKS, Settings
from zoo.training.benchmark import Fit, save, show


def build_fit(args: list[str]) -> Fit:
    """What `zoo fit` builds; imported here so that the fresh processes of the memory benchmark stay small."""
    from zoo.lightning_cli import ZooCLI

    return ZooCLI("fit", args)


def main() -> None:
    """Run the benchmarks, print a table for each and write the figures as JSON."""
    parser = argparse.ArgumentParser(description="Benchmarks of HiFi-GAN")
    parser.add_argument("benchmark", choices=[*BENCHMARKS, "all"])
    parser.add_argument("--quick", action="store_true", help="see that it runs; the figures are no evidence")
    parser.add_argument("--threads", type=int, default=1, help="of torch; 1 keeps waiting threads out of the figures")
    parser.add_argument("--output", type=Path, default=Path("runs/bench/hifigan"), help="folder of the JSON files")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    for name in BENCHMARKS if options.benchmark == "all" else [options.benchmark]:
        with tempfile.TemporaryDirectory() as folder:
            findings = BENCHMARKS[name](Settings(build_fit, Path(folder), options.quick))
        show(f"{name}: {(BENCHMARKS[name].__doc__ or '').strip()}", findings)
        save(options.output / f"{name}.json", findings, benchmark=name, quick=options.quick)


if __name__ == "__main__":
    main()
