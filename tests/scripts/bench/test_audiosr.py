"""The original's step trains what it should."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from scripts.bench import audiosr as benchmark
from scripts.bench.audiosr_others import ORIGINAL_SHARE, OriginalStep
from scripts.bench.tools import Settings
from zoo.cli.trainer import ZooCLI


def test_the_originals_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmark, "MIDDLE", {})
    monkeypatch.setattr(benchmark, "CROP_SAMPLES", 10240)
    fit = benchmark._fit(Settings(partial(ZooCLI, "fit"), tmp_path, quick=True), checkpointing=False)
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
