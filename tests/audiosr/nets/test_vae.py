from __future__ import annotations

import math

import pytest
import torch

from tests.audiosr.nets.sizes import AUTOENCODERS
from zoo.audiosr.nets.vae import Autoencoder, kl, sample_latents, split


def count(net: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in net.parameters())


def test_parameters_of_the_originals():
    with torch.device("meta"):
        net = Autoencoder(**AUTOENCODERS["audiosr"])
    assert count(net.encoder) == 90_010_272
    assert count(net.decoder) == 133_523_969
    assert count(net.quant_conv) + count(net.post_quant_conv) == 1_328
    assert (net.factor, net.latent_channels) == (8, 16)


def test_shapes_of_the_tiny_autoencoder_and_the_rest_of_an_axis():
    net = Autoencoder(**AUTOENCODERS["tiny"])
    moments = net.encode(torch.randn(2, 1, 13, 32))
    assert moments.shape == (2, 16, 3, 8)
    assert net.decode(split(moments)[0]).shape == (2, 1, 12, 32)
    with pytest.raises(ValueError, match="at least 4"):
        net.encode(torch.randn(1, 1, 3, 32))


def test_gaussians():
    mean, logvar = torch.tensor([1.0, -2.0]), torch.tensor([0.5, -100.0])
    moments = torch.cat([mean, logvar]).reshape(1, 4, 1, 1)
    close = torch.testing.assert_close
    close(split(moments)[1].flatten(), torch.tensor([0.5, -30.0]))
    close(
        sample_latents(moments, torch.full((1, 2, 1, 1), 2.0)).flatten(), torch.tensor([1 + 2 * math.exp(0.25), -2.0])
    )
    expected = 0.5 * ((1 + math.exp(0.5) - 1 - 0.5) + (4 + math.exp(-30) - 1 + 30)) / 2
    close(kl(moments), torch.tensor([expected]))
    close(kl(torch.zeros(3, 4, 2, 2)), torch.zeros(3))


def test_groups_that_do_not_divide_are_refused():
    with pytest.raises(ValueError, match="norm_groups"):
        Autoencoder(channels=16)
