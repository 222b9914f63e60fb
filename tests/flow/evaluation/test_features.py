from __future__ import annotations

import numpy as np
import torch

from zoo.flow.evaluation import features as extractors
from zoo.flow.evaluation.features import PixelFeatures, cached_features, extract


def pixels(count=5, size=4, channels=1):
    generator = np.random.default_rng(0)
    return generator.integers(0, 256, (count, size, size, channels), dtype=np.uint8)


def test_features_are_computed_once_per_images_and_extractor(tmp_path, monkeypatch):
    values = pixels(3)
    first = cached_features(PixelFeatures(16), values, tmp_path)
    assert torch.equal(first, torch.from_numpy(values.reshape(3, 16)).float() / 127.5 - 1)
    calls = []
    monkeypatch.setattr(extractors, "extract", lambda *args: calls.append(1) or extract(*args))
    assert torch.equal(cached_features(PixelFeatures(16), pixels(3), tmp_path), first) and not calls
    cached_features(PixelFeatures(16), pixels(4), tmp_path)
    assert len(calls) == 1
