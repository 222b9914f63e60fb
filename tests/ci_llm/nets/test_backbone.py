"""Backbones: precision, and products of few rows."""

import pytest
import torch

from tests.ci_llm.crowd_parts import CONFIGS, HOW, batch, crowd
from zoo.ci_llm.losses.likelihood import losses
from zoo.ci_llm.nets.backbone import Backbone, LearningBackbone


def test_bfloat16_keeps_float32_agents():
    net = crowd(backbone={"dtype": "bfloat16"}, checkpointing=True)
    ids, mask, labels = batch()
    logits = net(ids, mask)
    assert logits.dtype == torch.bfloat16
    losses(logits, labels).mean().backward()
    assert all(p.dtype == p.grad.dtype == torch.float32 and p.grad.any() for p in net.agents.parameters())
    torch.testing.assert_close(logits.float(), crowd()(ids, mask), atol=0.05, rtol=0.05)


def test_checkpointing_keeps_the_dropout_of_a_learning_backbone():
    ids, mask, labels = batch()
    gradients = []
    for checkpointing in (False, True):
        net = LearningBackbone({**CONFIGS["gpt2"], "attn_pdrop": 0.5}, gradient_checkpointing=checkpointing).train()
        torch.manual_seed(0)
        losses(net(input_ids=ids, attention_mask=mask, use_cache=False).logits[None], labels).mean().backward()
        gradients.append(torch.cat([weight.grad.flatten() for weight in net.parameters()]))
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("rows", [0, 1, 4, 5])
def test_few_rows_give_the_same_outputs(rows):
    layer = Backbone(**HOW["llama"]).blocks[0].mlp.up_proj
    x = torch.randn(rows, 32, generator=torch.Generator().manual_seed(0))
    expected = torch.nn.functional.linear(x, layer.weight)
    torch.testing.assert_close(layer(x[:, None]), expected[:, None])
    torch.testing.assert_close(layer(x.T.contiguous().T), expected)
