"""Components of crowds and of their data name the argument that they refuse."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.ci_llm.crowd_parts import byte_crowd, crowd
from tests.ci_llm.task_parts import task
from zoo.ci_llm import Backbone, ByteTokenizer, Crowd, Diversity, FittedMixture, Sampling
from zoo.ci_llm.aggregation import fit_dirichlet
from zoo.ci_llm.answers import vote
from zoo.ci_llm.convert.read import Adapters
from zoo.ci_llm.convert.write import write_original
from zoo.ci_llm.data.buckets import TextBatches
from zoo.ci_llm.data.text_files import Example, TextFormat
from zoo.ci_llm.data.tokenizers import PretrainedTokenizer
from zoo.ci_llm.evaluation.answering import AnswerSettings, gold_answer
from zoo.ci_llm.evaluation.evaluate import evaluate_crowd
from zoo.ci_llm.evaluation.scoring import fit_weights
from zoo.ci_llm.evaluation.trained import TrainedCrowd
from zoo.ci_llm.losses.diversity import text_representations

RSLORA = Adapters(weights=[], rank=2, alpha=4, dropout=0.0, targets=[], rslora=True)
KEY = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"


def evaluate_nothing(folder: Path) -> None:
    evaluate_crowd(TrainedCrowd(byte_crowd(), ByteTokenizer(), TextFormat()), [], None, folder, AnswerSettings())


def fit_without_room(_: Path) -> None:
    fit_weights(byte_crowd(context=8), ByteTokenizer(), TextFormat(), [Example("2 + 3", "5", "x", 1)])


def load_changed(change: Any) -> None:
    agents = crowd().agents
    agents.load_adapter(0, change(agents.adapter(0)))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda _: crowd(targets=("q_proj", "c_attn")), "have no c_attn; their linear layers are down_proj"),
        (lambda _: crowd(targets="q_proj"), r"have no q_proj;.* a regular expression .* whole names .* \[q_proj\]"),
        (lambda _: crowd(targets=()), "targets is empty"),
        (lambda _: crowd(top_layers=3), "has 2 blocks"),
        (lambda _: crowd(alpha=0), "alpha is above 0"),
        (lambda _: Crowd(crowd().backbone, crowd().agents), "already attached"),
        (lambda _: task(diversity=Diversity(0.1, layer=3)), "layer"),
        (lambda _: crowd().agents.adapter(-1), "agents 0 to 2"),
        (lambda _: load_changed(lambda w: {f"{k}.agent1" if k == KEY else k: v for k, v in w.items()}),
         r"2 tensors .*missing .*unexpected .*agent1"),
        (lambda _: load_changed(lambda w: {**w, KEY: w[KEY][:2]}), r"is \(2, 32\), expected \(4, 32\)"),
        (lambda _: Backbone(), "give source"),
        (lambda _: Backbone(config={"hidden_size": 8}), "model_type"),
        (lambda folder: Backbone(source=str(folder / "absent")), "no folder"),
        (lambda folder: Backbone(source=str(folder)), r"nor a run below it holds config\.json"),
        (lambda folder: PretrainedTokenizer(str(folder)).encode("a"), "no tokenizer in"),
        (lambda _: FittedMixture([1, 1]).start(3, 1), "2 fitted weights for 3 agents"),
        (lambda _: FittedMixture([0, 0]), "at least 0"),
        (lambda _: fit_dirichlet(torch.zeros(3, 0)), "at least one token"),
        (lambda _: fit_dirichlet(torch.full((2, 2), float("nan"))), "no NaN"),
        (lambda _: text_representations(torch.zeros(3, 2, 4, 8), torch.ones(2, 4), None, "answer_mean"),
         "needs labels"),
        (lambda folder: evaluate_nothing(folder / "out"), "no question"),
        (lambda _: gold_answer("none", "here"), "here: no number in the right answer"),
        (fit_without_room, "no prompt of 1 leaves a token"),
        (lambda _: vote([]), "at least one answer"),
        (lambda _: Sampling(temperature=1).choose(torch.zeros(1, 4)), "one random number per row"),
        (lambda folder: write_original(folder / "out", RSLORA), "rsLoRA"),
        (lambda _: TextBatches([30] * 12), "give one of"),
        (lambda _: TextBatches([5, 6], batch_size=3), "do not fill one batch"),
        (lambda _: TextBatches([300], token_budget=500, agents=2), "token_budget is 500, .* needs 600"),
    ],
)  # fmt: skip
def test_refused(call: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        call(tmp_path)
    assert not (tmp_path / "out").exists()
