"""Benchmarks of CI-LLM: python -m scripts.bench.ci_llm decoding|training|answers|all --backbone FOLDER.

FOLDER is a causal LM in transformers' layout, as `scripts/prepare_smollm2.py` writes it; GSM8K lies in ZOO_DATA. With
--quick a tiny random Llama reads arithmetic.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from functools import partial, update_wrapper
from itertools import cycle, islice

import torch
from torch import Tensor

from scripts.bench.ci_llm_others import MixedBatch, PeftModels, PeftTraining
from scripts.bench.tools import Finding, command, interleave, times_as_fast
from zoo.ci_llm.aggregation import Mean
from zoo.ci_llm.data.datamodule import TextData
from zoo.ci_llm.data.tokenizers import ByteTokenizer, PretrainedTokenizer
from zoo.ci_llm.inference.generate import generate
from zoo.ci_llm.losses.objective import Batch, CrowdObjective
from zoo.ci_llm.nets.agents import Agents
from zoo.ci_llm.nets.backbone import Backbone
from zoo.ci_llm.nets.crowd import Crowd

AGENTS, RANK, ALPHA = 4, 8, 16  # on all linear layers of the blocks
TINY = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
PROMPT_TOKENS, NEW_TOKENS, TEXT_TOKENS = 96, 24, 160
ROWS = 16  # of the training set
LEARNING_RATE = 1e-4


def make_crowd(source: str | None = None) -> Crowd:
    """Agents that differ, on the backbone of a folder or a tiny random one; the same weights each time."""
    backbone = Backbone(source) if source else Backbone(config=TINY)
    return Crowd(backbone, Agents(AGENTS, RANK, ALPHA, dropout=0.0, init="normal"))


def read_rows(source: str | None = None) -> list[Batch]:
    """Batches of one text each in the order of training, question and answer; labels are those of the answer."""
    tokenizer = PretrainedTokenizer(source) if source else ByteTokenizer()
    root = os.path.join(os.environ.get("ZOO_DATA", "data"), "gsm8k") if source else None
    data = TextData(tokenizer, root, batch_size=1, cache=None)
    data.setup("fit")
    return list(islice(data.loader(data.train_set, batch_size=1, collate_fn=data.collate), ROWS))


def decoding(source: str | None) -> list[Finding]:
    """Greedy text of the mean prediction, batch 1: one pass of four rows against peft's models and its mixed batch."""
    crowd, ids = make_crowd(source).eval(), _first_tokens(source, PROMPT_TOKENS)
    texts: dict[str, Tensor] = {}
    ways: dict[str, Callable[[Tensor, int], Tensor]] = {
        "zoo": partial(generate_batched, crowd),
        "K models": PeftModels(crowd).generate,
        "mixed batch": MixedBatch(crowd).generate,
    }

    def run(name: str) -> None:
        texts[name] = ways[name](ids, NEW_TOKENS)

    costs = interleave({name: partial(run, name) for name in ways}, 5 if source else 1)
    findings = []
    for name, at_least in (("K models", 3.0), ("mixed batch", 2.0)):
        same = float((texts["zoo"] == texts[name]).float().mean())
        pair = {key: costs[key] for key in ("zoo", name)}
        findings.append(times_as_fast(f"zoo to peft, {name}", pair, at_least, **{"share of equal tokens": same}))
    return findings


def training(source: str | None) -> list[Finding]:
    """A training step (forward, backward, AdamW) on 160 tokens, all labelled, against peft's models in turn."""
    ids = _first_tokens(source, TEXT_TOKENS)
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}
    return [_compare_steps(source, [batch], 7 if source else 1, 1.0)]


def answers(source: str | None) -> list[Finding]:
    """A training step on a row of GSM8K, of which the answer is labelled, against peft's models in turn."""
    return [_compare_steps(source, read_rows(source), 9 if source else 1, 1.15)]


class Training:
    """Steps of a plain training loop on batches by turns; `losses` holds those of the agents (K,) at each step."""

    def __init__(self, crowd: Crowd, batches: Sequence[Batch]) -> None:
        self.crowd, self.batches = crowd.train(), cycle(batches)
        self.optimizer = torch.optim.AdamW(crowd.agents.parameters(), LEARNING_RATE)
        self.losses: list[Tensor] = []

    def __call__(self) -> None:
        """Take a step."""
        self.optimizer.zero_grad()
        loss = CrowdObjective(next(self.batches)).compute(self.crowd)
        (loss.total * AGENTS).backward()  # the gradient of each agent as if it trained alone
        self.optimizer.step()
        self.losses.append(loss.losses)


def generate_batched(crowd: Crowd, ids: Tensor, steps: int) -> Tensor:
    """Texts (B, T + steps) by one cache of all agents."""
    return generate(crowd, ids, torch.ones_like(ids), Mean(), steps)


def _compare_steps(source: str | None, batches: Sequence[Batch], rounds: int, at_least: float) -> Finding:
    """Training steps of the crowd and of peft's models from the same weights."""
    crowd = make_crowd(source)
    others = PeftModels(crowd).training(batches, LEARNING_RATE)
    ways: dict[str, Training | PeftTraining] = {"zoo": Training(crowd, batches), "K models": others}
    costs = interleave(ways, rounds)
    first, other = (each.losses[0] for each in ways.values())
    lengths = [each["input_ids"].shape[1] for each in batches[: rounds + 1]]
    labels = [int((each["labels"] >= 0).sum()) for each in batches[: rounds + 1]]
    details = {
        "mean tokens": sum(lengths) / len(lengths),
        "mean labels": sum(labels) / len(labels),
        "difference of the first losses": float((first - other).abs().max()),
    }
    return times_as_fast("zoo to peft, K models", costs, at_least, **details)


def _first_tokens(source: str | None, count: int) -> Tensor:
    """The first tokens (1, count) of the rows, joined."""
    return torch.cat([each["input_ids"] for each in read_rows(source)], 1)[:, :count]


if __name__ == "__main__":
    backbone = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    backbone.add_argument("--backbone", default="runs/smollm2", help="folder of a causal LM; default: runs/smollm2")
    folder = backbone.parse_known_args()[0].backbone
    benchmarks = {
        each.__name__: update_wrapper(lambda quick, run=each: run(None if quick else folder), each)
        for each in (decoding, training, answers)
    }
    command("ci_llm", benchmarks, backbone)
