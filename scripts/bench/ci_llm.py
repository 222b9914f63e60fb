"""Benchmarks of CI-LLM: python -m scripts.bench.ci_llm decoding|training|peft|all."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from scripts.bench.ci_llm_others import PeftCrowd, generate_sequential
from scripts.bench.tools import Costs, Finding, Settings, command, in_folders, interleave, times_as_fast
from zoo.ci_llm.aggregation import Mean
from zoo.ci_llm.inference.generate import generate
from zoo.ci_llm.losses.diversity import Diversity
from zoo.ci_llm.losses.objective import CrowdObjective
from zoo.ci_llm.nets.agents import Agents
from zoo.ci_llm.nets.backbone import Backbone
from zoo.ci_llm.nets.crowd import Crowd, Mode
from zoo.cli.trainer import ZooCLI

Init = Literal["lora", "normal"]
AGENTS, VOCABULARY = 4, 512
PROMPT_TOKENS, TEXT_TOKENS = 32, 96
WIDE = 512  # hidden size where the arithmetic counts, not the number of calls


def make_crowd(
    hidden: int = 128,
    mode: Mode = "batched",
    top_layers: int | None = None,
    layers: int = 4,
    vocabulary: int = VOCABULARY,
    count: int = AGENTS,
    init: Init = "normal",
) -> Crowd:
    """Agents on a random Llama; the same weights for the same sizes."""
    config = {
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": 3 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": vocabulary,
        "max_position_embeddings": 1024,
    }
    agents = Agents(count, 8, 16, dropout=0.0, init=init, top_layers=top_layers)
    return Crowd(Backbone(config=config), agents, mode).eval()


def decoding(settings: Settings) -> list[Finding]:
    """Greedy text of four agents together, a token at a time: one pass of four rows against four passes of one."""
    crowd, steps = make_crowd(), settings.few(32, 4)
    findings = []
    for rows in (1, 4):
        ids, mask = _texts(rows, PROMPT_TOKENS)
        measured: dict[str, Tensor] = {}
        ways = {"batched": generate_batched, "sequential": generate_sequential}
        runs = {
            name: partial(_keep, measured, name, partial(way, crowd, ids, mask, steps)) for name, way in ways.items()
        }
        costs = interleave(runs, settings.few(15, 1))
        same = float((measured["batched"] == measured["sequential"]).float().mean())
        details = {"new tokens": steps, "share of equal tokens": same}
        findings.append(_times("decoding", rows, costs, 3.0 if rows == 1 else None, details))
    return findings


def training(settings: Settings) -> list[Finding]:
    """A training step of four agents with the diversity term: forward, backward, clipping, AdamW."""
    findings = []
    for rows in (1, 4):
        ids, mask = _texts(rows, TEXT_TOKENS)
        contestants = {mode: Training(make_crowd(mode=mode), ids, mask) for mode in ("batched", "sequential")}
        costs = interleave(contestants, settings.few(21, 1), warmup=settings.few(2, 1))
        first, other = (each.first for each in contestants.values())
        details = {"tokens": TEXT_TOKENS, "difference of the first loss": abs(first - other)}
        findings.append(_times("training", rows, costs, 1.2 if rows == 1 else None, details))
    return findings


def peft(settings: Settings) -> list[Finding]:
    """The same agents as adapters of peft, in one batch that names an adapter for each row."""
    crowd, steps = make_crowd(), settings.few(32, 2)
    other = PeftCrowd(crowd)
    findings = []
    for rows in (1, 4):
        ids, mask = _texts(rows, PROMPT_TOKENS)
        measured: dict[str, Tensor] = {}
        runs = {
            "batched": partial(_keep, measured, "batched", partial(generate_batched, crowd, ids, mask, steps)),
            "peft": partial(_keep, measured, "peft", partial(other.generate, ids, mask, steps)),
        }
        costs = interleave(runs, settings.few(15, 1))
        same = float((measured["batched"] == measured["peft"]).float().mean())
        details = {"new tokens": steps, "share of equal tokens": same}
        findings.append(_times("decoding", rows, costs, 2.0 if rows == 1 else None, details))
        passes = {"batched": partial(_forward, crowd, ids, mask), "peft": partial(other.logits, ids, mask)}
        costs = interleave(passes, settings.few(41, 1), warmup=settings.few(3, 1))
        findings.append(_times("one forward pass", rows, costs, None, {"tokens": PROMPT_TOKENS}))
    return findings


BENCHMARKS: dict[str, Callable[[Settings], list[Finding]]] = {
    each.__name__: each for each in (decoding, training, peft)
}


class Training:
    """Steps of a plain training loop on one batch.

    Args:
        crowd: that is trained.
        ids: texts (B, T), shifted_labels as a whole.
        mask: of them.

    Attributes:
        first: total of the first step.
    """

    def __init__(self, crowd: Crowd, ids: Tensor, mask: Tensor) -> None:
        self.crowd = crowd.train()
        self.batch = {"input_ids": ids, "attention_mask": mask, "labels": ids}
        self.optimizer = torch.optim.AdamW(crowd.agents.parameters(), 1e-4)
        self.diversity = Diversity(0.01, strategy="answer_mean")
        self.first = float("nan")
        self.steps = 0

    def __call__(self) -> None:
        """Take a step."""
        self.optimizer.zero_grad()
        loss = CrowdObjective(self.batch, self.diversity, self.steps).compute(self.crowd)
        if not self.steps:
            self.first = float(loss.total.detach())
        loss.total.backward()
        nn.utils.clip_grad_norm_(self.crowd.agents.parameters(), 1.0)
        self.optimizer.step()
        self.steps += 1


def generate_batched(crowd: Crowd, ids: Tensor, mask: Tensor, steps: int) -> Tensor:
    """Ours: one cache of all agents; texts (B, T + steps)."""
    return generate(crowd, ids, mask, Mean(), steps)


@torch.no_grad()
def _forward(crowd: Crowd, ids: Tensor, mask: Tensor) -> Tensor:
    return crowd(ids, mask)


def _keep(measured: dict[str, Any], name: str, run: Callable[[], Any]) -> None:
    measured[name] = run()


def _texts(rows: int, length: int) -> tuple[Tensor, Tensor]:
    """Random texts (B, T) without padding."""
    ids = torch.randint(3, VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(0))
    return ids, torch.ones_like(ids)


def _times(name: str, rows: int, costs: Costs, at_least: float | None, details: dict[str, Any]) -> Finding:
    """How many times as fast the first of two contestants is, by processor time."""
    first, other = costs
    return times_as_fast(f"{name}, batch {rows}: {first} against {other}", costs, at_least, **details)


if __name__ == "__main__":
    command("ci_llm", in_folders(BENCHMARKS, partial(Settings, partial(ZooCLI, "fit"))))
