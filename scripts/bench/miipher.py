"""Benchmarks of Miipher-2: miipher.py step|blocks|original|buckets|features|checkpointing|restore|all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import update_wrapper

from zoo.miipher.benchmark import BENCHMARKS, FULL, SMALL, Size
from zoo.training.benchmark import Finding, command


def sized(benchmark: Callable[[Size], Sequence[Finding]]) -> Callable[[bool], Sequence[Finding]]:
    """Choose the size by whether to be quick."""
    return update_wrapper(lambda quick: benchmark(SMALL if quick else FULL), benchmark)


if __name__ == "__main__":
    command("miipher", {name: sized(benchmark) for name, benchmark in BENCHMARKS.items()})
