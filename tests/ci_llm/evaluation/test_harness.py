"""Prompts, likelihoods, stop strings and lm-eval's interface."""

import math
import sys
import types
from abc import ABC, abstractmethod
from types import SimpleNamespace

import pytest
import torch

from tests.ci_llm.crowd_parts import CONFIGS, crowd
from zoo.ci_llm.aggregation.aggregator import BayesianAverage, Geometric, Mean
from zoo.ci_llm.data.prompts import chat_text, context_ids, pair_ids
from zoo.ci_llm.data.tokenizers import ByteTokenizer
from zoo.ci_llm.data.tokens import left_padded
from zoo.ci_llm.evaluation.harness import CrowdRequests, as_model
from zoo.ci_llm.evaluation.likelihoods import likelihoods
from zoo.ci_llm.inference.generate import ends_of, generate, write_answers
from zoo.ci_llm.nets.sampling import Sampling

TOKENIZER = ByteTokenizer()
CHAT = (
    "{% for m in messages %}{% if m.role == 'system' and no_system %}{{ raise_exception('no system here') }}{% endif %}"
    "<|{{ m.role }}|>{{ m.content }}<eos>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@pytest.fixture(scope="module")
def net():
    config = {**CONFIGS["llama"], "vocab_size": 259, "max_position_embeddings": 64}
    return crowd(count=2, backbone={"config": config}).eval()


def chatting(no_system=False):
    tokenizer = ByteTokenizer()
    tokenizer.backend.chat_template = f"<bos>{{% set no_system = {str(no_system).lower()} %}}{CHAT}"
    return tokenizer


def test_chats_are_what_the_template_makes():
    tokenizer = chatting()
    turns = zip(("system", "user", "assistant", "user"), "sabc", strict=True)
    messages = [{"role": role, "content": content} for role, content in turns]
    text = chat_text(tokenizer, messages)
    assert text == "<bos><|system|>s<eos><|user|>a<eos><|assistant|>b<eos><|user|>c<eos><|assistant|>"
    whole = tokenizer.backend.apply_chat_template(messages, tokenize=True, add_generation_prompt=True)
    assert context_ids(tokenizer, text) == list(whole["input_ids"])  # one BOS, and special tokens are tokens
    with pytest.raises(ValueError, match=r"refuses these messages: no system here"):
        chat_text(chatting(no_system=True), messages)
    with pytest.raises(ValueError, match="has no chat template"):
        chat_text(TOKENIZER, [])


@pytest.mark.parametrize(
    ("context", "continuation", "found"),
    [("ab", " c", ("ab", " c")), ("ab  ", "c", ("ab", "  c")), ("<bos>ab", "c", ("ab", "c")), ("", "c", ("", "c"))],
)
def test_spaces_belong_to_the_continuation(context, continuation, found):
    pair = [1, *TOKENIZER.encode(found[0])], TOKENIZER.encode(found[1])
    assert pair_ids(TOKENIZER, context, continuation) == pair


@torch.no_grad()
def test_likelihoods_are_those_of_single_texts(net):
    pairs = [pair_ids(TOKENIZER, "How much is 2?", answer) for answer in (" 2", " twelve", "!")]
    pairs.append(([1, *range(3, 73)], [7, 8]))  # loses its left end
    rules = {"mean": Mean(), "geometric": Geometric(), "bma": BayesianAverage()}
    found = likelihoods(net, pairs, rules, TOKENIZER.pad_id, batch_size=3)
    plain = likelihoods(net, pairs, {"mean": Mean()}, batch_size=1)
    for (context, answer), each, alone in zip(pairs, found, plain, strict=True):
        ids = torch.tensor([[*context, *answer][-65:][:-1]])
        log_probs = net(ids, torch.ones_like(ids))[:, 0, -len(answer) :].log_softmax(-1)
        agents = log_probs[:, torch.arange(len(answer)), answer]
        torch.testing.assert_close(each.agents, agents, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(each.rules["mean"], agents.logsumexp(0) - math.log(2), atol=1e-4, rtol=1e-4)
        assert each.whole["mean"] == pytest.approx(float(agents.sum(1).logsumexp(0)) - math.log(2), abs=1e-3)
        assert each.sums()["mean"] == pytest.approx(alone.sums()["mean"], abs=1e-4)
        before = torch.zeros(2)
        if len(ids[0]) < 64:  # equal weights, moved by every token before
            given = net(ids, torch.ones_like(ids))[:, 0].log_softmax(-1)
            for place in range(len(context) - 1):
                before += given[:, place, ids[0, place + 1]]
            first = torch.logsumexp(before.log_softmax(0) + agents[:, 0], 0)
            assert float(each.rules["bma"][0]) == pytest.approx(float(first), abs=2e-3)
    likeliest = int(net(torch.tensor([[1, 5]]), torch.ones(1, 2).long())[0, 0, -1].argmax())
    (greedy,) = likelihoods(net, [([1, 5], [likeliest])], {"mean": Mean()})
    assert greedy.greedy["agent_0"]
    with pytest.raises(ValueError, match="pair 0: a context of 0"):
        likelihoods(net, [([], [3])], rules)


def test_ends_and_stop_strings_across_tokens(net):
    prompts = [TOKENIZER.encode("abc"), TOKENIZER.encode("a")]
    ids, mask = left_padded(prompts, 0)
    drawn = {"sampling": Sampling(1.0), "seeds": [4, 5]}
    plain = generate(net, ids, mask, Mean(), 12, **drawn)[:, 3:]
    texts = [TOKENIZER.decode(row) for row in plain.tolist()]
    stop = TOKENIZER.decode(plain[0, 3:5].tolist())
    found = write_answers(net, TOKENIZER, prompts, Mean(), 12, stop=[stop], **drawn)
    assert 0 < len(found[0][0]) < len(texts[0])
    assert found == [[text.partition(stop)[0]] for text in texts]
    config = net.backbone.model.generation_config
    end = int(plain[0, 3])
    config.eos_token_id, before = [2, end, 999], config.eos_token_id
    try:
        assert ends_of(net, TOKENIZER) == [2, end, 999]
        (text,), _ = write_answers(net, TOKENIZER, prompts, Mean(), 12, **drawn)
        assert text == TOKENIZER.decode(plain[0, :3].tolist())
    finally:
        config.eos_token_id = before
    with pytest.raises(ValueError, match="stop strings are not empty"):
        write_answers(net, TOKENIZER, prompts, Mean(), 8, stop=[""])


def ask(*args):
    return SimpleNamespace(args=args)


@torch.no_grad()
def test_requests_of_the_harness(net):
    one = CrowdRequests(net, TOKENIZER, "agent-1", batch_size=2)
    ids = torch.tensor([[1, *TOKENIZER.encode("Q: a b")]])
    with net.only(1):
        log_probs = net(ids, torch.ones_like(ids))[0, 0].log_softmax(-1)
    by_hand = sum(float(log_probs[at - 1, ids[0, at]]) for at in (5, 6))
    (score, greedy), again = one.loglikelihood([ask("Q: a", " b"), ask("Q: a ", "b")])
    assert score == pytest.approx(by_hand, abs=1e-4) and not greedy and again[0] == pytest.approx(score, abs=1e-5)
    text = "x" * 150  # longer than the context of 64: windows in which each token counts once
    (rolled,) = one.loglikelihood_rolling([ask(text)])
    tokens = [1, *TOKENIZER.encode(text)]
    whole = [*tokens[:0], 1, *tokens]
    expected, done = 0.0, 0
    while done < len(tokens):
        end = min(done + 64, len(tokens))
        row = torch.tensor([whole[max(0, end - 64) : end]])
        with net.only(1):
            found = net(row, torch.ones_like(row))[0, 0].log_softmax(-1)
        expected += sum(float(found[place - end, tokens[place]]) for place in range(done, end))
        done = end
    assert rolled == pytest.approx(expected, rel=1e-5)
    crowd_wide = CrowdRequests(net, TOKENIZER)
    sequences = CrowdRequests(net, TOKENIZER, mixture="sequences")
    agents = [CrowdRequests(net, TOKENIZER, f"agent-{k}").loglikelihood([ask("a", "bc")])[0][0] for k in (0, 1)]
    mixed = torch.tensor(agents, dtype=torch.float64).logsumexp(0) - math.log(2)
    assert sequences.loglikelihood([ask("a", "bc")])[0][0] == pytest.approx(float(mixed), abs=1e-4)
    assert crowd_wide.loglikelihood([ask("a", "bc")])[0][0] != pytest.approx(float(mixed), abs=1e-7)
    written = crowd_wide.generate_until([ask("abc", {"until": ["zz"], "max_gen_toks": 5, "do_sample": False}),
                                         ask("a", {"until": "zz", "max_gen_toks": 3})])  # fmt: skip
    assert written == [
        write_answers(net, TOKENIZER, [context_ids(TOKENIZER, text)], Mean(), length)[0][0]
        for text, length in (("abc", 5), ("a", 3))
    ]
    with pytest.raises(ValueError, match="knows no num_beams"):
        crowd_wide.generate_until([ask("a", {"num_beams": 2})])
    with pytest.raises(ValueError, match="voice is 'agent-2', expected one of mean"):
        CrowdRequests(net, TOKENIZER, "agent-2")


def test_the_harness_gets_a_model_of_its_class(net, monkeypatch):
    class LM(ABC):
        def __init__(self):
            self._rank, self.cache_hook = 0, None

        @abstractmethod
        def loglikelihood(self, requests): ...
        @abstractmethod
        def loglikelihood_rolling(self, requests): ...
        @abstractmethod
        def generate_until(self, requests): ...

    requests = CrowdRequests(net, TOKENIZER)
    monkeypatch.setitem(sys.modules, "lm_eval.api.model", None)
    with pytest.raises(ImportError, match=r"zoo\[lm_eval\]"):
        as_model(requests)
    for name in ("lm_eval", "lm_eval.api", "lm_eval.api.model"):
        monkeypatch.setitem(sys.modules, name, types.SimpleNamespace(LM=LM))
    model = as_model(requests)
    assert isinstance(model, LM) and model._rank == 0
    assert model.loglikelihood([ask("a", "b")]) == requests.loglikelihood([ask("a", "b")])
