"""Crowd: every mode and the shared trunk give the same logits, losses and gradients."""

import pytest
import torch
from torch import Tensor

from tests.ci_llm.crowd_parts import batch, crowd
from zoo.ci_llm import Crowd, Diversity
from zoo.ci_llm.losses.objective import CrowdLoss, CrowdObjective

MODES = [("batched", None), ("sequential", None), ("chunked", 2)]
TERM = Diversity(0.5, strategy="last_token")


def step(net: Crowd, diversity: Diversity | None = TERM, ids: Tensor | None = None, **options):
    """The objective of the batch and the gradients by name, with masks that depend on a fixed seed only."""
    texts, mask, labels = batch()
    if ids is not None:
        texts, mask, labels = ids, mask.expand_as(ids), torch.where(labels != -100, ids, -100)
    torch.manual_seed(7)
    objective = CrowdObjective({"input_ids": texts, "attention_mask": mask, "labels": labels}, diversity)
    loss = objective.compute(net, **options)
    net.zero_grad()
    loss.total.backward()
    return loss, {name: p.grad.clone() for name, p in net.agents.adapters.named_parameters()}


def assert_same(result: tuple[CrowdLoss, dict[str, Tensor]], expected: tuple[CrowdLoss, dict[str, Tensor]]) -> None:
    for name in ("total", "losses", "diversity"):
        torch.testing.assert_close(getattr(result[0], name), getattr(expected[0], name), atol=1e-6, rtol=1e-5)
    for name, gradient in expected[1].items():
        assert gradient.flatten(1).norm(dim=1).min() > 0, name
        torch.testing.assert_close(result[1][name], gradient, atol=1e-6, rtol=1e-4)


NOISE = {"dropout": 0.2, "dropconnect": 0.1}


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("mode", MODES, ids=str)
def test_modes_agree_with_masks_and_checkpointing(mode, checkpointing):
    plain = step(crowd(**NOISE))
    assert_same(step(crowd(mode=mode[0], chunk=mode[1], checkpointing=checkpointing, **NOISE)), plain)


@pytest.mark.parametrize(
    ("name", "mode", "checkpointing"),
    [*(("llama", mode, True) for mode in MODES), ("gemma2", MODES[0], False), ("gpt2", MODES[2], True)],
    ids=str,
)
def test_the_shared_trunk_gives_the_same(name, mode, checkpointing):
    net = crowd(name, mode=mode[0], chunk=mode[1], checkpointing=checkpointing, top_layers=1, **NOISE)
    apart = crowd(name, top_layers=1, **NOISE)
    assert net.trunk.is_shared
    apart.trunk.is_shared = False
    assert_same(step(net), step(apart))
    for layer in range(3):
        first, expected = (x.outputs(*batch()[:2], hidden=True, layer=layer) for x in (net.eval(), apart.eval()))
        torch.testing.assert_close(first.hidden, expected.hidden, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("top", [None, 1])
@pytest.mark.parametrize(("name", "mode"), [*(("llama", mode) for mode in MODES), ("gemma2", MODES[2])], ids=str)
def test_logits_at_some_positions_are_those_of_all(name, mode, top):
    net = crowd(name, mode=mode[0], chunk=mode[1], top_layers=top).eval()
    ids, mask, _ = batch()
    at, separate = torch.tensor([3, 4, 20]), torch.tensor([[0, 20], [4, -1], [7, 8]])
    every = net(ids, mask).flatten(1, 2)
    torch.testing.assert_close(net.outputs(ids, mask, logits_at=at).logits, every[:, at], atol=1e-5, rtol=1e-5)
    texts = torch.stack([ids, ids.roll(1, 0), ids]), torch.stack([mask, mask.roll(1, 0), mask])
    every = net(*texts).flatten(1, 2)
    logits = net.outputs(*texts, logits_at=separate).logits
    assert logits.shape == (3, 2, 40)
    for agent, place in ((0, 0), (0, 1), (1, 0), (2, 0), (2, 1)):
        torch.testing.assert_close(logits[agent, place], every[agent, separate[agent, place]], atol=1e-5, rtol=1e-5)
    assert net.outputs(ids, mask, logits_at=at[:0]).logits.shape == (3, 0, 40)


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("top", [None, 1])
def test_agents_may_read_separate_texts(mode, top):
    ids, mask, _ = batch()
    separate = torch.stack([(ids + k) % 40 for k in range(3)])
    net = crowd(mode=mode[0], chunk=mode[1], top_layers=top, **NOISE)
    assert_same(step(net, ids=separate), step(crowd(top_layers=top, **NOISE), ids=separate))
    net.eval()
    together = net(separate, mask.expand_as(separate))
    for agent in range(3):
        with net.select_agents(agent):
            torch.testing.assert_close(net(separate[agent], mask)[0], together[agent], atol=1e-5, rtol=1e-4)
    with net.select_agents(1, 3):
        some = net(separate[1:], mask.expand_as(separate[1:]))
    torch.testing.assert_close(some, together[1:], atol=1e-5, rtol=1e-4)


def test_chunked_computes_chunks_twice_and_scales_inside():
    assert_same(step(crowd(mode="chunked", chunk=1), grad_scale=1024.0), step(crowd()))
    rows = []
    net = crowd(mode="chunked", chunk=2)
    net.backbone.blocks[0].register_forward_hook(lambda module, args, output: rows.append(len(output)))
    step(net)
    assert rows == [6, 3, 6, 3]
