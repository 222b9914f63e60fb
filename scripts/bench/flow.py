"""Benchmarks of flow matching: flow.py step|guidance|coupling|solvers|all [--run RUN]; solvers needs the run."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

from zoo.flow.benchmark import BENCHMARKS, RunSettings
from zoo.lightning_cli import ZooCLI
from zoo.options import take_option
from zoo.training.benchmark import command
from zoo.training.benchmark_settings import in_folders

if __name__ == "__main__":
    runs, sys.argv[1:] = take_option(sys.argv[1:], "--run")
    chosen = Path(runs[-1]) if runs else None
    try:
        command("flow", in_folders(BENCHMARKS, partial(RunSettings, partial(ZooCLI, "fit"), run=chosen)))
    except (ValueError, FileNotFoundError) as error:  # no trained run, or one of something else
        sys.exit(f"flow.py: {error}")
