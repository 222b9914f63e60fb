from __future__ import annotations

import pytest
import torch

from tests.audiosr.nets.sizes import AUTOENCODERS, GLOBAL_ENCODERS, UNETS
from zoo.audiosr.nets.denoiser import Denoiser, concat
from zoo.audiosr.nets.global_encoder import GlobalEncoder
from zoo.audiosr.nets.unet import UNet
from zoo.blocks.autoencoder import AutoencoderKL


def build(fusion: str) -> Denoiser:
    return Denoiser(UNet(**UNETS["tiny"], fusion=fusion, context_channels=32), GlobalEncoder(**GLOBAL_ENCODERS["tiny"]))


def moved(net: torch.nn.Module) -> None:
    """Move every weight off its start: layers that start at zero hide what comes before them."""
    generator = torch.Generator().manual_seed(0)
    for parameter in net.parameters():
        parameter.data += 0.02 * torch.randn(parameter.shape, generator=generator)


@pytest.mark.parametrize("fusion", ["replace", "film", "sequence"])
def test_groups_partition_all_parameters(fusion):
    net = build(fusion)
    groups = net.groups()
    names = [name for group in groups.values() for name in group]
    assert sorted(names) == sorted(name for name, _ in net.named_parameters())
    unet = ["time_embed", "input_blocks", "middle_block", "output_blocks", "out"]
    assert sorted(groups) == sorted([*unet, "global_encoder", "global_fusion"])
    plain = Denoiser(UNet(**UNETS["tiny"])).groups()
    assert plain == {group: groups[group] for group in plain}
    assert sorted(plain) == sorted(unet)


def test_everything_tiny_stays_below_2_million_parameters():
    with torch.device("meta"):
        nets = [build("sequence"), AutoencoderKL(**AUTOENCODERS["tiny"])]
    assert sum(parameter.numel() for net in nets for parameter in net.parameters()) < 2e6


@pytest.mark.parametrize("fusion", ["film", "sequence"])
def test_gradients_reach_the_whole_encoder(fusion):
    """The tokens' fusion uses the vector too: DDP refuses a parameter that takes no part."""
    net = build(fusion)
    moved(net.unet)
    net(torch.randn(2, 16, 4, 4), torch.tensor([1, 999]), torch.randn(2, 1, 16, 256)).square().mean().backward()
    assert all(parameter.grad is not None for parameter in net.parameters())
    encoder = net.global_encoder
    for layer in (encoder.cnn_encoder[0], encoder._adaptive_proj, encoder.global_proj):
        assert layer.weight.grad.abs().sum() > 0


@torch.no_grad()
def test_a_clip_encoded_once_serves_many_calls():
    net = build("film").eval()
    moved(net.unet)
    x, t, clip = torch.randn(1, 16, 4, 4), torch.tensor([5]), torch.randn(1, 1, 20, 256)
    expected = net(x, t, clip)
    torch.testing.assert_close(net(x, t, encoded=net.encode_clip(clip)), expected)
    assert not torch.equal(net(x, t), expected)


def test_latent_scale_is_saved_with_the_weights():
    net = Denoiser(UNet(**UNETS["tiny"]))
    net.latent_scale.fill_(0.37)
    other = Denoiser(UNet(**UNETS["tiny"]))
    other.load_state_dict(net.state_dict())
    assert other.latent_scale == net.latent_scale
    assert net.encode_clip(torch.randn(1, 1, 4, 256)) is None


def test_concat_resizes_the_condition():
    x = torch.zeros(1, 2, 4, 4)
    joined = concat(x, torch.ones(1, 3, 2, 2))
    assert joined.shape == (1, 5, 4, 4)
    torch.testing.assert_close(joined[:, 2:], torch.ones(1, 3, 4, 4))


def test_parts_that_do_not_fit_are_refused():
    encoder = GlobalEncoder(**GLOBAL_ENCODERS["tiny"])
    with pytest.raises(ValueError, match="give both or neither"):
        Denoiser(UNet(**UNETS["tiny"]), encoder)
    with pytest.raises(ValueError, match="no global_encoder"):
        Denoiser(UNet(**UNETS["tiny"], fusion="film", context_channels=32))
    with pytest.raises(ValueError, match="expects 16"):
        Denoiser(UNet(**UNETS["tiny"], fusion="film", context_channels=16), encoder)
