from __future__ import annotations

import numpy as np
import pytest
import torch

from zoo.audio.corpora.synthetic import SyntheticSpeech
from zoo.audio.evaluation.metrics import lsd_bands
from zoo.audiosr.data.simulate import lowpass
from zoo.audiosr.evaluation.baselines import linear, mean_envelope, shaped_noise

RATE = 16000


def test_linear_interpolation_goes_through_the_samples():
    """A tone at an eighth of the low rate: the samples in between lie on straight lines."""
    low = np.sin(2 * np.pi * 500 * np.arange(8000) / RATE).astype(np.float32)
    result = linear(low, RATE, 2000.0)
    np.testing.assert_allclose(result[400:-400:4], low[400:-400:4], atol=1e-3)
    np.testing.assert_allclose(result[402:-402:4], (low[400:-404:4] + low[404:-400:4]) / 2, atol=1e-3)


def test_shaped_noise_meets_the_envelope_at_the_level_of_the_low_band():
    noise = np.random.default_rng(0).standard_normal(4 * RATE).astype(np.float32)
    tilted = np.cumsum(noise)[: len(noise)] * np.float32(0.01)
    tilted -= lowpass(tilted, RATE, 50.0)
    envelope = mean_envelope([tilted])
    for level in (1.0, 0.05):
        low = level * lowpass(tilted, RATE, 3000.0)
        results = mean_envelope([shaped_noise(low, RATE, 3000.0, envelope)])
        np.testing.assert_allclose(results[450:1000] - np.log(level), envelope[450:1000], atol=0.5)
        assert np.mean(results[450:1000] - np.log(level) - envelope[450:1000]) == pytest.approx(0, abs=0.1)


def test_both_beat_doing_nothing_on_speech():
    clips = [SyntheticSpeech(sample_rate=RATE).utterance(index) for index in range(4)]
    envelope = mean_envelope(clips[:3])
    low = lowpass(clips[3], RATE, 4000.0)
    distances = [
        float(lsd_bands(torch.from_numpy(results), torch.from_numpy(clips[3]), RATE, (4000.0, RATE / 2))[0])
        for results in (low, linear(low, RATE, 4000.0), shaped_noise(low, RATE, 4000.0, envelope))
    ]
    assert distances[2] < 0.5 * distances[0] and distances[1] < 0.8 * distances[0]


def test_an_envelope_needs_sound():
    with pytest.raises(ValueError, match="not silent"):
        mean_envelope([np.zeros(5000, np.float32)])
