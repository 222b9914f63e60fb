from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.ci_llm.crowd_parts import CONFIGS, crowd
from zoo.ci_llm.aggregation.aggregator import BayesianAverage
from zoo.ci_llm.data.arithmetic import Arithmetic, Split
from zoo.ci_llm.data.text_data import Example, Template
from zoo.ci_llm.data.tokenizers import ByteTokenizer
from zoo.ci_llm.data.tokens import left_padded, tokenise
from zoo.ci_llm.evaluation import evaluate as evaluation_work
from zoo.ci_llm.evaluation.answering import ALL_SAMPLED, ONE_SAMPLED, AnswerSettings, ask, gold_answer, grade
from zoo.ci_llm.evaluation.evaluate import evaluate_crowd
from zoo.ci_llm.evaluation.report import SINGLE, accuracies, reliability
from zoo.ci_llm.evaluation.scoring import fit_weights, gather, rules, score
from zoo.ci_llm.evaluation.trained import TrainedCrowd, load_crowd
from zoo.ci_llm.losses.likelihood import IGNORED, learned, losses
from zoo.ci_llm.nets.crowd import Crowd

TOKENIZER = ByteTokenizer()
ASKING = AnswerSettings(max_new_tokens=5, samples=(2, 3), all_samples=2)


def make_crowd(count: int = 3, context: int = 128) -> Crowd:
    config = {**CONFIGS["llama"], "vocab_size": 259, "max_position_embeddings": context}
    return crowd(count=count, backbone={"config": config}).eval()


def examples(split: Split, count: int) -> list[Example]:
    problems = Arithmetic().problems(split)[:count]
    return [Example(*problem, "arithmetic", line) for line, problem in enumerate(problems, 1)]


def run(output: Path, trained: TrainedCrowd | None = None, held: int = 4, **changes: Any) -> dict[str, Any]:
    trained = trained or TrainedCrowd(make_crowd(), TOKENIZER, Template())
    validation = examples("val", held) if held else None
    settings: dict[str, Any] = {"options": ASKING, "batch_size": 2, "progress": False, **changes}
    return evaluate_crowd(trained, examples("test", 5), validation, output, **settings)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_files_hold_every_item_and_every_way_to_answer(tmp_path: Path) -> None:
    facts = run(tmp_path / "out")
    rows = [json.loads(line) for line in (tmp_path / "out" / "items.jsonl").read_text().splitlines()]
    assert [row["index"] for row in rows] == list(range(5)) and facts["failed"] == 0
    asked = examples("test", 5)
    assert [(row["question"], row["gold"]) for row in rows] == [(each.prompt, each.answer) for each in asked]
    assert {name: len(texts) for name, texts in rows[0]["texts"].items()} == {
        "backbone": 1, "agents": 3, "mean": 1, "geometric": 1, "dirichlet": 1, "fitted": 1, "bma": 1,
        "self_consistency": 3, "agents_sampled": 6,
    }  # fmt: skip
    systems = {"backbone", "agent_0", "agent_1", "agent_2", "mean", "geometric", "dirichlet", "fitted", "bma", "vote"}
    systems |= {"self_consistency_2", "self_consistency_3", "agents_sampled_6", "oracle"}
    for kind in ("strict", "flexible"):
        assert rows[0]["correct"][kind].keys() == systems
        assert facts["accuracy"][kind].keys() == systems | {SINGLE}
        share = np.mean([row["correct"][kind]["oracle"] for row in rows])
        assert facts["accuracy"][kind]["oracle"]["mean"] == pytest.approx(share)
    likelihood = facts["likelihood"]["mean"]
    assert likelihood["nll_ensemble"] <= likelihood["nll_mean"] and likelihood["ambiguity"] >= 0
    assert facts["sliced_wasserstein"].keys() == {"last_token/-1", "answer_mean/-1"}
    assert facts["asking"]["speaker"] == int(np.argmin(facts["weights"]["nll"]))
    kept = json.loads((tmp_path / "out" / "evaluation.json").read_text())
    assert kept["likelihood"]["bma"]["nll_ensemble"] == pytest.approx(facts["likelihood"]["bma"]["nll_ensemble"])
    lines = (tmp_path / "out" / "evaluation.csv").read_text().splitlines()
    assert len(lines) == 1 + len(systems) + 1 and lines[0].startswith("system,strict_mean,strict_se")
    for name in ("evaluation", "reliability", "risk_coverage"):
        assert (tmp_path / "out" / f"{name}.png").read_bytes().startswith(b"\x89PNG")


@pytest.fixture
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zoo.common.reports.write_figure", lambda path, figure: None)


