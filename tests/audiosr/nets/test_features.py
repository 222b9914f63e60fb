from __future__ import annotations

import math

import pytest
import torch

from zoo.audiosr.nets.features import MelFeatures

SIZES = {"sample_rate": 16000, "n_fft": 512, "hop_length": 160, "n_mels": 32}


def test_shapes_and_attributes():
    features = MelFeatures(**SIZES)
    assert (features.sample_rate, features.hop_length, features.n_mels) == (16000, 160, 32)
    assert features(torch.zeros(2, 1, 1600)).shape == (2, 1, 10, 32)
    assert MelFeatures("projectlily", **SIZES)(torch.zeros(2, 1, 1600)).shape == (2, 1, 11, 32)
    assert not features.state_dict()


def test_time_comes_first_and_low_bands_come_first():
    seconds = torch.arange(16000) / 16000
    tone = torch.sin(2 * math.pi * 500 * seconds) * (seconds > 0.5)
    for kind in ("audiosr", "projectlily"):
        image = MelFeatures(kind, **SIZES)(tone[None, None])[0, 0]
        assert image[:40].mean() < image[-40:].mean()
        assert 0 < image[-40:].mean(dim=0).argmax() < 12


def test_powers_grow_twice_as_fast_as_magnitudes():
    torch.manual_seed(0)
    noise = torch.randn(1, 1, 8000)
    for kind, factor in (("audiosr", 1), ("projectlily", 2)):
        features = MelFeatures(kind, **SIZES)
        growth = features(10 * noise) - features(noise)
        torch.testing.assert_close(growth, torch.full_like(growth, factor * math.log(10)), atol=1e-3, rtol=0)


def test_half_precision_does_not_reach_the_features():
    noise = torch.randn(1, 1, 3200)
    for kind in ("audiosr", "projectlily"):
        features = MelFeatures(kind, **SIZES)
        expected = features(noise)
        with torch.autocast("cpu", torch.bfloat16):
            assert torch.equal(features(noise), expected)


def test_wrong_arguments():
    with pytest.raises(ValueError, match="one of audiosr, projectlily, not 'log'"):
        MelFeatures("log")
    with pytest.raises(ValueError, match=r"\(B, 1, T\), found shape \(2, 1600\)"):
        MelFeatures(**SIZES)(torch.zeros(2, 1600))
