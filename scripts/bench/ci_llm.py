"""Benchmarks of CI-LLM: ci_llm.py decoding|training|peft|padding|shared_trunk|memory|all; padding needs GSM8K."""

from __future__ import annotations

import sys
from functools import partial

from zoo.ci_llm.benchmark import BENCHMARKS
from zoo.lightning_cli import ZooCLI
from zoo.training.benchmark import command
from zoo.training.benchmark_settings import Settings, in_folders

if __name__ == "__main__":
    try:
        command("ci_llm", in_folders(BENCHMARKS, partial(Settings, partial(ZooCLI, "fit"))))
    except FileNotFoundError as error:  # no GSM8K
        sys.exit(f"ci_llm.py: {error}")
