"""Benchmarks of in-context learning: compressed_ad.py stepping|ppo|acting|training|equal_time|all."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from functools import update_wrapper
from pathlib import Path

from zoo.compressed_ad.benchmark import BENCHMARKS, Settings
from zoo.lightning_cli import ZooCLI
from zoo.training.benchmark import Finding, Fit, command


def build_fit(args: list[str]) -> Fit:
    """What `zoo fit` builds."""
    return ZooCLI("fit", args)


def in_a_folder(benchmark: Callable[[Settings], Sequence[Finding]]) -> Callable[[bool], Sequence[Finding]]:
    """Give a benchmark a temporary folder."""

    def measure(quick: bool) -> Sequence[Finding]:
        with tempfile.TemporaryDirectory() as folder:
            return benchmark(Settings(build_fit, Path(folder), quick))

    return update_wrapper(measure, benchmark)


if __name__ == "__main__":
    command("compressed_ad", {name: in_a_folder(benchmark) for name, benchmark in BENCHMARKS.items()})
