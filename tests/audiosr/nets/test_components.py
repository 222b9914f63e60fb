"""Mel features, global encoder, discriminator."""

from __future__ import annotations

import math

import pytest
import torch

from tests.audiosr.nets.sizes import GLOBAL_ENCODERS
from zoo.audiosr.nets.denoiser import GlobalEncoder
from zoo.audiosr.nets.discriminator import PatchDiscriminator
from zoo.audiosr.nets.features import MelFeatures, crop_to_multiple

SIZES = {"sample_rate": 16000, "n_fft": 512, "hop_length": 160, "n_mels": 32}
TINY = {"n_mels": 32, "channels": 8, "heads": 2, "layers": 1, "context_channels": 6, "positions": 5}


@pytest.mark.parametrize(("kind", "frames", "factor"), [("audiosr", 10, 1), ("projectlily", 11, 2)])
def test_mel_images(kind, frames, factor):
    """Time first, low bands first; powers grow twice as fast as magnitudes; float32 under autocast."""
    features = MelFeatures(kind, **SIZES)
    assert features(torch.zeros(2, 1, 1600)).shape == (2, 1, frames, 32) and features.frames(1600) == frames
    seconds = torch.arange(16000) / 16000
    image = features((torch.sin(2 * math.pi * 500 * seconds) * (seconds > 0.5))[None, None])[0, 0]
    assert image[:40].mean() < image[-40:].mean() and 0 < image[-40:].mean(dim=0).argmax() < 12
    noise = torch.randn(1, 1, 8000, generator=torch.Generator().manual_seed(0))
    growth = features(10 * noise) - features(noise)
    torch.testing.assert_close(growth, torch.full_like(growth, factor * math.log(10)), atol=1e-3, rtol=0)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(features(noise), MelFeatures(kind, **SIZES)(noise))
    with pytest.raises(ValueError, match="shape"):
        features(torch.zeros(2, 1600))


def test_crop_to_multiple():
    assert crop_to_multiple(torch.zeros(1, 1, 11, 32), 4).shape == (1, 1, 8, 32)
    for frames, multiple in ((3, 4), (64, 64)):
        with pytest.raises(ValueError, match="bands"):
            crop_to_multiple(torch.zeros(1, 1, frames, 32), multiple)


@pytest.mark.parametrize(("version", "rest", "projection"), [("v1", 569_888, 262_272), ("v2", 2_708_768, 1_048_832)])
def test_encoders_of_the_originals(version, rest, projection):
    with torch.device("meta"):
        net = GlobalEncoder(**GLOBAL_ENCODERS[version])
    assert sum(parameter.numel() for parameter in net.parameters()) == rest + projection


def test_positions_stretch_for_a_long_clip():
    net = GlobalEncoder(**TINY).eval()
    context, sequence = net(torch.randn(2, 1, 32, 9))
    assert (context.shape, sequence.shape) == ((2, 6), (2, 9, 6))
    for options, mel in (({"n_mels": 24}, 32), (TINY, 9)):
        with pytest.raises(ValueError, match=r"24|9 bins"):
            GlobalEncoder(**options)(torch.randn(1, 1, mel, 32))


def test_scores_see_patches_of_the_published_size():
    net, mel = PatchDiscriminator(channels=2, layers=3), torch.randn(2, 1, 160, 96, requires_grad=True)
    ((scores, maps),) = net(mel)
    assert scores.shape == (2, 18 * 10) and len(maps) == 5 and maps[-1].shape == (2, 1, 18, 10)
    torch.testing.assert_close(net(mel[:1])[0][0], scores[:1])
    maps[-1][0, 0, 9, 5].backward()
    reached = mel.grad[0, 0].abs() > 0
    assert int(reached.any(1).sum()) == int(reached.any(0).sum()) == 70
