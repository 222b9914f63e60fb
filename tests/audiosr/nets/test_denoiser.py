from __future__ import annotations

import pytest
import torch

from tests.audiosr.nets.sizes import GLOBAL_ENCODERS, UNETS
from zoo.audiosr.nets.denoiser import Denoiser, GlobalEncoder, concat
from zoo.audiosr.nets.unet import UNet


def build(fusion: str) -> Denoiser:
    net = Denoiser(UNet(**UNETS["tiny"], fusion=fusion, context_channels=32), GlobalEncoder(**GLOBAL_ENCODERS["tiny"]))
    generator = torch.Generator().manual_seed(0)
    for parameter in net.unet.parameters():  # layers that start at zero hide those before them
        parameter.data += 0.02 * torch.randn(parameter.shape, generator=generator)
    return net


def test_groups_partition_all_parameters():
    net = build("replace")
    groups = net.groups()
    names = [name for group in groups.values() for name in group]
    assert sorted(names) == sorted(name for name, _ in net.named_parameters())
    unet = ["time_embed", "input_blocks", "middle_block", "output_blocks", "out"]
    assert sorted(groups) == sorted([*unet, "global_encoder", "global_fusion"])
    without = Denoiser(UNet(**UNETS["tiny"])).groups()
    assert without == {group: groups[group] for group in unet}


def test_gradients_reach_the_encoder():
    net = build("residual")
    net(torch.randn(2, 16, 4, 4), torch.tensor([1, 999]), torch.randn(2, 1, 16, 256)).square().mean().backward()
    assert all(parameter.grad is not None for parameter in net.parameters())
    assert net.global_encoder.cnn_encoder[0].weight.grad.abs().sum() > 0


@torch.no_grad()
def test_encoded_clip_serves_many_calls():
    net = build("residual").eval()
    x, t, clip = torch.randn(1, 16, 4, 4), torch.tensor([5]), torch.randn(1, 1, 20, 256)
    expected = net(x, t, clip)
    torch.testing.assert_close(net(x, t, context=net.encode_clip(clip)), expected)
    assert not torch.equal(net(x, t), expected)


def test_latent_scale_is_saved_with_the_weights():
    net, other = Denoiser(UNet(**UNETS["tiny"])), Denoiser(UNet(**UNETS["tiny"]))
    net.latent_scale.fill_(0.37)
    other.load_state_dict(net.state_dict())
    assert other.latent_scale == net.latent_scale
    assert net.encode_clip(torch.randn(1, 1, 4, 256)) is None


def test_concat_resizes_the_condition():
    joined = concat(torch.zeros(1, 2, 4, 4), torch.ones(1, 3, 2, 2))
    torch.testing.assert_close(joined[:, 2:], torch.ones(1, 3, 4, 4))


def test_components_that_do_not_fit_are_refused():
    encoder = GlobalEncoder(**GLOBAL_ENCODERS["tiny"])
    for unet, other in (({}, encoder), ({"fusion": "residual", "context_channels": 32}, None)):
        with pytest.raises(ValueError, match="both or neither"):
            Denoiser(UNet(**UNETS["tiny"], **unet), other)
    with pytest.raises(ValueError, match="expects 16"):
        Denoiser(UNet(**UNETS["tiny"], fusion="residual", context_channels=16), encoder)
