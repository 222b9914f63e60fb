"""Benchmarks of AudioSR: audiosr.py step|shared|samplers|restore|all."""

from __future__ import annotations

from functools import partial

from zoo.audiosr.benchmark import BENCHMARKS
from zoo.lightning_cli import ZooCLI
from zoo.training.benchmark import command
from zoo.training.benchmark_settings import Settings, in_folders

if __name__ == "__main__":
    command("audiosr", in_folders(BENCHMARKS, partial(Settings, partial(ZooCLI, "fit"))))
