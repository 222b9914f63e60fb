import math

import pytest
import torch

from zoo.blocks.autoencoder import AutoencoderKL, kl_divergence, posterior_mean, sample_posterior

TINY = {
    "in_channels": 1, "out_channels": 1, "block_out_channels": (16, 32, 32), "layers_per_block": 1,
    "latent_channels": 8, "norm_num_groups": 4,
}  # fmt: skip


def count(net: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in net.parameters())


def test_parameters_of_audiosr():
    with torch.device("meta"):
        net = AutoencoderKL(1, 1, (128, 256, 512, 1024), latent_channels=16)
    assert count(net.encoder) == 90_010_272
    assert count(net.decoder) == 133_523_969
    assert count(net.quant_conv) + count(net.post_quant_conv) == 1_328
    assert (net.factor, net.latent_channels) == (8, 16)


def test_shapes_and_sizes():
    net = AutoencoderKL(**TINY)
    moments = net.encode(torch.randn(2, 1, 12, 32))
    assert moments.shape == (2, 16, 3, 8)
    assert net.decode(posterior_mean(moments)).shape == (2, 1, 12, 32)
    with pytest.raises(ValueError, match="multiples of 4"):
        net.encode(torch.randn(1, 1, 13, 32))
    with pytest.raises(ValueError, match="norm_num_groups"):
        AutoencoderKL(block_out_channels=[16])


def test_gaussians():
    mean, log_variance = torch.tensor([1.0, -2.0]), torch.tensor([0.5, -30.0])
    moments = torch.cat([mean, log_variance]).reshape(1, 4, 1, 1)
    sample = sample_posterior(moments, torch.full((1, 2, 1, 1), 2.0)).flatten()
    torch.testing.assert_close(sample, torch.tensor([1 + 2 * math.exp(0.25), -2.0]))
    expected = 0.5 * ((1 + math.exp(0.5) - 1 - 0.5) + (4 + math.exp(-30) - 1 + 30))
    torch.testing.assert_close(kl_divergence(moments), torch.tensor([expected]))
    torch.testing.assert_close(kl_divergence(torch.zeros(3, 4, 2, 2)), torch.zeros(3))
