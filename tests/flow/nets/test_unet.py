import logging

import pytest
import torch
from torch import nn

from zoo.flow.nets.unet import NEARLY_ZERO, UNet


def small(**arguments) -> UNet:
    torch.manual_seed(0)
    sizes = {"image_resolution": 8, "channels": 16, "channel_mult": (1, 2), "attention_levels": (1,)}
    return UNet(**{**sizes, "res_blocks": 1, "dropout": 0.0, **arguments})


def awake(net: UNet) -> UNet:
    """The net with weights that let every part show in the output."""
    for name, parameter in net.named_parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.1 if "embedding" not in name else 1.0)
    return net


@pytest.fixture
def batch() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    return torch.randn(3, 3, 8, 8), torch.tensor([0.1, 0.5, 0.9]), torch.tensor([1, 2, 3])


def test_time_and_class_reach_the_output_at_every_width(batch):
    x, t, label = batch
    for channels in (8, 16, 32):
        net = awake(small(channels=channels)).eval()
        assert (net(x, t, label) - net(x, t, label.roll(1))).abs().max() > 1e-3
        assert (net(x, t, label) - net(x, 1 - t, label)).abs().max() > 1e-3


def test_one_channel_per_group_is_warned_of_and_blind(batch, caplog):
    x, t, label = batch
    with caplog.at_level(logging.WARNING):
        net = awake(small(channels=32, channel_mult=(1,), attention_levels=(0,), norm_groups=32)).eval()
    assert "ignore time and class" in caplog.text
    torch.testing.assert_close(net(x, t, label), net(x, 1 - t, label.roll(1)), atol=1e-4, rtol=0)


def test_labels(batch):
    x, t, label = batch
    net = awake(small()).eval()
    mixed, plain = net(x, t, torch.tensor([1, -1, 0])), net(x, t)
    torch.testing.assert_close(mixed[1], plain[1])
    assert (mixed[2] - plain[2]).abs().max() > 1e-3
    unconditional = awake(small(num_classes=0)).eval()
    assert torch.equal(unconditional(x, t, label), unconditional(x, t))


def test_checkpointing_changes_no_gradient(batch):
    plain = awake(small(dropout=0.3))
    saving = awake(small(dropout=0.3, checkpointing=True))
    saving.load_state_dict(plain.state_dict())
    for net in (plain, saving):
        torch.manual_seed(5)
        net(*batch).square().mean().backward()
    for (name, a), b in zip(plain.named_parameters(), saving.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, msg=name)


def test_bfloat16_net_keeps_times_apart(batch):
    x, _, label = batch
    net = awake(small()).eval().bfloat16()
    times = torch.tensor([0.5000, 0.5001, 0.5002])
    out = net(x[:1].expand(3, -1, -1, -1).bfloat16(), times, label[:1].expand(3))
    assert out.dtype == torch.bfloat16
    assert not torch.equal(out[0], out[2])


def test_initial_weights():
    torch.manual_seed(0)
    actual, original = small(channels=64), small(channels=64, attention_gain=1.0)
    assert actual(torch.randn(2, 3, 12, 16), 0.5, torch.tensor([1, 2])).abs().max() < 1e-3  # of any size
    # Xavier on 128 channels: variance 2 / (128 + 128)
    assert original.middleblocks[0].attn.proj.weight.std().item() == pytest.approx((2 / 256) ** 0.5, rel=0.05)
    assert actual.middleblocks[0].attn.proj.weight.abs().max() < 10 * NEARLY_ZERO
