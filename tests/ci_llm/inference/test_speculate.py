"""A prefix that is read once, and one agent that drafts for all: the texts stay what they are."""

import pytest
import torch

from tests.ci_llm.crowd_parts import HOW, crowd
from zoo.ci_llm.aggregation.aggregator import BayesianAverage, Geometric, Mean, Vote
from zoo.ci_llm.data.tokens import left_padded
from zoo.ci_llm.inference.generate import common_prefix, generate
from zoo.ci_llm.inference.speculate import residual, speculate
from zoo.ci_llm.nets.sampling import Sampling

PREFIX = [1, *range(5, 14)]
PROMPTS = [[*PREFIX, 20], [*PREFIX, 21, 22, 23], [*PREFIX, 24, 25]]


@pytest.mark.parametrize("rule", [Mean(), Vote()], ids=["joint", "apart"])
@pytest.mark.parametrize(("family", "top"), [("llama", None), ("llama", 1), ("gpt2", None), ("gemma2", None)])
def test_a_shared_prefix_changes_nothing(family, top, rule):
    how = {"config": {**HOW[family]["config"], "sliding_window": 64}} if family == "gemma2" else {}
    net = crowd(family, top_layers=top, backbone=how).eval()
    ids, mask = left_padded(PROMPTS, 0)
    assert common_prefix(net, ids, mask, 6) == len(PREFIX)
    drawn = {"sampling": Sampling(0.8), "seeds": [1, 2, 3]}
    expected = generate(net, ids, mask, rule, 6, **drawn)
    rows = []
    net.backbone.blocks[-1].register_forward_pre_hook(lambda _, args: rows.append(tuple(args[0].shape[:2])))
    assert torch.equal(generate(net, ids, mask, rule, 6, share_prefix=True, **drawn), expected)
    assert [length for _, length in rows[:3]] == [len(PREFIX), 3, 1] and rows[1][0] == 9


def test_where_no_prefix_is_shared():
    net = crowd("gemma2").eval()  # a window of 4
    ids, mask = left_padded(PROMPTS, 0)
    assert common_prefix(net, ids, mask, 6) == 0
    assert common_prefix(crowd().eval(), ids[:1], mask[:1], 6) == 0
    same, every = left_padded([PREFIX, PREFIX], 0)
    assert common_prefix(crowd().eval(), same, every, 6) == len(PREFIX) - 1


@pytest.mark.parametrize("ahead", [1, 4, 20])
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_the_same_text_with_a_draft(family, ahead):
    net = crowd(family, std=0.05).eval()
    for rule in (Mean(), Geometric()):
        ids = torch.tensor([PREFIX])
        expected = generate(net, ids, torch.ones_like(ids), rule, 12)
        found = speculate(net, ids, rule, 12, ahead=ahead, draft=1)
        assert torch.equal(found.ids, expected)
        assert 0 < found.accepted <= found.proposed and found.passes <= 12
    assert found.passes < 12 or ahead == 1
    end = int(expected[0, -4])
    stopped = generate(net, ids, torch.ones_like(ids), rule, 12, eos=[end])
    assert torch.equal(speculate(net, ids, rule, 12, eos=[end], ahead=ahead).ids, stopped)


def test_what_is_drawn_has_the_crowds_distribution():
    p, q = torch.tensor([[0.5, 0.3, 0.2, 0.0]]), torch.tensor([[0.1, 0.6, 0.1, 0.2]])
    stays = torch.minimum(p, q)
    rest = residual(p.log(), q.log(), Sampling(1.0)).exp()
    torch.testing.assert_close(stays + (1 - stays.sum()) * rest, p)


def test_drawn_texts_have_the_crowds_distribution():
    config = {**HOW["llama"]["config"], "vocab_size": 4}
    net = crowd(count=2, std=0.6, backbone={"config": config}).eval()
    ids, sampling = torch.tensor([[1, 3]]), Sampling(1.0)
    with torch.no_grad():  # the distribution of two tokens, exactly
        first = Mean()(net(ids, torch.ones_like(ids))[:, :, -1])[0]
        rows = torch.cat([ids.repeat(4, 1), torch.arange(4)[:, None]], 1)
        second = Mean()(net(rows, torch.ones_like(rows))[:, :, -1])
    exact = (first[:, None] * second).flatten()
    counts = torch.zeros(16)
    for seed in range(120):
        a, b = speculate(net, ids, Mean(), 2, sampling=sampling, ahead=1, seed=seed).ids[0, 2:].tolist()
        counts[4 * a + b] += 1
    assert ((counts / 120 - exact).abs() < 4 * (exact * (1 - exact) / 120).sqrt() + 1e-3).all()


def test_what_cannot_be_speculated():
    net, ids = crowd().eval(), torch.tensor([PREFIX])
    with pytest.raises(ValueError, match="BayesianAverage cannot check proposals"):
        speculate(net, ids, BayesianAverage(), 4)
    with pytest.raises(ValueError, match="one prompt at a time, found 2"):
        speculate(net, ids.repeat(2, 1), Mean(), 4)
    with pytest.raises(ValueError, match="sliding window"):
        speculate(crowd("gemma2").eval(), ids, Mean(), 4)
