"""Components of crowds and of their data name the argument that they refuse."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.ci_llm.crowd_parts import byte_crowd, crowd
from tests.ci_llm.task_parts import task
from zoo.ci_llm import Backbone, ByteTokenizer, Diversity, FittedMixture
from zoo.ci_llm.aggregation import fit_dirichlet
from zoo.ci_llm.data.buckets import TextBatches
from zoo.ci_llm.data.text_files import Example, TextFormat
from zoo.ci_llm.data.tokenizers import PretrainedTokenizer
from zoo.ci_llm.evaluation.answering import gold_answer
from zoo.ci_llm.evaluation.scoring import fit_weights

KEY = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"


def load_changed(change: Any) -> None:
    agents = crowd().agents
    agents.load_adapter(0, change(agents.adapter(0)))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda _: crowd(targets=("q_proj", "c_attn")), "have no c_attn"),
        (lambda _: crowd(targets="q_proj"), "regular expression"),
        (lambda _: crowd(top_layers=3), "2 blocks"),
        (lambda _: task(diversity=Diversity(0.1, layer=3)), "layer"),
        (lambda _: load_changed(lambda w: {f"{k}.agent1" if k == KEY else k: v for k, v in w.items()}),
         r"2 tensors .*missing .*unexpected .*agent1"),
        (lambda _: load_changed(lambda w: {**w, KEY: w[KEY][:2]}), r"is \(2, 32\), expected \(4, 32\)"),
        (lambda folder: Backbone(source=str(folder / "absent")), "no folder"),
        (lambda folder: Backbone(source=str(folder)), r"nor a run below it holds config\.json"),
        (lambda folder: PretrainedTokenizer(str(folder)).encode("a"), "no tokenizer in"),
        (lambda _: FittedMixture([1, 1]).start(3, 1), "2 fitted weights for 3 agents"),
        (lambda _: fit_dirichlet(torch.full((2, 2), float("nan"))), "no NaN"),
        (lambda _: gold_answer("none", "here"), "here: no number in the right answer"),
        (lambda _: fit_weights(byte_crowd(context=8), ByteTokenizer(), TextFormat(), [Example("2 + 3", "5", "x", 1)]),
         "no prompt of 1 leaves a token"),
        (lambda _: TextFormat(template="nothing"), "template"),
        (lambda _: TextBatches([5, 6], batch_size=3), "do not fill one batch"),
        (lambda _: TextBatches([300], token_budget=500, agents=2), "token_budget is 500, .* needs 600"),
    ],
)  # fmt: skip
def test_refused(call: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        call(tmp_path)
