"""Benchmarks of a crowd: questions, prompts, likelihoods, scorers, the command, and lm-eval's interface."""

import json
import math
import sys
import types
from abc import ABC, abstractmethod
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tests.ci_llm.crowd_parts import CONFIGS, crowd
from zoo.ci_llm.aggregation.aggregator import BayesianAverage, Geometric, Mean
from zoo.ci_llm.data.prompts import Prompting, chat_text, context_ids, pair_ids
from zoo.ci_llm.data.text_data import Example, Template
from zoo.ci_llm.data.tokenizers import ByteTokenizer
from zoo.ci_llm.data.tokens import left_padded
from zoo.ci_llm.evaluation import benchmark as work
from zoo.ci_llm.evaluation.benchmark import TASKS, benchmark, read_items, summary
from zoo.ci_llm.evaluation.harness import CrowdRequests, as_model
from zoo.ci_llm.evaluation.likelihoods import choice_figures, likelihoods
from zoo.ci_llm.evaluation.matching import gsm8k_figures, strict_match, text_figures
from zoo.ci_llm.evaluation.trained import TrainedCrowd
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


def test_prompts_of_several_shots():
    shots = (Example("1 + 1?", "2", "", 1), Example("2 + 2?", "4", "", 2))
    prompting = Prompting(Template(), shots, system="Be brief.")
    text = "Be brief.\n\nQuestion: 1 + 1?\nAnswer: 2\n\nQuestion: 2 + 2?\nAnswer: 4\n\nQuestion: 3 + 3?\nAnswer:"
    assert prompting.context(TOKENIZER, "3 + 3?") == text
    assert context_ids(TOKENIZER, text) == [1, *TOKENIZER.encode(text)]
    assert Prompting(Template("{prompt}"), chat=True).answer("7") == "7" and prompting.answer("7") == " 7"


def test_chats_are_what_the_template_makes():
    tokenizer = chatting()
    prompting = Prompting(Template("{prompt}"), (Example("a", "b", "", 1),), system="s", chat=True)
    text = prompting.context(tokenizer, "c")
    assert text == "<bos><|system|>s<eos><|user|>a<eos><|assistant|>b<eos><|user|>c<eos><|assistant|>"
    whole = tokenizer.backend.apply_chat_template(prompting.messages("c"), tokenize=True, add_generation_prompt=True)
    assert context_ids(tokenizer, text) == list(whole["input_ids"])  # one BOS, and special tokens are tokens
    with pytest.raises(ValueError, match=r"refuses these messages: no system here"):
        prompting.context(chatting(no_system=True), "c")
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


def test_choices_by_sum_characters_and_bytes():
    choices = ["é", "abcdef", "xyz"]
    found = choice_figures([-2.0, -3.0, -2.0], choices, 1)
    assert (found["acc"], found["acc_norm"], found["acc_bytes"]) == (0, 1, 1)
    assert choice_figures([-2.0, -3.0, -2.0], choices, 0)["acc"] == 1  # of equals the first
    probs = torch.tensor([-2.0, -3.0, -2.0]).softmax(0)
    assert found["brier"] == pytest.approx(float((probs - torch.tensor([0, 1, 0])).square().sum()))
    assert found["nll"] == pytest.approx(-float(probs[1].log()))
    assert found["confidence"] == pytest.approx(float(probs[0]))


@pytest.mark.parametrize(
    ("text", "gold", "strict", "flexible"),
    [  # as task gsm8k of lm-eval 0.4.13 grades them
        ("so #### 72", "x #### 72", 1, 1),
        ("$1,000.", "#### 1000", 0, 1),
        ("#### $18", "#### 18", 0, 1),
        ("#### -3", "#### -3", 1, 1),
        ("#### 5 dollars", "#### 5", 1, 1),
        ("#### 1,234.", "#### 1234", 1, 1),
        ("#### 7 then 8", "#### 7", 1, 0),
        ("none", "#### 5", 0, 0),
        ("it is 5", "#### 5", 0, 1),
        ("#### 5.0", "#### 5", 0, 0),
    ],
)
def test_gsm8k_as_the_harness_grades_it(text, gold, strict, flexible):
    assert gsm8k_figures(text, gold) == {"strict-match": strict, "flexible-extract": flexible}


def test_texts_are_compared():
    assert strict_match("#### -3,5") == "-3,5"
    assert text_figures(" Paris", "Paris") == {"exact": 1, "normalised": 1}
    assert text_figures("The  paris!", "Paris") == {"exact": 0, "normalised": 1}


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


ARC = {"question": "Grass?", "choices": {"text": ["red", "green"], "label": ["A", "B"]}, "answerKey": "B"}


