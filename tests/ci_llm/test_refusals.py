"""Components of crowds and of their data name the argument that they refuse."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.ci_llm.crowd_parts import crowd
from zoo.ci_llm import Agents, Backbone, BayesianAverage, Dirichlet, Diversity, FittedMixture
from zoo.ci_llm.aggregation import fit_dirichlet
from zoo.ci_llm.data.buckets import TextBatches
from zoo.ci_llm.data.tokenizers import BpeTokenizer, PretrainedTokenizer
from zoo.ci_llm.losses.diversity import text_representations

KEY = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
LENGTHS = [30] * 12
HIDDEN, MASK = torch.zeros(3, 2, 4, 8), torch.ones(2, 4)


def load_changed(change: Any) -> None:
    agents = crowd().agents
    agents.load_adapter(0, change(agents.adapter(0)))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda _: Agents(0), "count is"),
        (lambda _: Agents(1, dropout=1.0), "dropout is"),
        (lambda _: crowd(targets=("q_proj", "c_attn")), "have no c_attn; their linear layers are down_proj"),
        (lambda _: crowd(targets="q_proj"), r"have no q_proj;.* a regular expression .* whole names .* \[q_proj\]"),
        (lambda _: crowd(targets=()), "targets is empty"),
        (lambda _: crowd(top_layers=3), "has 2 blocks"),
        (lambda _: crowd().agents.attach(crowd().backbone), "already attached"),
        (lambda _: crowd().agents.adapter(-1), "agents 0 to 2"),
        (lambda _: load_changed(lambda w: {f"{k}.agent1" if k == KEY else k: v for k, v in w.items()}),
         r"2 tensors .*missing .*unexpected .*agent1"),
        (lambda _: load_changed(lambda w: {**w, KEY: w[KEY][:2]}), r"is \(2, 32\), expected \(4, 32\)"),
        (lambda _: Backbone(), "give source"),
        (lambda _: Backbone(config={"hidden_size": 8}), "model_type"),
        (lambda folder: Backbone(source=str(folder / "absent")), "no folder"),
        (lambda folder: Backbone(source=str(folder)), r"nor a run below it holds config\.json"),
        (lambda _: BpeTokenizer(vocab_size=100), "at least 259"),
        (lambda folder: PretrainedTokenizer(str(folder)).encode("a"), "no tokenizer in"),
        (lambda _: Dirichlet(0), "alpha is positive"),
        (lambda _: FittedMixture([1, 1]).start(3, 1), "2 fitted weights for 3 agents"),
        (lambda _: FittedMixture([0, 0]), "at least 0"),
        (lambda _: BayesianAverage(floor=1), "floor is below 1"),
        (lambda _: fit_dirichlet(torch.zeros(3, 4), alpha=0), "alpha is positive"),
        (lambda _: fit_dirichlet(torch.zeros(3, 0)), "at least one token"),
        (lambda _: fit_dirichlet(torch.full((2, 2), float("nan"))), "no NaN"),
        (lambda _: text_representations(HIDDEN, MASK, None, "answer_mean"), "needs labels"),
        (lambda _: text_representations(HIDDEN, MASK, None, "middle"), "strategy is one of last_token"),
        (lambda _: Diversity(weight=-1), "weight is at least 0"),
        (lambda _: TextBatches(LENGTHS), "give one of"),
        (lambda _: TextBatches([5, 6], batch_size=3), "do not fill one batch"),
        (lambda _: TextBatches(LENGTHS, batch_size=2, agent_data="other"), "agent_data"),
        (lambda _: TextBatches([300], token_budget=500, agents=2), "token_budget is 500, .* needs 600"),
    ],
)  # fmt: skip
def test_refused(call: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        call(tmp_path)
