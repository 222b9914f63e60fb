"""Benchmarks of CI-LLM: ci_llm.py decoding|training|peft|padding|shared_trunk|all; padding needs GSM8K."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import update_wrapper

from zoo.ci_llm.benchmark import BENCHMARKS, Settings
from zoo.training.benchmark import Finding, command


def sized(benchmark: Callable[[Settings], Sequence[Finding]]) -> Callable[[bool], Sequence[Finding]]:
    """Tell a benchmark whether to be quick."""
    return update_wrapper(lambda quick: benchmark(Settings(quick)), benchmark)


if __name__ == "__main__":
    try:
        command("ci_llm", {name: sized(benchmark) for name, benchmark in BENCHMARKS.items()})
    except FileNotFoundError as error:  # no GSM8K
        sys.exit(f"ci_llm.py: {error}")
