"""Magnitudes by Vocos' backbone, phases by Griffin-Lim: the shortcut's least squares, the loss, context, pieces."""

import numpy as np
import pytest
import torch

from zoo.hifigan.inference import Vocoder
from zoo.hifigan.nets.magnitude_vocoders import MagnitudeVocos


def magnitudes(**changes):
    torch.manual_seed(0)
    settings = dict(in_channels=6, hop_length=32, steps=2, n_fft=64, dim=8, intermediate_dim=12, layers=1)
    return MagnitudeVocos(**{**settings, "iterations": 3, **changes})


def test_the_shortcut_is_solved_for_over_a_scaled_input():
    """Features of which the logarithms are a linear function are reproduced, whatever the channels' scales."""
    net = magnitudes()
    audio = torch.randn(3, 32 * 40) / 8
    logarithms = net._spectra(audio).clamp(min=1e-5).log().transpose(1, 2)  # (B, 80, 33)
    rows = logarithms.unflatten(1, (40, 2)).flatten(2)
    basis = torch.linalg.svd((rows - rows.mean((0, 1))).flatten(0, 1), full_matrices=False).Vh[:6]
    features = (rows @ basis.T * torch.tensor([1e3, 1.0, 0.1, 1.0, 5.0, 1.0]) + 7.0).transpose(1, 2)
    net.fit_shortcut([(features[:2], audio[:2]), (features[2:], audio[2:])], ridge=0.0)
    inner = features[..., 1:-1].transpose(1, 2).flatten(0, 1)
    torch.testing.assert_close(net.mean, inner.mean(0), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(net.deviation, inner.std(0, unbiased=False), rtol=1e-3, atol=1e-3)
    with torch.no_grad():
        left = (logarithms - net._log_magnitudes(features).transpose(1, 2))[:, 2:-2]
    rows = torch.nn.functional.pad((inner - net.mean) / net.deviation, (0, 1), value=1.0)
    left = left.unflatten(1, (-1, 2)).flatten(2).flatten(0, 1)
    assert (rows.T @ left).abs().max() <= 1e-2  # what is left has nothing that the features tell linearly
    assert left.square().mean() < 0.9 * (logarithms - logarithms.mean((0, 1))).square().mean()


def test_training_brings_the_magnitudes_that_are_synthesised():
    net = magnitudes(iterations=100)
    audio = torch.sin(torch.arange(32 * 40) * 0.3)[None] / 2
    x = torch.randn(1, 6, 40)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    for _ in range(300):
        predicted, expected = net(x, audio)
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
    with pytest.raises(ValueError, match="must divide hop_length"):
        magnitudes(steps=3)
