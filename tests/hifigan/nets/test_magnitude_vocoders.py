"""Magnitudes by Vocos' backbone, phases by Griffin-Lim: scaled input, the loss, context, pieces."""

import numpy as np
import pytest
import torch

from zoo.hifigan.inference import Vocoder
from zoo.hifigan.nets.magnitude_vocoders import MagnitudeVocos


def magnitudes(**changes):
    torch.manual_seed(0)
    settings = dict(in_channels=6, hop_length=32, steps=2, n_fft=64, dim=8, intermediate_dim=12, layers=1)
    return MagnitudeVocos(**{**settings, "iterations": 3, **changes})


def test_channels_that_outweigh_others_are_scaled():
    net = magnitudes()
    x = torch.randn(5, 6, 40) * torch.tensor([1e3, 1.0, 1e-2, 1.0, 5.0, 0.0])[:, None] + 7.0
    net.standardize([x[:2], x[2:]])
    torch.testing.assert_close(net.mean, x.mean((0, 2)))
    torch.testing.assert_close(net.deviation[:5], x.std((0, 2), unbiased=False)[:5], rtol=1e-3, atol=4e-3)
    assert net.deviation[5] > 1e-3  # a channel that never moves
    with pytest.raises(ValueError, match="got none"):
        net.standardize([])


def test_training_brings_the_magnitudes_that_are_synthesised():
    net = magnitudes(iterations=100)
    audio = torch.sin(torch.arange(32 * 40) * 0.3)[None] / 2
    x = torch.randn(1, 6, 40)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    for _ in range(300):
        predicted, expected = net.compressed_magnitudes(x, audio)
        loss = torch.nn.functional.l1_loss(predicted, expected)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert predicted.shape == expected.shape == (1, 33, 80) and loss < 0.05
    with torch.no_grad():
        spectra = [torch.stft(each, 64, 16, window=torch.hann_window(64), return_complex=True).abs()[..., 5:-5]
                   for each in (net(x)[:, 0], audio)]  # fmt: skip
    assert (spectra[0] - spectra[1]).abs().mean() < 0.1 * spectra[1].mean()


def test_magnitudes_of_features_depend_on_their_context_alone():
    net = magnitudes().eval()
    for weight in (net.out.weight, net.shortcut.weight):
        torch.nn.init.normal_(weight, std=0.1)
    x = torch.randn(1, 6, 120)
    changed = x.clone()
    changed[..., 60] += 2.0
    with torch.no_grad():
        moved = (net(x) - net(changed)).abs()[0, 0].reshape(-1, 32).amax(1)
    reach = net.receptive_frames
    assert moved.shape == (120,) and reach < 20
    assert moved[: 60 - reach].max() <= 1e-6 and moved[61 + reach :].max() <= 1e-6 and moved[60] > 1e-3
    vocoder = Vocoder(net, None, 8000)
    pieces = np.concatenate(list(vocoder.stream(np.split(x[0].numpy(), [5, 90], 1))))
    with torch.no_grad():
        np.testing.assert_allclose(pieces, net(x)[0, 0].numpy(), atol=1e-4)
    with pytest.raises(ValueError, match="no ONNX export"):
        vocoder.onnx_graph()
    with pytest.raises(ValueError, match="steps 3 must divide hop_length 32"):
        magnitudes(steps=3)
    with pytest.raises(ValueError, match="even 0 < hop_length"):
        magnitudes(n_fft=8)
