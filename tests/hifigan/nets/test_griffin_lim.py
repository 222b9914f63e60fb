"""Vocos' backbone before Griffin-Lim: untrained it is Griffin-Lim, and it computes the same in pieces."""

import numpy as np
import pytest
import torch

from zoo.audio.analysis.griffin_lim import find_phase, invert_mel_kl, synthesize
from zoo.audio.analysis.mel import LogMel
from zoo.hifigan.inference.vocoder import Vocoder
from zoo.hifigan.nets.griffin_lim import GriffinLimVocos, MagnitudeVocos


@pytest.fixture(params=["same", "center"])
def net(request):
    torch.manual_seed(0)
    mel = LogMel(8000, 64, 16, 64, 12, 0.0, None, padding=request.param)
    return GriffinLimVocos(mel, dim=8, intermediate_dim=12, layers=1, updates=5, iterations=3, training_iterations=1)


def test_untrained_it_is_griffin_lim_and_trained_its_magnitudes_move(net):
    mel = net.double().eval().mel  # in float32 the phase of a bin near zero is rounding's alone
    audio = torch.randn(2, 16 * 20, dtype=torch.float64) / 8
    x = mel(audio)
    inverted = invert_mel_kl(x.exp(), mel, 5).clamp(min=1e-5)
    phase = find_phase(inverted, torch.ones_like(inverted) + 0j, mel, 3)
    torch.testing.assert_close(net(x)[:, 0], synthesize(inverted * phase, mel))
    net.train()
    (net(x)[..., : audio.shape[1]] - audio[:, None]).abs().mean().backward()
    assert net.out.weight.grad.abs().max() > 0 and net.out.bias.grad.isfinite().all()


def test_a_frame_depends_on_its_context_alone_and_pieces_are_the_whole(net):
    torch.nn.init.normal_(net.out.weight, std=0.1)
    reach = net.eval().receptive_frames
    x = net.mel(torch.randn(1, 16 * 600) / 8)
    changed = x.clone()
    changed[..., 300] += 2.0
    with torch.no_grad():
        moved = (net(x) - net(changed)).abs()[0, 0].reshape(-1, 16).amax(1)
    assert moved[: 300 - reach].max() <= 1e-5 and moved[301 + reach :].max() <= 1e-5 and moved[300] > 1e-3
    vocoder = Vocoder(net, net.mel)
    pieces = np.concatenate(list(vocoder.stream(np.split(x[0].numpy(), [5, 90, 400], 1))))
    with torch.no_grad():
        np.testing.assert_allclose(pieces, net(x)[0, 0].numpy(), atol=1e-4)
    with pytest.raises(ValueError, match="no ONNX form"):
        vocoder.onnx_form()


def test_the_inversion_keeps_the_mel_and_its_scale():
    mel = LogMel(8000, 256, 64, 256, 20, 0.0, None)
    magnitude = torch.rand(1, 129, 7) + 0.5
    wanted = mel.mel_basis @ magnitude
    found = invert_mel_kl(wanted, mel, 50)
    torch.testing.assert_close(mel.mel_basis @ found, wanted, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(invert_mel_kl(1e-3 * wanted, mel, 50), 1e-3 * found, rtol=1e-3, atol=1e-6)


def magnitudes(**changes):
    torch.manual_seed(0)
    settings = dict(in_channels=6, hop_length=32, steps=2, n_fft=64, dim=8, intermediate_dim=12, layers=1)
    return MagnitudeVocos(**{**settings, "iterations": 3, "training_iterations": 1, **changes})


def test_the_shortcut_is_solved_for_beside_the_backbone():
    """Features of which the logarithms are a linear function, but for what the backbone adds, are reproduced."""
    net = magnitudes()
    torch.nn.init.normal_(net.out.weight, std=0.1)
    audio = torch.randn(3, 32 * 40) / 8
    logarithms = net._logarithms(audio)  # (B, 80, 33)
    rows = logarithms.unflatten(1, (40, 2)).flatten(2)
    basis = torch.linalg.svd((rows - rows.mean((0, 1))).flatten(0, 1), full_matrices=False).Vh[:6]
    features = (rows @ basis.T).transpose(1, 2)
    net.solve([(features[:2], audio[:2]), (features[2:], audio[2:])], ridge=0.0)
    inner = slice(2, -2)
    with torch.no_grad():
        left = (logarithms - net.magnitudes(features).log().transpose(1, 2))[:, inner]
    rows = torch.nn.functional.pad(features[..., 1:-1].transpose(1, 2).flatten(0, 1), (0, 1), value=1.0)
    left = left.unflatten(1, (-1, 2)).flatten(2).flatten(0, 1)
    assert (rows.T @ left).abs().max() <= 1e-2  # what is left has nothing that the features tell linearly
    assert left.square().mean() < 0.9 * (logarithms - logarithms.mean((0, 1))).square().mean()
    with pytest.raises(ValueError, match="got none"):
        net.solve([])


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
    with pytest.raises(ValueError, match="steps 3 must divide hop_length 32"):
        magnitudes(steps=3)
    with pytest.raises(ValueError, match="even 0 < hop_length"):
        magnitudes(n_fft=8)
