"""Vocos' backbone before Griffin-Lim: untrained it is Griffin-Lim, and it computes the same in pieces."""

import numpy as np
import pytest
import torch

from zoo.audio.analysis.griffin_lim import find_phase, invert_mel_kl, synthesise
from zoo.audio.analysis.mel import LogMel
from zoo.hifigan.inference.vocoder import Vocoder
from zoo.hifigan.nets.griffin_lim import GriffinLimVocos


@pytest.fixture(params=["same", "center"])
def net(request):
    torch.manual_seed(0)
    mel = LogMel(8000, 64, 16, 64, 12, 0.0, None, padding=request.param)
    return GriffinLimVocos(mel, dim=8, intermediate_dim=12, layers=1, updates=5, iterations=3, training_iterations=1)


def test_untrained_it_is_griffin_lim_and_trained_its_magnitudes_move(net):
    mel = net.eval().mel
    audio = torch.randn(2, 16 * 20) / 8
    x = mel(audio)
    inverted = invert_mel_kl(x.exp(), mel, 5).clamp(min=1e-5)
    phase = find_phase(inverted, torch.ones_like(inverted) + 0j, mel, 3)
    torch.testing.assert_close(net(x)[:, 0], synthesise(inverted * phase, mel))
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
