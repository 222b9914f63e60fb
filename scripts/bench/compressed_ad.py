"""Benchmarks of in-context learning: compressed_ad.py stepping|ppo|acting|training|equal_time|all."""

from __future__ import annotations

from functools import partial

from zoo.compressed_ad.benchmark import BENCHMARKS
from zoo.lightning_cli import ZooCLI
from zoo.training.benchmark import command
from zoo.training.benchmark_settings import Settings, in_folders

if __name__ == "__main__":
    command("compressed_ad", in_folders(BENCHMARKS, partial(Settings, partial(ZooCLI, "fit"))))
