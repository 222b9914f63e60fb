"""Backbones: frozen, from configs or folders, recomputed blocks without dropout, 4 bits."""

import pytest
import torch

from tests.ci_llm.crowd_parts import CONFIGS, HOW, batch, crowd
from zoo.ci_llm.losses.likelihood import losses
from zoo.ci_llm.nets.backbone import Backbone


@pytest.mark.parametrize("name", CONFIGS)
def test_a_saved_backbone_is_the_same(name, tmp_path):
    net = Backbone(**HOW[name])
    net.save_source(tmp_path)
    again = Backbone(source=str(tmp_path), attention=HOW[name]["attention"])
    assert again.fingerprint() == net.fingerprint()
    assert again.is_local and again.is_frozen
    assert (net.dim, net.vocab_size, len(net.blocks)) == (32, 40, 2)


def test_targets():
    net = Backbone(config=CONFIGS["llama"])
    assert list(net.targets(["q_proj", "down_proj"])) == [
        f"model.layers.{block}.{name}" for block in (0, 1) for name in ("self_attn.q_proj", "mlp.down_proj")
    ]
    assert [net.block_of(name) for name in net.targets(["q_proj"], 1)] == [1]
    assert net.sizes(net.targets(["down_proj"])["model.layers.0.mlp.down_proj"]) == (48, 32)
    other = Backbone(config=CONFIGS["gpt2"])
    assert other.sizes(other.targets(["c_attn"])["transformer.h.1.attn.c_attn"]) == (32, 96)


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
