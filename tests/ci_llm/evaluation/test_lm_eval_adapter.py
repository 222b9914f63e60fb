"""A crowd as a model of lm-eval: tokenisation, likelihoods, windows, generation; lm-eval's class is a stand-in."""

import importlib
import math
import sys
import types
from types import SimpleNamespace

import pytest
import torch

from tests.ci_llm.crowd_parts import byte_crowd
from zoo.ci_llm import BayesianAverage, ByteTokenizer, Dirichlet, Geometric, Mean
from zoo.ci_llm.inference.generate import generate_texts

TOKENIZER = ByteTokenizer()
MODULE = "zoo.ci_llm.evaluation.lm_eval_adapter"


class LM:
    def __init__(self):
        self._rank, self.cache_hook = 0, None


@pytest.fixture
def adapter(monkeypatch):
    for name in ("lm_eval", "lm_eval.api", "lm_eval.api.model"):
        monkeypatch.setitem(sys.modules, name, types.SimpleNamespace(LM=LM))
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    yield importlib.import_module(MODULE)
    sys.modules.pop(MODULE, None)


@pytest.fixture(scope="module")
def net():
    return byte_crowd().eval()


def request(*args):
    return SimpleNamespace(args=args)


def test_pairs_are_tokenised_as_one_text(adapter):
    assert adapter.prompt_pair_ids(TOKENIZER, "a ", "b") == adapter.prompt_pair_ids(TOKENIZER, "a", " b")
    assert adapter.prompt_pair_ids(TOKENIZER, "a", " b") == ([1, *TOKENIZER.encode("a")], TOKENIZER.encode(" b"))
    assert adapter.prompt_pair_ids(TOKENIZER, "", "b") == ([1], TOKENIZER.encode("b"))
    assert adapter.context_ids(TOKENIZER, "<bos>a") == [1, *TOKENIZER.encode("a")]


@torch.no_grad()
@pytest.mark.parametrize("rule", [Mean(), Geometric(), BayesianAverage()], ids=lambda rule: type(rule).__name__)
def test_log_likelihoods_are_those_of_a_plain_forward(adapter, net, rule):
    pairs = [([1, 5, 6], [7, 8]), ([1], [9]), ([1, 4, 4, 4], [5, 6, 7])]
    results = adapter.log_likelihoods(net, pairs, rule, 0, [0, 1, 2])
    for (context, continuation), (score, is_likeliest) in zip(pairs, results, strict=True):
        ids = torch.tensor([[*context, *continuation]])
        log_probs = net(ids, torch.ones_like(ids)).log_softmax(-1)
        following = log_probs[:, :, :-1].gather(-1, ids[:, 1:].expand(2, -1, -1)[..., None]).squeeze(-1)
        path = rule.weights_along_text(rule.start(2, 1), following, torch.ones_like(ids[:, 1:]))
        joint = [rule.combine(log_probs[:, :, t], path[t])[0] for t in range(ids.shape[1] - 1)][len(context) - 1 :]
        assert score == pytest.approx(float(sum(each[token] for each, token in zip(joint, continuation, strict=True))))
        assert is_likeliest == all(int(each.argmax()) == token for each, token in zip(joint, continuation, strict=True))
    likeliest = int(net(torch.tensor([[1, 5]]), torch.ones(1, 2).long()).softmax(-1).mean(0)[0, -1].argmax())
    assert adapter.log_likelihoods(net, [([1, 5], [likeliest])], Mean(), 0, [0])[0][1]


@torch.no_grad()
def test_requests(adapter, net, caplog):
    model = adapter.CrowdLM(net, TOKENIZER, "agent-1", batch_size=2)
    assert isinstance(model, LM) and model._rank == 0
    ids = torch.tensor([[1, *TOKENIZER.encode("Q: a b")]])
    with net.select_agents(1):
        log_probs = net(ids, torch.ones_like(ids))[0, 0].log_softmax(-1)
    expected = sum(float(log_probs[at - 1, ids[0, at]]) for at in (5, 6))
    (score, _), again = model.loglikelihood([request("Q: a", " b"), request("Q: a ", "b")])
    assert score == pytest.approx(expected, abs=1e-4) and again[0] == pytest.approx(score, abs=1e-5)
    assert model.loglikelihood([request("x" * 70, "y")]) == [(-math.inf, False)]
    assert "1 of 1 requests do not fit" in caplog.text
    tokens = [1, *TOKENIZER.encode("x" * 150)]  # in windows of 64, in which each token counts once
    text, expected, done = [1, *tokens], 0.0, 0
    while done < len(tokens):
        end = min(done + 64, len(tokens))
        row = torch.tensor([text[max(0, end - 64) : end]])
        with net.select_agents(1):
            log_probs = net(row, torch.ones_like(row))[0, 0].log_softmax(-1)
        expected += sum(float(log_probs[place - end, tokens[place]]) for place in range(done, end))
        done = end
    assert model.loglikelihood_rolling([request("x" * 150)])[0] == pytest.approx(expected, rel=1e-5)


def test_generation(adapter, net, caplog):
    model = adapter.CrowdLM(net, TOKENIZER)
    texts = model.generate_until([
        request("abc", {"until": ["zz"], "max_gen_toks": 5, "do_sample": False}),
        request("a", {"until": "zz", "max_gen_toks": 3}),
        request("x" * 70, {"max_gen_toks": 3}),
    ])  # fmt: skip
    prompts = (adapter.context_ids(TOKENIZER, "abc"), 5), (adapter.context_ids(TOKENIZER, "a"), 3)
    expected = [generate_texts(net, TOKENIZER, [ids], Mean(), length)[0][0] for ids, length in prompts]
    assert texts == [*expected, ""] and "1 of 3 requests do not fit" in caplog.text
    with pytest.raises(ValueError, match="num_beams"):
        model.generate_until([request("a", {"num_beams": 2})])


def test_the_runs_own_dirichlet_is_that_of_its_name(adapter, net):
    learned = Dirichlet(0.5)
    assert adapter.CrowdLM(net, TOKENIZER, "dirichlet", aggregator=learned).rule is learned
