"""The evaluation: its files, processes and kills, prompts that do not fit, grades, scores."""

import json
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.ci_llm.crowd_parts import byte_crowd
from tests.harness import contents
from zoo.ci_llm import Arithmetic, ByteTokenizer, Crowd, FittedMixture
from zoo.ci_llm.data.arithmetic import Split
from zoo.ci_llm.data.text_files import Example, TextFormat
from zoo.ci_llm.data.tokens import tokenise
from zoo.ci_llm.evaluation import evaluate as evaluation_module
from zoo.ci_llm.evaluation.answering import SELF_CONSISTENCY, AnswerSettings, generate_all_answers, grade
from zoo.ci_llm.evaluation.evaluate import evaluate_crowd
from zoo.ci_llm.evaluation.report import SINGLE
from zoo.ci_llm.evaluation.scoring import make_batch, score, token_rules
from zoo.ci_llm.evaluation.trained import TrainedCrowd
from zoo.ci_llm.losses.likelihood import IGNORED, losses, shifted_labels

TOKENIZER = ByteTokenizer()
SETTINGS = AnswerSettings(max_new_tokens=3, samples=(2, 3))
FEW = AnswerSettings(max_new_tokens=3, samples=(2,))


def make_crowd(count: int = 3, context: int = 128) -> Crowd:
    return byte_crowd(count, context).eval()


def trained(count: int = 3, context: int = 128) -> TrainedCrowd:
    return TrainedCrowd(make_crowd(count, context), TOKENIZER, TextFormat())


def examples(split: Split, count: int) -> list[Example]:
    problems = Arithmetic().problems(split)[:count]
    return [Example(*problem, "arithmetic", line) for line, problem in enumerate(problems, 1)]


def run(output: Path, made: TrainedCrowd | None = None, held_out: int = 4, **changes: Any) -> dict[str, Any]:
    validation = examples("val", held_out) if held_out else None
    arguments: dict[str, Any] = {"settings": SETTINGS, "batch_size": 2, "progress": False, **changes}
    return evaluate_crowd(made or trained(), examples("test", 5), validation, output, **arguments)


def read_items(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "items.jsonl").read_text().splitlines()]


def test_the_files_hold_every_item_and_every_system(tmp_path: Path) -> None:
    facts, rows = run(tmp_path / "out"), read_items(tmp_path / "out")
    assert facts["failed"] == 0
    questions = [(number, each.prompt, each.answer) for number, each in enumerate(examples("test", 5))]
    assert [(row["index"], row["question"], row["gold"]) for row in rows] == questions
    assert {name: len(texts) for name, texts in rows[0]["texts"].items()} == {
        "backbone": 1, "agents": 3, "mean": 1, "geometric": 1, "dirichlet": 1, "fitted": 1, "bma": 1,
        "self_consistency": 3,
    }  # fmt: skip
    systems = {"backbone", "agent_0", "agent_1", "agent_2", "mean", "geometric", "dirichlet", "fitted", "bma", "vote"}
    systems |= {"self_consistency_2", "self_consistency_3", "oracle"}
    for kind in ("strict", "flexible"):
        assert rows[0]["correct"][kind].keys() == systems
        assert facts["accuracy"][kind].keys() == systems | {SINGLE}
        share = np.mean([row["correct"][kind]["oracle"] for row in rows])
        assert facts["accuracy"][kind]["oracle"]["mean"] == pytest.approx(share)
    likelihood = facts["likelihood"]["mean"]
    assert likelihood["nll_ensemble"] <= likelihood["nll_mean"] and likelihood["ambiguity"] >= 0
    assert facts["answers"]["sampled_agent"] == int(np.argmin(facts["weights"]["nll"]))
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"evaluation.json", "evaluation.csv", "evaluation.png", "reliability.png"} <= names


