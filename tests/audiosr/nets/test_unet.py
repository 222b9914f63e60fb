from __future__ import annotations

import pytest
import torch

from tests.audiosr.nets.sizes import UNETS
from zoo.audiosr.nets.unet import SpatialTransformer, UNet

TINY = {
    "in_channels": 4, "out_channels": 2, "channels": 16, "multipliers": (1, 2), "blocks": 1, "attention_factors": (2,),
    "head_channels": 8, "norm_groups": 4,
}  # fmt: skip


def build(**options: object) -> UNet:
    torch.manual_seed(0)
    net = UNet(**TINY, **options)
    generator = torch.Generator().manual_seed(1)
    for parameter in net.parameters():  # zeros too
        parameter.data += 0.05 * torch.randn(parameter.shape, generator=generator)
    return net


def inputs(context: bool = False) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(2)
    x, vector = torch.randn(2, 4, 4, 6, generator=generator), torch.randn(2, 5, generator=generator)
    return (x, torch.tensor([3, 700]), vector) if context else (x, torch.tensor([3, 700]))


@pytest.mark.parametrize(
    ("options", "parameters"),
    [
        ({}, 258_195_088),
        ({"fusion": "replace", "context_channels": 128}, 288_248_208),
        ({"fusion": "residual", "context_channels": 128, "transformers_per_down_block": 1}, 255_479_184),
    ],
    ids=["AudioSR", "modelV1", "model.py"],
)
def test_parameters_of_the_originals(options, parameters):
    with torch.device("meta"):
        net = UNet(**UNETS["audiosr"], **options)
    assert sum(parameter.numel() for parameter in net.parameters()) == parameters


def test_dropout_is_for_training_alone():
    net, expected = build(dropout=0.5), build()(*inputs())
    torch.testing.assert_close(net.eval()(*inputs()), expected, atol=0, rtol=0)
    assert not torch.equal(net.train()(*inputs()), expected)


def test_attention_to_one_vector_is_torchs():
    torch.manual_seed(0)
    net, context, x = SpatialTransformer(16, 2, 4, "residual", 5), torch.randn(2, 5), torch.randn(2, 16, 4, 6)
    key = net.global_proj(context)[:, None]
    expected, _ = net.global_attn(x.flatten(2).transpose(1, 2), key, key)
    expected = expected.transpose(1, 2).reshape(x.shape)
    calls = []
    net.norm.register_forward_pre_hook(lambda module, arguments: calls.append(arguments[0]))
    net(x, context).sum().backward()
    net.fusion = "replace"
    net(x, context)
    torch.testing.assert_close(calls[0], x + expected)
    torch.testing.assert_close(calls[1], expected)
    assert all(parameter.grad is not None for parameter in net.parameters())  # DDP refuses parameters without


def test_time_matters_in_the_tiny_net():
    with torch.no_grad():
        difference = build()(inputs()[0], torch.tensor([1, 1])) - build()(inputs()[0], torch.tensor([900, 900]))
    assert difference.abs().max() > 1e-3


@pytest.mark.parametrize("autocast", [False, True], ids=["float32", "bfloat16"])
def test_checkpointing_gives_equal_gradients_with_frozen_blocks(autocast):
    """ProjectLily's own checkpointing raised under autocast, and with blocks that do not train."""
    gradients, saved = [], []
    for checkpointing in (False, True):
        net, sizes = build(fusion="residual", context_channels=5, checkpointing=checkpointing), []
        net.input_blocks.requires_grad_(False)
        with (
            torch.autocast("cpu", torch.bfloat16, enabled=autocast),
            torch.autograd.graph.saved_tensors_hooks(lambda t, sizes=sizes: sizes.append(t.numel()) or t, lambda t: t),
        ):
            loss = net(*inputs(context=True)).float().square().mean()
        saved.append(sum(sizes))
        loss.backward()
        gradients.append({name: p.grad for name, p in net.named_parameters() if p.requires_grad})
    torch.testing.assert_close(gradients[1], gradients[0], atol=0, rtol=0)
    assert saved[1] < saved[0]


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"fusion": "film", "context_channels": 5}, "fusion"),
        ({"fusion": "residual"}, "both or neither"),
        ({"attention_factors": (4,)}, "attention_factors"),
        ({"head_channels": 12}, "heads of 12"),
        ({"norm_groups": 5}, "norm_groups 5"),
    ],
)
def test_wrong_settings_are_refused(options, key):
    with pytest.raises(ValueError, match=key):
        UNet(**{**TINY, **options})


def test_wrong_inputs_are_refused():
    with pytest.raises(ValueError, match="multiples of 2"):
        build()(torch.randn(1, 4, 4, 5), torch.tensor([0]))
    with pytest.raises(ValueError, match="context"):
        build()(*inputs(context=True))
