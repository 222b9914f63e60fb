"""Crowd: every mode and the shared trunk give the same, gradients are those of agents trained alone."""

import copy

import pytest
import torch
from peft import LoraConfig, get_peft_model, set_peft_model_state_dict
from torch import Tensor
from transformers import DynamicCache

from tests.ci_llm.crowd_parts import CONFIGS, batch, crowd
from zoo.ci_llm.losses.diversity import Diversity
from zoo.ci_llm.losses.objective import CrowdLoss, CrowdObjective
from zoo.ci_llm.nets.backbone import positions
from zoo.ci_llm.nets.crowd import Crowd

MODES = [("batched", None), ("sequential", None), ("chunked", 2), ("chunked", 1), ("chunked", 3)]


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


def same(result: tuple[CrowdLoss, dict[str, Tensor]], expected: tuple[CrowdLoss, dict[str, Tensor]]) -> None:
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
    same(step(crowd(mode=mode[0], chunk=mode[1], checkpointing=checkpointing, **NOISE)), plain)


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("mode", MODES[:3], ids=str)
@pytest.mark.parametrize("name", CONFIGS)
def test_the_shared_trunk_gives_the_same(name, mode, checkpointing):
    net = crowd(name, mode=mode[0], chunk=mode[1], checkpointing=checkpointing, top_layers=1, **NOISE)
    apart = crowd(name, top_layers=1, **NOISE)
    assert net.trunk.is_shared
    apart.trunk.is_shared = False
    same(step(net), step(apart))
    for layer in range(3):
        first, expected = (x.outputs(*batch()[:2], hidden=True, layer=layer) for x in (net.eval(), apart.eval()))
        torch.testing.assert_close(first.hidden, expected.hidden, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("top", [None, 1])
@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("name", CONFIGS)
def test_logits_at_some_positions_are_those_of_all(name, mode, top):
    net = crowd(name, mode=mode[0], chunk=mode[1], top_layers=top).eval()
    ids, mask, _ = batch()
    some, own = torch.tensor([3, 4, 20]), torch.tensor([[0, 20], [4, -1], [7, 8]])
    every = net(ids, mask).flatten(1, 2)
    torch.testing.assert_close(net.outputs(ids, mask, logits_at=some).logits, every[:, some], atol=1e-5, rtol=1e-5)
    texts = torch.stack([ids, ids.roll(1, 0), ids]), torch.stack([mask, mask.roll(1, 0), mask])
    every = net(*texts).flatten(1, 2)
    found = net.outputs(*texts, logits_at=own).logits
    assert found.shape == (3, 2, 40)
    for agent, place in ((0, 0), (0, 1), (1, 0), (2, 0), (2, 1)):
        torch.testing.assert_close(found[agent, place], every[agent, own[agent, place]], atol=1e-5, rtol=1e-5)
    assert net.outputs(ids, mask, logits_at=some[:0]).logits.shape == (3, 0, 40)


def test_the_trunk_runs_each_text_once():
    net = crowd(top_layers=1)
    seen = []
    for block in net.backbone.blocks:
        block.mlp.register_forward_hook(lambda module, args, output: seen.append(len(output)))
    net(*batch()[:2])
    assert seen == [3, 9]


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_gradients_are_those_of_agents_trained_alone(name, checkpointing):
    net = crowd(name, checkpointing=checkpointing)
    ids, mask, labels = batch()
    base = copy.deepcopy(crowd(name).backbone.model)
    for hooked in base.modules():
        hooked._forward_hooks.clear()
    config = LoraConfig(
        r=4, lora_alpha=8, target_modules=list(net.agents.targets), task_type="CAUSAL_LM", fan_in_fan_out=name == "gpt2"
    )
    CrowdObjective({"input_ids": ids, "attention_mask": mask, "labels": labels}).compute(net).total.backward()
    stacked = {f"base_model.model.{key}": p.grad for key, p in net.agents.adapters.named_parameters()}
    for agent in range(3):
        alone = get_peft_model(copy.deepcopy(base), config)
        set_peft_model_state_dict(alone, net.agents.adapter(agent))
        logits = alone(input_ids=ids, attention_mask=mask, position_ids=positions(mask)).logits
        loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        (loss / 3).backward()
        for key, weight in alone.named_parameters():
            if weight.requires_grad:
                first = stacked[key.removesuffix(".default.weight")][agent]
                assert (first - weight.grad).norm() <= 1e-5 * weight.grad.norm(), key


@pytest.mark.parametrize("mode", MODES[:3], ids=str)
@pytest.mark.parametrize("top", [None, 1])
def test_agents_may_read_texts_of_their_own(mode, top):
    ids, mask, _ = batch()
    own = torch.stack([ids.roll(k, 0) * 0 + (ids + k) % 40 for k in range(3)])
    net = crowd(mode=mode[0], chunk=mode[1], top_layers=top, **NOISE)
    same(step(net, ids=own), step(crowd(top_layers=top, **NOISE), ids=own))
    net.eval()
    together = net(own, mask.expand_as(own))
    for agent in range(3):
        with net.select_agents(agent):
            assert net.count == 1
            torch.testing.assert_close(net(own[agent], mask)[0], together[agent], atol=1e-5, rtol=1e-4)
    with net.select_agents(1, 3):
        torch.testing.assert_close(net(own[1:], mask.expand_as(own[1:])), together[1:], atol=1e-5, rtol=1e-4)


def test_chunked_computes_chunks_twice_and_scales_inside():
    same(step(crowd(mode="chunked", chunk=1), grad_scale=1024.0), step(crowd()))
    rows = []
    net = crowd(mode="chunked", chunk=2)
    net.backbone.blocks[0].register_forward_hook(lambda module, args, output: rows.append(len(output)))
    step(net)
    assert rows == [6, 3, 6, 3]
    ids, mask, labels = batch()
    objective = CrowdObjective({"input_ids": ids, "attention_mask": mask, "labels": labels})
    accumulated, single = crowd(mode="chunked", chunk=2), crowd()
    for _ in range(2):
        (objective.compute(accumulated).total / 2).backward()
    objective.compute(single).total.backward()
    for one, other in zip(accumulated.agents.parameters(), single.agents.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)


@pytest.mark.parametrize("mode", MODES[:3], ids=str)
def test_modes_agree_under_autocast(mode):
    with torch.autocast("cpu", torch.bfloat16):
        plain, other = step(crowd()), step(crowd(mode=mode[0], chunk=mode[1], checkpointing=True))
    for name, gradient in plain[1].items():
        assert (other[1][name] - gradient).norm() <= 0.05 * gradient.norm(), name


@pytest.mark.parametrize("name", CONFIGS)
def test_padding_does_not_matter(name):
    net = crowd(name).eval()
    ids, mask, _ = batch()
    together = net(ids, mask)
    for row in range(3):
        real = mask[row].bool()
        alone = net(ids[row : row + 1, real], mask[row : row + 1, real])
        torch.testing.assert_close(together[:, row, real], alone[:, 0], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("top", [None, 1])
@pytest.mark.parametrize("name", CONFIGS)
def test_one_cache_serves_all_agents(name, top):
    net = crowd(name, mode="sequential", top_layers=top).eval()
    ids, mask = torch.randint(3, 40, (2, 7)), torch.tensor([[1] * 7, [0] * 2 + [1] * 5])
    cache = DynamicCache(config=net.backbone.model.config)
    with torch.no_grad():
        whole = net(ids, mask)
        prompt = net.outputs(ids[:, :5], mask[:, :5], cache=cache).logits
        steps = [net.outputs(ids[:, t : t + 1], mask[:, : t + 1], cache=cache).logits for t in (5, 6)]
        last = net.outputs(ids, mask, logits_to_keep=1).logits
    real = mask.bool()
    cached = torch.cat([prompt, *steps], 2)
    torch.testing.assert_close(cached[:, real], whole[:, real], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(last, whole[:, :, -1:], atol=1e-5, rtol=1e-4)


def test_the_backbone_answers_alone():
    net = crowd()
    ids, mask, _ = batch()
    with net.without_agents():
        alone = net(ids, mask)
        assert net.count == 1
    plain = crowd().backbone(input_ids=ids, attention_mask=mask, position_ids=positions(mask)).logits
    assert torch.equal(alone[0], plain)
    assert not torch.allclose(net(ids, mask)[0], plain)


def test_a_copy_has_agents_of_its_own():
    net = crowd(checkpointing=True, top_layers=1)
    twin = copy.deepcopy(net)
    with torch.no_grad():
        for weight in twin.agents.parameters():
            weight.zero_()
    same(step(net), step(crowd(top_layers=1)))
    with twin.without_agents():
        alone = twin(*batch()[:2])
    torch.testing.assert_close(twin(*batch()[:2]), alone.expand(3, -1, -1, -1))


def test_contradictions():
    for mode, chunk in (("batched", 2), ("chunked", None), ("chunked", 0)):
        with pytest.raises(ValueError, match="chunk"):
            crowd(mode=mode, chunk=chunk)
    net = crowd()
    with pytest.raises(ValueError, match="texts of 2 agents, not 3"):
        net(torch.ones(2, 1, 4, dtype=torch.long), torch.ones(2, 1, 4, dtype=torch.long))
    for chosen in ((3,), (1, 4), (-1,)):
        with pytest.raises(ValueError, match="there are 3"), net.select_agents(*chosen):
            pass
