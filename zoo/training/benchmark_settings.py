"""What the benchmarks of a system are given, and how a script gives it to them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import update_wrapper
from pathlib import Path
from typing import TypeVar

from zoo.training.benchmark import Finding, Fit


@dataclass(frozen=True)
class Settings:
    """What every benchmark is given.

    Args:
        build_fit: builds model, data and trainer from the arguments of `zoo fit`, as the command line does.
        folder: an empty folder for temporary files.
        quick: measure little, to see that everything runs; figures are then no evidence.
    """

    build_fit: Callable[[list[str]], Fit]
    folder: Path
    quick: bool = False

    def few(self, full: int, quick: int) -> int:
        """Choose a number of repetitions."""
        return quick if self.quick else full


S = TypeVar("S", bound=Settings)


def in_folders(
    benchmarks: Mapping[str, Callable[[S], Sequence[Finding]]], settings: Callable[[Path, bool], S]
) -> dict[str, Callable[[bool], Sequence[Finding]]]:
    """Give each benchmark a temporary folder of its own, for `zoo.training.benchmark.command`.

    Args:
        benchmarks: by name.
        settings: makes what they are given of a folder and whether to be quick.
    """

    def in_a_folder(benchmark: Callable[[S], Sequence[Finding]]) -> Callable[[bool], Sequence[Finding]]:
        def run(quick: bool) -> Sequence[Finding]:
            with tempfile.TemporaryDirectory() as folder:
                return benchmark(settings(Path(folder), quick))

        return update_wrapper(run, benchmark)

    return {name: in_a_folder(benchmark) for name, benchmark in benchmarks.items()}
