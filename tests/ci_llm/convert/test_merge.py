"""Adapters merged into one or into the backbone: equal to peft's, and to what the unmerged compute."""

import copy
from dataclasses import replace

import pytest
import torch
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
from transformers import AutoModelForCausalLM

from tests.ci_llm.crowd_parts import batch, crowd
from zoo.ci_llm.convert import convert, from_original
from zoo.ci_llm.convert.merge import add_to_base, merge, merged
from zoo.ci_llm.convert.read import adapters_of
from zoo.ci_llm.nets.agents import Agents
from zoo.ci_llm.nets.backbone import positions
from zoo.ci_llm.nets.crowd import Crowd

WEIGHTS = [0.7, -0.3, 1.2]


@pytest.fixture(scope="module")
def net():
    return crowd(targets=("q_proj", "down_proj"), alpha=6).eval()


@pytest.fixture(scope="module")
def peft_model(net):
    config = LoraConfig(r=4, lora_alpha=6, target_modules=["q_proj", "down_proj"], task_type="CAUSAL_LM")
    base = copy.deepcopy(net.backbone.model)
    model = get_peft_model(base, config, "agent0")
    for number in range(3):
        if number:
            model.add_adapter(f"agent{number}", config)
        set_peft_model_state_dict(model, net.agents.adapter(number), f"agent{number}")
    return model


def logits_of(net, adapters):
    """The backbone with one merged adapter."""
    one = Crowd(copy.deepcopy(net.backbone), Agents(targets=net.agents.targets, **adapters.form()))
    one.agents.load_adapter(0, adapters.weights[0])
    return one.eval()(*batch()[:2])[0]


@pytest.mark.parametrize("sign", ["total", "frequency"])
@pytest.mark.parametrize("method", ["linear", "ties", "dare_linear", "dare_ties", "magnitude_prune"])
def test_equals_peft(net, peft_model, method, sign, monkeypatch):
    density = None if method == "linear" else 0.4
    ours = merged(adapters_of(net), method, WEIGHTS, density, sign, seed=7)
    draws, generator = torch.bernoulli, torch.Generator().manual_seed(7)  # the same masks
    monkeypatch.setattr(torch, "bernoulli", lambda input: draws(input, generator=generator))
    name = f"{method}_{sign}"
    peft_model.add_weighted_adapter(
        ["agent0", "agent1", "agent2"], WEIGHTS, name, method, density=density, majority_sign_method=sign
    )
    theirs = get_peft_model_state_dict(peft_model, adapter_name=name)
    assert ours.weights[0].keys() == theirs.keys() and (ours.rank, ours.alpha) == (4, 4)
    for key, value in theirs.items():
        torch.testing.assert_close(ours.weights[0][key], value)


def test_the_average_is_the_sum_of_the_changes(net):
    one = merged(adapters_of(net), weights=WEIGHTS)
    assert one.rank == 12
    best = merged(adapters_of(net), "svd", WEIGHTS, rank=12)
    for key in one.weights[0]:
        if ".lora_A." in key:
            other = key.replace("_A.", "_B.")
            pairs = [net.agents.adapter(agent) for agent in range(3)]
            delta = sum(w * 1.5 * pair[other] @ pair[key] for w, pair in zip(WEIGHTS, pairs, strict=True))
            for each in (one, best):
                torch.testing.assert_close(each.weights[0][other] @ each.weights[0][key], delta, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("method", ["average", "svd", "linear", "ties", "dare_linear", "dare_ties", "magnitude_prune"])
@pytest.mark.parametrize("kind", [{}, {"rslora": True}, {"rank_pattern": {"q_proj": 2}}], ids=str)
def test_one_adapter_of_weight_1_is_itself(method, kind):
    net = crowd(count=1, targets=("q_proj", "down_proj"), **kind).eval()
    one = merged(adapters_of(net), method, [1.0], 1.0 if method not in ("average", "svd", "linear") else None)
    torch.testing.assert_close(logits_of(net, one), net(*batch()[:2])[0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
@pytest.mark.parametrize("dora", [False, True])
def test_the_backbone_with_an_agent_in_it(tmp_path, family, dora):
    targets = "all-linear"
    net = crowd(family, count=1, targets=targets, dora=dora).eval()
    ids, mask, _ = batch()
    with torch.no_grad():
        expected = net(ids, mask)[0]
    net.backbone.save_source(tmp_path / "backbone")
    convert(net, tmp_path / "peft")
    facts = merge(tmp_path / "peft", tmp_path / "merged", into_base=True, backbone=str(tmp_path / "backbone"))
    assert facts["layers"] == len(net.agents.names)
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "merged").eval()
    found = plain(ids, attention_mask=mask, position_ids=positions(mask)).logits
    torch.testing.assert_close(found[mask == 1], expected[mask == 1], atol=1e-5, rtol=1e-5)


def test_the_command_writes_an_adapter(tmp_path, net):
    net.backbone.save_source(tmp_path / "backbone")
    convert(net, tmp_path / "peft")
    assert merge(tmp_path / "peft", tmp_path / "one", weights=WEIGHTS)["rank"] == 12
    found = from_original(tmp_path / "one", backbone=tmp_path / "backbone")
    expected = logits_of(net, merged(adapters_of(net), weights=WEIGHTS))
    torch.testing.assert_close(found(*batch()[:2])[0], expected)
    (tmp_path / "other").mkdir()
    (tmp_path / "other/file").touch()
    with pytest.raises(ValueError, match="holds something else"):
        merge(tmp_path / "peft", tmp_path / "other")
    for source in ("peft", "peft/agent1"):
        with pytest.raises(ValueError, match="is what is merged"):
            merge(tmp_path / source, tmp_path / "peft")


def test_what_cannot_be_merged(net):
    adapters = adapters_of(net)
    with pytest.raises(ValueError, match="2 weights for 3 agents"):
        merged(adapters, weights=[1, 2])
    with pytest.raises(ValueError, match="ties needs a density"):
        merged(adapters, "ties")
    with pytest.raises(ValueError, match="linear has no density"):
        merged(adapters, "linear", density=0.5)
    with pytest.raises(ValueError, match="density"):
        merged(adapters, "ties", density=-0.1)
    with pytest.raises(ValueError, match="weights are all 0"):
        merged(adapters, weights=[0.0] * 3)
    with pytest.raises(ValueError, match="average has no svd_rank"):
        merged(adapters, rank=2)
    with pytest.raises(ValueError, match="rank is at least 1"):
        merged(adapters, "svd", rank=0)
    with pytest.raises(ValueError, match="DoRA have no sum"):
        merged(replace(adapters, dora=True))
    uneven = crowd(count=2, rank=[2, 3], targets=("q_proj",))
    with pytest.raises(ValueError, match=r"ranks \[2, 3\]: linear needs equal"):
        merged(adapters_of(uneven), "linear")
    shared = crowd(count=1, targets=("q_proj",))
    layers = shared.backbone.model.model.layers
    layers[1].self_attn.q_proj.weight = layers[0].self_attn.q_proj.weight
    with pytest.raises(ValueError, match="shares its weight"):
        add_to_base(shared, [1.0])