def test_two_processes_and_a_kill_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zoo.common.reports.write_figure", lambda path, figure: None)
    run(tmp_path / "one", settings=FEW)
    expected = contents(tmp_path / "one")
    assert run(tmp_path / "two", settings=FEW, rank=1, world_size=2) == {"missing": 2}
    assert not (tmp_path / "two" / "evaluation.json").exists()
    run(tmp_path / "two", settings=FEW, world_size=2)
    assert contents(tmp_path / "two") == expected

    calls: list[Any] = []

    def killed(*args: Any) -> Any:
        if len(calls) == 2:
            raise KeyboardInterrupt
        calls.append(args)
        return generate_all_answers(*args)

    monkeypatch.setattr(evaluation_module, "generate_all_answers", killed)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "killed", settings=FEW)
    calls.pop()
    for _ in range(2):  # the second call only joins
        run(tmp_path / "killed", settings=FEW)
        assert len(calls) == 2 and contents(tmp_path / "killed") == expected
    with pytest.raises(ValueError, match=r"other settings: .*answers\.samples"):
        run(tmp_path / "killed")


def test_a_prompt_that_does_not_fit_is_wrong(tmp_path: Path) -> None:
    lengths = sorted(tokenise(examples("test", 5), TOKENIZER, TextFormat()).items[:, 1].tolist())
    settings = AnswerSettings(max_new_tokens=4)
    made = replace(trained(2, context=lengths[2] + 4), aggregator=FittedMixture([1, 2]))  # a run's own rule
    facts = run(tmp_path / "some", made, settings=settings)
    failed = sum(length > lengths[2] for length in lengths)
    assert (facts["count"], facts["failed"]) == (5, failed)
    assert "do not fit into the backbone's context" in facts["first_error"]
    assert sum(row["error"] is not None for row in read_items(tmp_path / "some")) == failed
    facts = run(tmp_path / "none", trained(2, context=20), held_out=0, settings=settings)
    assert facts["failed"] == 5 and facts["likelihood"] == {} and list(facts["accuracy"]["strict"]) == [SINGLE]


def test_answers_are_graded_by_both_extractions() -> None:
    texts = {"agents": ["so 7\n#### 7", "8", "7 it is"], "mean": ["#### 1,000"], SELF_CONSISTENCY: ["1", "7", "7"]}
    row = grade(texts, Decimal(7), (1, 3))
    strict, flexible = row["correct"]["strict"], row["correct"]["flexible"]
    assert [strict[f"agent_{k}"] for k in range(3)] == [True, False, False]
    assert [flexible[f"agent_{k}"] for k in range(3)] == [True, False, True]
    assert strict["vote"] and flexible["vote"] and strict["oracle"] and row["agreement"] == pytest.approx(2 / 3)
    assert (flexible["self_consistency_1"], flexible["self_consistency_3"]) == (False, True)
    assert row["parsed"]["strict"]["mean"] == "1000"
    assert grade({}, Decimal(7))["correct"] == {"strict": {}, "flexible": {}}


def test_scores_are_those_of_the_losses_and_of_the_rules() -> None:
    net, rules = make_crowd(), token_rules(3, [1.0, 2.0, 5.0])
    batch = make_batch(tokenise(examples("test", 3), TOKENIZER, TextFormat()), [0, 1, 2], net, TOKENIZER)
    scores = score(net, batch, rules, [1, 2, 3])
    with torch.no_grad():
        logits = net(batch["input_ids"], batch["attention_mask"])
    torch.testing.assert_close(scores["mean"]["agent_nll"].mean(1), losses(logits, batch["labels"]))
    targets = shifted_labels(batch["labels"])
    at = (targets != IGNORED).nonzero()
    probs = logits.softmax(-1)[:, at[:, 0], at[:, 1], targets[at[:, 0], at[:, 1]]]
    torch.testing.assert_close(scores["mean"]["nll"], -probs.mean(0).log(), atol=1e-5, rtol=0)
    fitted = (probs * torch.tensor([[1.0], [2.0], [5.0]]) / 8).sum(0)
    torch.testing.assert_close(scores["fitted"]["nll"], -fitted.log(), atol=1e-5, rtol=0)
    # Bayesian averaging: weights in proportion to prior and likelihood of the text so far
    ids, log_probs = batch["input_ids"][1], logits[:, 1].log_softmax(-1)
    first = int(targets[1].ne(IGNORED).nonzero()[0])
    likelihood = log_probs[:, torch.arange(first), ids[1 : first + 1]].sum(1)
    weights = (likelihood + torch.tensor([1.0, 2.0, 5.0]).log()).softmax(0)
    expected = -(weights * log_probs[:, first, ids[first + 1]].exp()).sum().log()
    nll = scores["bma"]["nll"][at[:, 0] == 1][0]
    torch.testing.assert_close(nll, expected, atol=1e-3, rtol=0)
