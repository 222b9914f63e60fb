from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.audiosr.nets.sizes import UNETS
from zoo.audiosr.nets.unet import SpatialTransformer, UNet

TINY = {
    "in_channels": 4,
    "out_channels": 2,
    "channels": 16,
    "multipliers": (1, 2),
    "blocks": 1,
    "attention_factors": (2,),
    "head_channels": 8,
    "norm_groups": 4,
}


def build(**options: object) -> UNet:
    torch.manual_seed(0)
    return UNet(**TINY, **options)


def shake(net: nn.Module) -> None:
    """Move every weight off its start, zeros included."""
    generator = torch.Generator().manual_seed(1)
    for parameter in net.parameters():
        parameter.data += 0.05 * torch.randn(parameter.shape, generator=generator)


def inputs() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    shapes = {"x": (2, 4, 4, 6), "context": (2, 5), "sequence": (2, 3, 5)}
    drawn = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    return {**drawn, "t": torch.tensor([3, 700])}


def count(net: nn.Module) -> int:
    return sum(parameter.numel() for parameter in net.parameters())


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
        assert count(UNet(**UNETS["audiosr"], **options)) == parameters


def test_small_has_about_60_million():
    with torch.device("meta"):
        assert 55e6 < count(UNet(**UNETS["small"])) < 70e6


def test_dropout_is_for_training_alone():
    plain, dropped = build(), build(dropout=0.5)
    shake(plain)
    dropped.load_state_dict(plain.state_dict())
    given = inputs()["x"], inputs()["t"]
    torch.testing.assert_close(dropped.eval()(*given), plain(*given), atol=0, rtol=0)
    assert not torch.equal(dropped.train()(*given), plain(*given))


@pytest.mark.parametrize("fusion", ["film", "sequence"])
def test_fusion_starts_without_effect_and_then_learns(fusion):
    """The layers that start at zero move first; from then on the context itself gets a gradient."""
    net, given = build(fusion=fusion, context_channels=5), inputs()
    fused = {name for name, _ in net.named_parameters() if "global_" in name}
    start = {name for name in fused if name.endswith(("global_film.weight", "global_film.bias", "gate"))}
    shake(net)
    for name, parameter in net.named_parameters():
        if name in start:
            parameter.data.zero_()
    with torch.no_grad():
        torch.testing.assert_close(net(**given), net(given["x"], given["t"]), atol=0, rtol=0)
    net(**given).square().sum().backward()
    assert start
    assert all(net.get_parameter(name).grad.abs().sum() > 0 for name in start)
    with torch.no_grad():
        for name in start:
            parameter = net.get_parameter(name)
            parameter -= 0.01 * parameter.grad
    given["context"].requires_grad_()
    given["sequence"].requires_grad_()
    net.zero_grad()
    net(**given).square().sum().backward()
    assert given["context"].grad.abs().sum() > 0
    assert all(parameter.grad is not None for parameter in net.parameters())
    assert fusion == "film" or given["sequence"].grad.abs().sum() > 0


def test_attention_to_the_vector_alone_is_torchs():
    net, given = SpatialTransformer(16, 2, 4, "residual", 5), inputs()
    shake(net)
    x = torch.randn(2, 16, 4, 6)
    key = net.global_proj(given["context"])[:, None]
    expected, _ = net.global_attn(x.flatten(2).transpose(1, 2), key, key)
    found = net._attend_globally(x, given["context"]) - x
    torch.testing.assert_close(found, expected.transpose(1, 2).reshape(x.shape))
    found.sum().backward()
    assert net.global_attn.in_proj_weight.grad[:32].abs().sum() == 0
    assert net.global_attn.in_proj_weight.grad[32:].abs().sum() > 0


def test_time_matters_in_the_tiny_net():
    net, x = UNet(**UNETS["tiny"]), torch.randn(1, 16, 4, 4)
    shake(net)
    with torch.no_grad():
        difference = net(x, torch.tensor([1])) - net(x, torch.tensor([900]))
    assert difference.abs().max() > 1e-3


@pytest.mark.parametrize("autocast", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("fusion", ["residual", "film", "sequence"])
def test_checkpointing_gives_equal_gradients_also_with_frozen_blocks(fusion, autocast):
    """ProjectLily's own checkpointing raised under autocast, and with blocks that do not train."""
    gradients = []
    for checkpointing in (False, True):
        net, given = build(fusion=fusion, context_channels=5, checkpointing=checkpointing), inputs()
        shake(net)
        net.input_blocks.requires_grad_(False)
        net.middle_block.requires_grad_(False)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = net(**given).float().square().mean()
        loss.backward()
        gradients.append({name: p.grad for name, p in net.named_parameters() if p.requires_grad})
    assert gradients[0].keys() == gradients[1].keys()
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, atol=0, rtol=0, msg=name)


def test_checkpointing_keeps_fewer_activations():
    saved = []
    for checkpointing in (False, True):
        net, given, sizes = build(checkpointing=checkpointing), inputs(), []
        with torch.autograd.graph.saved_tensors_hooks(lambda t, sizes=sizes: sizes.append(t.numel()) or t, lambda t: t):
            net(given["x"], given["t"])
        saved.append(sum(sizes))
    assert saved[1] < saved[0] / 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fusion": "add", "context_channels": 5}, "fusion is one of"),
        ({"fusion": "film"}, "both or neither"),
        ({"context_channels": 5}, "both or neither"),
        ({"attention_factors": (4,)}, "attention_factors"),
        ({"head_channels": 12}, "heads of 12"),
        ({"norm_groups": 5}, "norm_groups 5"),
    ],
)
def test_wrong_settings_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        UNet(**{**TINY, **options})


def test_wrong_inputs_are_refused():
    net = build()
    with pytest.raises(ValueError, match="multiples of 2"):
        net(torch.randn(1, 4, 4, 5), torch.tensor([0]))
    with pytest.raises(ValueError, match='fusion "none"'):
        net(torch.randn(1, 4, 4, 4), torch.tensor([0]), torch.randn(1, 5))