def jsonl(path: Path, *rows) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_questions_are_read(tmp_path):
    (item,) = read_items(jsonl(tmp_path / "test.jsonl", ARC), TASKS["arc"])
    assert (item.prompt, item.answer, item.choices, item.gold) == ("Grass?", "green", ("red", "green"), 1)
    for answer in (1, "green"):
        row = {"question": "Grass?", "choices": ["red", "green"], "answer": answer}
        assert read_items(jsonl(tmp_path / "c.jsonl", row), TASKS["choice"])[0].gold == 1
    assert read_items(str(tmp_path), TASKS["arc"])[0] == item  # the split of a folder
    bad = {"none of the choices": {**ARC, "answerKey": "E"}, "expected the fields": {"question": "q"},
           "not two texts": {**ARC, "choices": ["one"]}, "is no text": {**ARC, "question": " "}}  # fmt: skip
    for said, row in bad.items():
        with pytest.raises(ValueError, match=rf"bad\.jsonl, line 1: .*{said}"):
            read_items(jsonl(tmp_path / "bad.jsonl", row), TASKS["arc"])
    with pytest.raises(FileNotFoundError, match="no file or folder of questions"):
        read_items("./absent.jsonl", TASKS["arc"])


def test_parquet_and_arrow_datasets(tmp_path):
    from datasets import Dataset

    Dataset.from_list([ARC, ARC]).to_parquet(tmp_path / "test-00000-of-00001.parquet")
    assert len(read_items(str(tmp_path), TASKS["arc"])) == 2


ROWS = {
    "gsm8k": [{"question": f"{n} + 1?", "answer": f"so\n#### {n + 1}"} for n in range(3)],
    "arc": [ARC] * 3,
    "text": [{"question": "a", "answer": "b"}] * 3,
    "likelihood": [{"question": "a", "answer": "long answer"}] * 3,
}
FIGURES = {
    "gsm8k": {"strict-match", "flexible-extract"},
    "arc": {"acc", "acc_norm", "acc_bytes", "brier", "nll", "confidence"},
    "text": {"exact", "normalised"},
    "likelihood": {"nll", "nll_byte", "greedy"},
}


@pytest.mark.parametrize("task", ROWS)
def test_the_command(task, net, tmp_path, monkeypatch):
    monkeypatch.setattr(work, "load_crowd", lambda *_: (TrainedCrowd(net, TOKENIZER, Template()), None, 8))
    jsonl(tmp_path / "train.jsonl", *ROWS[task])
    jsonl(tmp_path / "test.jsonl", *ROWS[task])
    how = dict(run=tmp_path, questions=str(tmp_path), task=task, shots=1, max_new_tokens=2, batch_size=2,
               template="{prompt}", progress=False)  # fmt: skip
    facts = benchmark(output=tmp_path / "out", **how)
    systems = {"backbone", "agent_0", "agent_1", "mean", "geometric", "dirichlet", "bma"}
    systems |= {"vote"} if task in ("gsm8k", "text") else set()
    assert facts["results"].keys() == systems and facts["count"] == 3
    assert FIGURES[task] <= facts["results"]["mean"].keys()
    if task in ("arc", "likelihood"):
        assert 0 <= facts["results"]["mean"]["ece"] <= 1
        assert facts["results"]["mean"]["nll"] > 0
    assert {path.name for path in (tmp_path / "out").iterdir()} >= {"results.json", "results.csv", "items.jsonl"}
    assert benchmark(output=tmp_path / "shared", rank=1, world_size=2, **how) == {"missing": 1}
    assert benchmark(output=tmp_path / "shared", rank=0, world_size=2, **how)["results"] == facts["results"]
    with pytest.raises(ValueError, match="begun with other settings"):
        benchmark(output=tmp_path / "out", **{**how, "max_new_tokens": 3})


BAD = {
    "there is no split 'tset'; there are train, val, test": {"split": "tset"},
    "stop strings are not empty": {"stop": [""]},
    "max_new_tokens is 64, and the backbone's context 64": {"max_new_tokens": 64},
    "no file or folder nothing": {"questions": "nothing"},
}


@pytest.mark.parametrize("said", BAD)
def test_bad_arguments_leave_nothing_behind(said, net, tmp_path, monkeypatch):
    monkeypatch.setattr(work, "load_crowd", lambda *_: (TrainedCrowd(net, TOKENIZER, Template()), None, 8))
    jsonl(tmp_path / "test.jsonl", {"question": "2 + 3?", "answer": "5"})
    how = {"questions": str(tmp_path), "task": "text", "progress": False, **BAD[said]}
    with pytest.raises((ValueError, FileNotFoundError), match=said):
        benchmark(run="run", output=tmp_path / "out", **how)
    assert not (tmp_path / "out").exists()


def test_a_figures_mean_and_error():
    rows = [{"figures": {"a": {"acc": float(hit), "confidence": 0.5}}} for hit in (1, 0, 1, 1)]
    found = summary(rows)["a"]
    assert found["acc"] == 0.75 and found["acc_se"] == pytest.approx(0.25) and found["ece"] == pytest.approx(0.25)


# lm-eval


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