@pytest.mark.usefixtures("no_pictures")
def test_two_processes_and_a_kill_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = AnswerSettings(max_new_tokens=3, samples=(2,), backbone=False)
    run(tmp_path / "one", options=options)
    one = contents(tmp_path / "one")
    assert run(tmp_path / "two", options=options, rank=1, world_size=2) == {"missing": 2}
    assert not (tmp_path / "two" / "evaluation.json").exists()
    run(tmp_path / "two", options=options, world_size=2)
    assert contents(tmp_path / "two") == one

    asked: list[Any] = []

    def killed(*args: Any) -> Any:
        if len(asked) == 2:
            raise KeyboardInterrupt
        asked.append(args)
        return ask(*args)

    monkeypatch.setattr(evaluation_work, "ask", killed)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "killed", options=options)
    asked.pop()
    run(tmp_path / "killed", options=options)
    assert len(asked) == 2 and contents(tmp_path / "killed") == one
    run(tmp_path / "killed", options=options)  # only joins
    assert len(asked) == 2
    with pytest.raises(ValueError, match=r"other settings: asking\.max_new_tokens 3"):
        run(tmp_path / "killed")


@pytest.mark.usefixtures("no_pictures")
def test_what_does_not_fit_has_failed_and_is_wrong(tmp_path: Path) -> None:
    asked = examples("test", 5)
    template = Template()
    lengths = sorted(tokenise(asked, TOKENIZER, template).items[:, 1].tolist())
    options = AnswerSettings(max_new_tokens=4, backbone=False)
    trained = TrainedCrowd(make_crowd(2, context=lengths[2] + 4), TOKENIZER, template)
    facts = run(tmp_path / "some", trained, options=options)
    kept = sum(length <= lengths[2] for length in lengths)
    assert (facts["count"], facts["failed"]) == (5, 5 - kept)
    assert "do not fit into the backbone's context" in facts["first_error"]
    rows = [json.loads(line) for line in (tmp_path / "some" / "items.jsonl").read_text().splitlines()]
    assert sum(row["error"] is not None for row in rows) == 5 - kept
    assert facts["accuracy"]["strict"]["vote"]["se"] >= 0
    facts = run(
        tmp_path / "none", TrainedCrowd(make_crowd(2, context=20), TOKENIZER, template), held=0, options=options
    )
    assert facts["failed"] == 5 and facts["likelihood"] == {} and list(facts["accuracy"]["strict"]) == [SINGLE]


@pytest.mark.usefixtures("no_pictures")
def test_one_agent_alone_has_nobody_to_be_joined_with(tmp_path: Path) -> None:
    facts = run(tmp_path / "out", TrainedCrowd(make_crowd(1), TOKENIZER, Template()))
    assert facts["weights"] == {} and facts["risk_coverage"] is None
    assert list(facts["likelihood"]) == ["mean"]
    assert facts["accuracy"]["strict"].keys() == {
        "agent_0",
        "backbone",
        "self_consistency_2",
        "self_consistency_3",
    }
    assert facts["likelihood"]["mean"]["nll_agent_0"] == pytest.approx(facts["likelihood"]["mean"]["nll_ensemble"])


def test_answers_are_graded_by_both_rules() -> None:
    texts = {
        "agents": ["so 7\n#### 7", "8", "7 it is"],
        "mean": ["#### 1,000"],
        ONE_SAMPLED: ["1", "7", "7"],
        ALL_SAMPLED: ["", "x", "2"],
    }
    row = grade(texts, Decimal(7), (1, 3))
    strict, flexible = row["correct"]["strict"], row["correct"]["flexible"]
    assert [strict[f"agent_{k}"] for k in range(3)] == [True, False, False]
    assert [flexible[f"agent_{k}"] for k in range(3)] == [True, False, True]
    assert strict["vote"] and flexible["vote"] and strict["oracle"] and row["agreement"] == pytest.approx(2 / 3)
    assert (flexible["self_consistency_1"], flexible["self_consistency_3"]) == (False, True)
    assert row["parsed"]["flexible"]["agents_sampled_3"] == "2" and row["parsed"]["strict"]["mean"] == "1000"
    assert grade({}, Decimal(7))["correct"] == {"strict": {}, "flexible": {}}
    assert gold_answer("3 apples", "here") == 3
    with pytest.raises(ValueError, match="here: no number in the right answer"):
        gold_answer("none", "here")


def test_wrong_where_a_row_has_no_answer() -> None:
    right, empty = {"agent_0": True, "agent_1": False, "vote": True}, dict[str, bool]()
    rows = [{"correct": {"strict": each, "flexible": each}} for each in (right, right, right, empty)]
    found = accuracies(rows, 2)["strict"]
    assert found["vote"]["mean"] == 0.75 and found[SINGLE]["mean"] == 0.375 and found["vote"]["gain"] == 0.375
    assert found["vote"]["se"] == pytest.approx(np.std([1, 1, 1, 0], ddof=1) / 2)
    assert found["vote"]["low"] <= 0.75 <= found["vote"]["high"]


