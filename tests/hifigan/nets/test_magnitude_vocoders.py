"""Magnitudes by Vocos' backbone, phases by Griffin-Lim: the shortcut's least squares, context, pieces."""

import numpy as np
import pytest
import torch

from zoo.hifigan.inference import Vocoder
from zoo.hifigan.nets.magnitude_vocoders import MagnitudeVocos


def magnitudes(**changes):
    torch.manual_seed(0)
    settings = dict(in_channels=6, hop_length=32, steps=2, n_fft=64, dim=8, intermediate_dim=12, layers=1)
    return MagnitudeVocos(**{**settings, "iterations": 3, "training_iterations": 1, **changes})


def test_the_shortcut_is_solved_for_next_to_the_backbone():
    """Features of which the logarithms are a linear function, but for what the backbone adds, are reproduced."""
    net = magnitudes()
    torch.nn.init.normal_(net.out.weight, std=0.1)
    audio = torch.randn(3, 32 * 40) / 8
    logarithms = net._log_magnitudes(audio)  # (B, 80, 33)
    rows = logarithms.unflatten(1, (40, 2)).flatten(2)
    basis = torch.linalg.svd((rows - rows.mean((0, 1))).flatten(0, 1), full_matrices=False).Vh[:6]
    features = (rows @ basis.T).transpose(1, 2)
    net.fit_shortcut([(features[:2], audio[:2]), (features[2:], audio[2:])], ridge=0.0)
    inner = slice(2, -2)
    with torch.no_grad():
        left = (logarithms - net.magnitudes(features).log().transpose(1, 2))[:, inner]
    rows = torch.nn.functional.pad(features[..., 1:-1].transpose(1, 2).flatten(0, 1), (0, 1), value=1.0)
    left = left.unflatten(1, (-1, 2)).flatten(2).flatten(0, 1)
    assert (rows.T @ left).abs().max() <= 1e-2  # what is left has nothing that the features tell linearly
    assert left.square().mean() < 0.9 * (logarithms - logarithms.mean((0, 1))).square().mean()
    with pytest.raises(ValueError, match="got none"):
        net.fit_shortcut([])


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
