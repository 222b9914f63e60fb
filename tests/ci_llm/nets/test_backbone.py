"""Backbones: precision, and products of few rows."""

import pytest
import torch

from tests.ci_llm.crowd_parts import HOW, batch, crowd
from zoo.ci_llm.losses.likelihood import losses
from zoo.ci_llm.nets.backbone import Backbone


def test_bfloat16_keeps_float32_agents():
    net = crowd(backbone={"dtype": "bfloat16"}, checkpointing=True)
    ids, mask, labels = batch()
    logits = net(ids, mask)
    assert logits.dtype == torch.bfloat16
    losses(logits, labels).mean().backward()
    assert all(p.dtype == p.grad.dtype == torch.float32 and p.grad.any() for p in net.agents.parameters())
    torch.testing.assert_close(logits.float(), crowd()(ids, mask), atol=0.05, rtol=0.05)


@pytest.mark.parametrize("rows", [0, 1, 4, 5])
def test_few_rows_give_the_same_outputs(rows):
    layer = Backbone(**HOW["llama"]).blocks[0].mlp.up_proj
    x = torch.randn(rows, 32, generator=torch.Generator().manual_seed(0))
    expected = torch.nn.functional.linear(x, layer.weight)
    torch.testing.assert_close(layer(x[:, None]), expected[:, None])
    torch.testing.assert_close(layer(x.T.contiguous().T), expected)