def test_texts_do_not_depend_on_their_neighbours() -> None:
    net = make_crowd(2)
    prompts = [TOKENIZER.encode(text) for text in ("How many?", "2 + 3")]
    found = rules(2, [1.0, 3.0])
    options = AnswerSettings(max_new_tokens=4, samples=(3,), all_samples=2, speaker=1)
    both = ask(net, TOKENIZER, prompts, [7, 9], found, options)
    alone = ask(net, TOKENIZER, prompts[1:], [9], found, options)
    assert {way: each[1:] for way, each in both.items()} == alone
    first, second = both[ONE_SAMPLED]
    assert len(first) == 3 and first != second
    ids, mask = left_padded(prompts, 0)
    assert ids[1].tolist() == [0] * 4 + prompts[1] and mask.sum(1).tolist() == [9, 5]


def test_scores_are_those_of_the_losses_and_of_the_rules() -> None:
    net = make_crowd()
    tokens = tokenise(examples("test", 3), TOKENIZER, Template())
    batch = gather(tokens, [0, 1, 2], net, TOKENIZER)
    found = rules(3, [1.0, 2.0, 5.0])
    scores = score(net, batch, found, [1, 2, 3], layers=(-1, 1))
    with torch.no_grad():
        logits = net(batch["input_ids"], batch["attention_mask"])
    torch.testing.assert_close(scores.tokens["mean"]["agent_nll"].mean(1), losses(logits, batch["labels"]))
    goals = learned(batch["labels"])
    at = (goals != IGNORED).nonzero()
    assert torch.equal(scores.texts, at[:, 0])
    probs = logits.softmax(-1)[:, at[:, 0], at[:, 1], goals[at[:, 0], at[:, 1]]]
    torch.testing.assert_close(scores.tokens["mean"]["nll"], -probs.mean(0).log(), atol=1e-5, rtol=0)
    fitted = (probs * torch.tensor([[1.0], [2.0], [5.0]]) / 8).sum(0)
    torch.testing.assert_close(scores.tokens["fitted"]["nll"], -fitted.log(), atol=1e-5, rtol=0)
    # averaging along the text: weights in proportion to the prior and what was given the text so far
    assert isinstance(found["bma"], BayesianAverage)
    ids = batch["input_ids"][1]
    log_probs = logits[:, 1].log_softmax(-1)
    first = int(goals[1].ne(IGNORED).nonzero()[0])
    heard = log_probs[:, torch.arange(first), ids[1 : first + 1]].sum(1)
    weights = (heard + torch.tensor([1.0, 2.0, 5.0]).log()).softmax(0)
    expected = -(weights * log_probs[:, first, ids[first + 1]].exp()).sum().log()
    own = scores.tokens["bma"]["nll"][scores.texts == 1][0]
    torch.testing.assert_close(own, expected, atol=1e-3, rtol=0)
    assert {key: cloud.shape for key, cloud in scores.clouds.items()} == dict.fromkeys(
        ("last_token/-1", "answer_mean/-1", "last_token/1", "answer_mean/1"), (3, 3, 32)
    )
    with pytest.raises(ValueError, match="1 seeds for 3 texts"):
        score(net, batch, found, [1])


def test_fitted_weights_prefer_the_agent_that_predicts_best() -> None:
    net = make_crowd()
    alpha, nll = fit_weights(net, TOKENIZER, Template(), examples("val", 6), batch_size=4)
    assert int(np.argmax(alpha)) == int(np.argmin(nll))
    again, _ = fit_weights(net, TOKENIZER, Template(), examples("val", 6), batch_size=1)
    assert again == pytest.approx(alpha, rel=1e-3)
    with pytest.raises(ValueError, match="no prompt of 2 leaves room"):
        fit_weights(make_crowd(context=8), TOKENIZER, Template(), examples("val", 2))


def test_reliability_weighs_bins_to_the_calibration_error() -> None:
    tokens = {"confidence": torch.tensor([0.05, 0.95, 0.95, 1.0]), "correct": torch.tensor([0.0, 1.0, 0.0, 1.0])}
    bins = reliability(tokens)
    assert [row["share"] for row in bins] == [0.25, 0.75]
    assert bins[1]["accuracy"] == pytest.approx(2 / 3) and bins[1]["confidence"] == pytest.approx(2.9 / 3)


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    for wrong, message in (
        ({"rank": 2, "world_size": 2}, "rank is 0 to 1, not 2"),
        ({"batch_size": 0}, "batch_size is at least 1, not 0"),
        ({"options": AnswerSettings(4, samples=(0,))}, "samples is at least 1, not 0"),
        ({"options": AnswerSettings(4, temperature=0.0)}, "temperature is positive, not 0.0"),
    ):
        with pytest.raises(ValueError, match=message):
            run(tmp_path / "out", **wrong)
    with pytest.raises(ValueError, match="no question"):
        evaluate_crowd(TrainedCrowd(make_crowd(), TOKENIZER, Template()), [], None, tmp_path / "out", ASKING)
    assert not (tmp_path / "out").exists()
    with pytest.raises(FileNotFoundError):
        load_crowd(tmp_path / "nowhere")
