"""Agents: first weights, names, masks, and targets that do not exist."""

import math

import pytest
import torch
from torch import nn

from tests.ci_llm.crowd_parts import batch, crowd


def layer_of(net, name="model.layers.0.self_attn.q_proj") -> nn.Module:
    return net.agents.adapters.get_submodule(name)


def test_an_agent_starts_the_same_in_any_crowd():
    small, large = crowd(count=2).agents, crowd(count=5).agents
    for agent in range(2):
        for key, value in small.adapter(agent).items():
            assert torch.equal(value, large.adapter(agent)[key])
    key = next(iter(small.adapter(0)))
    assert not torch.equal(small.adapter(0)[key], small.adapter(1)[key])
    assert not torch.equal(small.adapter(0)[key], crowd(count=2, seed=1).agents.adapter(0)[key])


def test_lora_begins_as_the_backbone_and_normal_does_not():
    ids, mask, _ = batch()
    for init, same in (("lora", True), ("normal", False)):
        net = crowd(init=init).eval()
        with net.without_agents():
            alone = net(ids, mask)
        assert torch.equal(net(ids, mask), alone.expand(3, -1, -1, -1)) == same
    weights = crowd(init="lora", rank=16).agents.adapter(0)
    first = next(value for key, value in weights.items() if "lora_A" in key)
    assert first.abs().max() <= 1 / math.sqrt(32)
    assert first.std().item() == pytest.approx(1 / math.sqrt(3 * 32), rel=0.1)
    std = torch.cat([value.flatten() for value in crowd(std=0.02).agents.adapter(0).values()]).std()
    assert std.item() == pytest.approx(0.02, rel=0.05)


def test_dropconnect_masks_inside_the_graph():
    net = crowd(count=2, dropconnect=0.5, dropconnect_rescale=False)
    agents, lora = net.agents, layer_of(net)
    x = torch.eye(32).repeat(2, 1, 1)
    with agents.active_agents(range(2), agents.sample_mask_seeds()):
        delta, again = (agents.add_delta(lora, 0, x, torch.zeros(2, 32, 32)) for _ in range(2))
    assert torch.equal(delta, again)
    delta.sum().backward()
    masked_a, masked_b = lora.lora_A.grad == 0, lora.lora_B.grad == 0
    a, b = lora.lora_A.detach().masked_fill(masked_a, 0), lora.lora_B.detach().masked_fill(masked_b, 0)
    torch.testing.assert_close(delta, torch.einsum("kri,kor->kio", a, b) * agents.scale)
    gradient = (b.sum(1)[..., None] * agents.scale).expand_as(a)
    torch.testing.assert_close(lora.lora_A.grad[~masked_a], gradient[~masked_a])
    assert 0.3 < masked_a.float().mean() < 0.7 and not torch.equal(masked_a[0], masked_a[1])
