"""Benchmarks of flow matching: flow.py step|guidance|coupling|solvers|all [--run RUN]; solvers needs the run."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import update_wrapper
from pathlib import Path

from zoo.flow.benchmark import BENCHMARKS, Settings
from zoo.lightning_cli import ZooCLI
from zoo.options import take_option
from zoo.training.benchmark import Finding, Fit, command


def build_fit(args: list[str]) -> Fit:
    """What `zoo fit` builds."""
    return ZooCLI("fit", args)


def in_a_folder(
    benchmark: Callable[[Settings], Sequence[Finding]], run: Path | None
) -> Callable[[bool], Sequence[Finding]]:
    """Give a benchmark a temporary folder and the trained run."""

    def measure(quick: bool) -> Sequence[Finding]:
        with tempfile.TemporaryDirectory() as folder:
            return benchmark(Settings(build_fit, Path(folder), quick, run))

    return update_wrapper(measure, benchmark)


if __name__ == "__main__":
    runs, sys.argv[1:] = take_option(sys.argv[1:], "--run")
    chosen = Path(runs[-1]) if runs else None
    try:
        command("flow", {name: in_a_folder(benchmark, chosen) for name, benchmark in BENCHMARKS.items()})
    except (ValueError, FileNotFoundError) as error:  # no trained run, or one of something else
        sys.exit(f"flow.py: {error}")
