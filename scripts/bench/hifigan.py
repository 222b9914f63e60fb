"""Benchmarks of HiFi-GAN: python scripts/bench/hifigan.py overhead|order|loader|streaming|inference|all."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from functools import update_wrapper
from pathlib import Path

from zoo.hifigan.benchmark import BENCHMARKS, Settings
from zoo.training.benchmark import Finding, Fit, command


def build_fit(args: list[str]) -> Fit:
    """What `zoo fit` builds; imported here so that the fresh processes of the memory benchmark stay small."""
    from zoo.lightning_cli import ZooCLI

    return ZooCLI("fit", args)


def in_a_folder(benchmark: Callable[[Settings], Sequence[Finding]]) -> Callable[[bool], Sequence[Finding]]:
    """Give a benchmark a temporary folder."""

    def run(quick: bool) -> Sequence[Finding]:
        with tempfile.TemporaryDirectory() as folder:
            return benchmark(Settings(build_fit, Path(folder), quick))

    return update_wrapper(run, benchmark)


if __name__ == "__main__":
    command("hifigan", {name: in_a_folder(benchmark) for name, benchmark in BENCHMARKS.items()})
