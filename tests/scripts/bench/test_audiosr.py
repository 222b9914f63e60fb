"""Benchmarks at tiny size: that they run and report, and that the original's step trains what it should."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from scripts.bench import audiosr as benchmark
from scripts.bench.audiosr_others import ORIGINAL_SHARE, OriginalStep
from scripts.bench.tools import Cost, Settings, cost_of
from zoo.cli.trainer import ZooCLI


def without_trainer(fit: Any, other: Callable[[], object], rounds: int, warmup: int) -> dict[str, list[Cost]]:
    """Trainings are run by other tests."""
    return {name: [cost] * rounds for name, cost in {"trainer": Cost(1.0, 1.0), "other": cost_of(other)}.items()}


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setattr(benchmark, "MIDDLE", {})
    monkeypatch.setattr(benchmark, "CROP_SAMPLES", 10240)
    monkeypatch.setattr(benchmark, "interleave_with_trainer", without_trainer)
    return Settings(partial(ZooCLI, "fit"), tmp_path, quick=True)


@pytest.mark.parametrize("name", benchmark.BENCHMARKS)
def test_reports_figures(name: str, settings: Settings) -> None:
    findings = benchmark.BENCHMARKS[name](settings)
    assert findings and all(np.isfinite(each.value) and each.value > 0 for each in findings)


def test_the_originals_step(settings: Settings) -> None:
    fit = benchmark._fit(settings, checkpointing=False)
    fit.datamodule.setup("fit")
    original = OriginalStep(fit.model, fit.datamodule, clip=1.0, checkpointing=True)
    weights = [weight.detach().clone() for weight in original.weights]
    trained = sum(weight.numel() for weight in original.net.parameters())
    assert sum(weight.numel() for weight in original.weights) == pytest.approx(ORIGINAL_SHARE * trained, rel=1e-3)
    high, low = original.mels()
    assert high.shape == low.shape == (fit.datamodule.batch_size, 1, 64, 32)
    assert not torch.equal(high, low)
    original()
    moved = [not torch.equal(weight, before) for weight, before in zip(original.weights, weights, strict=True)]
    count = len(list(original.net.parameters()))
    assert np.isfinite(original.loss) and any(moved[:count])
    assert not any(moved[count:]), "frozen parts have no gradient"
    for average, weight, before in zip(original.average, original.weights, weights, strict=True):
        torch.testing.assert_close(average, 0.999 * before + 0.001 * weight.detach())
