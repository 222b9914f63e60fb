"""Benchmarks of HiFi-GAN: python scripts/bench/hifigan.py overhead|order|loader|streaming|inference|all."""

from __future__ import annotations

from functools import partial

from zoo.hifigan.benchmark import BENCHMARKS
from zoo.training.benchmark import Fit, command
from zoo.training.benchmark_settings import Settings, in_folders


def build_fit(args: list[str]) -> Fit:
    """What `zoo fit` builds; imported here so that the fresh processes of the memory benchmark stay small."""
    from zoo.lightning_cli import ZooCLI

    return ZooCLI("fit", args)


if __name__ == "__main__":
    command("hifigan", in_folders(BENCHMARKS, partial(Settings, build_fit)))
