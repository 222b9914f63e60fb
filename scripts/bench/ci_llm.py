"""Benchmarks of CI-LLM: decoding|training|peft|padding|shared_trunk|memory|all; padding needs GSM8K."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from scripts.bench.ci_llm_others import PeftCrowd, generate_sequential
from scripts.bench.tools import Costs, Finding, Settings, command, in_folders, interleave, peak_memory, times_as_fast
from zoo.ci_llm.aggregation.aggregator import Mean
from zoo.ci_llm.data.buckets import TextBatches, padding_share
from zoo.ci_llm.data.datamodule import TextData
from zoo.ci_llm.data.tokenizers import BpeTokenizer
from zoo.ci_llm.data.tokens import join_rows
from zoo.ci_llm.inference.generate import generate
from zoo.ci_llm.losses.diversity import Diversity
from zoo.ci_llm.losses.likelihood import IGNORED, learned, losses, token_losses
from zoo.ci_llm.losses.objective import Objective, objective
from zoo.ci_llm.nets.agents import Agents
from zoo.ci_llm.nets.backbone import Backbone
from zoo.ci_llm.nets.crowd import Crowd, CrowdOutput, Mode
from zoo.cli.trainer import ZooCLI
from zoo.training.resume import ResumableBatchSampler

Init = Literal["lora", "normal"]
AGENTS, VOCABULARY = 4, 512
PROMPT_TOKENS, TEXT_TOKENS = 32, 96
WIDE = 512  # hidden size where the arithmetic counts, not the number of calls
BATCH, PIECES = 8, 2048  # texts, and size of the vocabulary, of the padding
FIXED = (512, 768)  # lengths that the original pads to
ANSWER_TOKENS = 131  # labelled tokens of a text of GSM8K, mean of `gsm8k_data`


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
        found: dict[str, Tensor] = {}
        ways = {"batched": generate_batched, "sequential": generate_sequential}
        runs = {name: partial(_keep, found, name, partial(way, crowd, ids, mask, steps)) for name, way in ways.items()}
        costs = interleave(runs, settings.few(15, 1))
        same = float((found["batched"] == found["sequential"]).float().mean())
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
        found: dict[str, Tensor] = {}
        runs = {
            "batched": partial(_keep, found, "batched", partial(generate_batched, crowd, ids, mask, steps)),
            "peft": partial(_keep, found, "peft", partial(other.generate, ids, mask, steps)),
        }
        costs = interleave(runs, settings.few(15, 1))
        same = float((found["batched"] == found["peft"]).float().mean())
        details = {"new tokens": steps, "share of equal tokens": same}
        findings.append(_times("decoding", rows, costs, 2.0 if rows == 1 else None, details))
        passes = {"batched": partial(_forward, crowd, ids, mask), "peft": partial(other.logits, ids, mask)}
        costs = interleave(passes, settings.few(41, 1), warmup=settings.few(3, 1))
        findings.append(_times("one forward pass", rows, costs, None, {"tokens": PROMPT_TOKENS}))
    return findings


def padding(settings: Settings) -> list[Finding]:
    """Share of padding on GSM8K with batches of similar length, and the loss of each text with and without."""
    data = gsm8k_data()
    data.setup("fit")
    lengths = np.asarray(data.lengths)
    longest = int(lengths.max())
    random = _numbers(ResumableBatchSampler(len(lengths), BATCH))
    bucketed = _numbers(TextBatches(lengths, BATCH))
    budget = _numbers(TextBatches(lengths, token_budget=BATCH * AGENTS * longest, agents=AGENTS))
    details: dict[str, Any] = {"texts": len(lengths), "longest": longest}
    details["random batches, %"] = 100 * padding_share(lengths, random)
    for fixed in FIXED:
        details[f"fixed {fixed}, %"] = 100 * (1 - float(np.minimum(lengths, fixed).mean()) / fixed)
    findings = [
        Finding(f"padding, {name}", 100 * padding_share(lengths, batches), "%", at_most=10.0, details=details)
        for name, batches in {f"{BATCH} texts of similar length": bucketed, "a budget of tokens": budget}.items()
    ]
    crowd, texts = make_crowd(), settings.few(64, 3)
    one, other = (_sequence_losses(crowd, data, batches, texts) for batches in (random, bucketed))
    both = one.keys() & other.keys()
    worst = max(float((one[number] - other[number]).abs().max()) for number in both)
    name = "loss of a text, random and similar lengths: largest difference"
    return [*findings, Finding(name, worst, "", at_most=1e-5, details={"texts": len(both), "agents": AGENTS})]


def shared_trunk(settings: Settings) -> list[Finding]:
    """Adapters on the last block alone against adapters on all, where arithmetic is the cost (hidden 512)."""
    hidden, rows = settings.few(WIDE, 64), 4
    crowds = {"trunk": make_crowd(hidden, top_layers=1), "all": make_crowd(hidden)}
    ids, mask = _texts(rows, settings.few(TEXT_TOKENS, 8))
    findings = []
    passes = {name: partial(_forward, crowd, ids, mask) for name, crowd in crowds.items()}
    findings.append(_times("forward pass", rows, interleave(passes, settings.few(7, 1)), None, {"hidden": hidden}))
    steps = {name: Training(crowd, ids, mask) for name, crowd in crowds.items()}
    findings.append(_times("training", rows, interleave(steps, settings.few(5, 1)), None, {"hidden": hidden}))
    wide = {mode: Training(make_crowd(hidden, mode), ids, mask) for mode in ("batched", "sequential")}
    findings.append(
        _times("training, all blocks", rows, interleave(wide, settings.few(5, 1)), None, {"hidden": hidden})
    )
    return findings


def memory(settings: Settings) -> list[Finding]:
    """Peak memory of a fresh process that takes a step with logits where labels are, against logits everywhere."""
    rows, length, vocabulary = settings.few(8, 1), settings.few(FIXED[0], 160), settings.few(2**15, 64)
    size = (rows, length, vocabulary)
    (idle, labelled), (_, everywhere) = (peak_memory(step_once, *size, which) for which in (True, False))
    details = {
        "texts": rows, "tokens": length, "labelled tokens": ANSWER_TOKENS, "vocabulary": vocabulary,
        "MiB after the imports": idle, "MiB, labelled": labelled, "MiB, everywhere": everywhere,
    }  # fmt: skip
    ratio = (everywhere - idle) / max(labelled - idle, 1.0)
    return [Finding("memory of a step beyond the imports, logits everywhere to labelled", ratio, "x", details=details)]


def step_once(rows: int, length: int, vocabulary: int, labelled: bool) -> None:
    """Forward and backward of four agents on texts whose last tokens are labels; in a fresh process.

    Args:
        rows: texts.
        length: tokens of each.
        vocabulary: of the backbone.
        labelled: compute logits where labels are, as training does, and not everywhere.
    """
    crowd = make_crowd(64, layers=2, vocabulary=vocabulary).train()
    ids, mask = _texts(rows, length)
    labels = ids.clone()
    labels[:, :-ANSWER_TOKENS] = IGNORED
    if labelled:
        loss = Objective({"input_ids": ids, "attention_mask": mask, "labels": labels}).of(crowd)
    else:
        loss = objective(crowd, ids, mask, lambda logits, members: losses(logits, labels))
    loss.total.backward()


BENCHMARKS: dict[str, Callable[[Settings], list[Finding]]] = {
    each.__name__: each for each in (decoding, training, peft, padding, shared_trunk, memory)
}


class Training:
    """Steps of a plain training loop on one batch.

    Args:
        crowd: that is trained.
        ids: texts (B, T), learned as a whole.
        mask: of them.

    Attributes:
        first: total of the first step.
    """

    def __init__(self, crowd: Crowd, ids: Tensor, mask: Tensor) -> None:
        self.crowd, self.ids, self.mask = crowd.train(), ids, mask
        self.optimizer = torch.optim.AdamW(crowd.agents.parameters(), 1e-4)
        self.diversity = Diversity(0.01, strategy="answer_mean")
        self.first = float("nan")
        self.steps = 0

    def __call__(self) -> None:
        """Take a step."""
        self.optimizer.zero_grad()
        loss = objective(self.crowd, self.ids, self.mask, self._task, self._represent, self._penalty, hidden=True)
        if not self.steps:
            self.first = float(loss.total.detach())
        loss.total.backward()
        nn.utils.clip_grad_norm_(self.crowd.agents.parameters(), 1.0)
        self.optimizer.step()
        self.steps += 1

    def _task(self, logits: Tensor, members: range) -> Tensor:
        return losses(logits, self.ids)

    def _represent(self, output: CrowdOutput, members: range) -> Tensor:
        return self.diversity.represent(output.logits, output.hidden, self.mask, self.ids)

    def _penalty(self, points: Tensor) -> Tensor:
        return self.diversity.loss(self.diversity.value(points, self.steps), self.steps)


def generate_batched(crowd: Crowd, ids: Tensor, mask: Tensor, steps: int) -> Tensor:
    """Ours: one cache of all agents; texts (B, T + steps)."""
    return generate(crowd, ids, mask, Mean(), steps)


def gsm8k_data() -> TextData:
    """The training texts of the real file, in byte pairs learned from it.

    Raises:
        FileNotFoundError: when neither ZOO_DATA nor ZOO_SHARED has it.
    """
    folders = [Path(os.environ.get("ZOO_DATA", "data")), Path(os.environ.get("ZOO_SHARED", "../shared")) / "data"]
    found = [folder / "gsm8k" for folder in folders if (folder / "gsm8k").is_dir()]
    if not found:
        raise FileNotFoundError("no folder gsm8k with train.jsonl; set ZOO_DATA to the folder that has it")
    root = str(found[0])
    return TextData(BpeTokenizer(PIECES, root), root, max_length=max(FIXED), batch_size=BATCH, cache=None)


@torch.no_grad()
def _forward(crowd: Crowd, ids: Tensor, mask: Tensor) -> Tensor:
    return crowd(ids, mask)


def _keep(found: dict[str, Any], name: str, run: Callable[[], Any]) -> None:
    found[name] = run()


def _texts(rows: int, length: int) -> tuple[Tensor, Tensor]:
    """Random texts (B, T) without padding."""
    ids = torch.randint(3, VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(0))
    return ids, torch.ones_like(ids)


def _numbers(batches: Iterable[Sequence[tuple[int, int]]]) -> list[list[int]]:
    """Numbers of the texts of each batch."""
    return [[index for _, index in batch] for batch in batches]


@torch.no_grad()
def _sequence_losses(crowd: Crowd, data: TextData, batches: Sequence[Sequence[int]], below: int) -> dict[int, Tensor]:
    """Losses (K,) of the first texts of the set, each in the batch that it belongs to."""
    found: dict[int, Tensor] = {}
    for numbers in (each for each in batches if min(each) < below):
        batch = join_rows([data.train_set[number] for number in numbers], data.tokenizer.pad_id)
        ids = batch["input_ids"] % VOCABULARY
        labels = torch.where(batch["labels"] < 0, batch["labels"], ids)
        values = token_losses(crowd(ids, batch["attention_mask"]), labels).sum(-1)
        values = values / (learned(labels) != IGNORED).sum(-1).clamp(min=1)
        found |= {number: values[:, at] for at, number in enumerate(numbers)}
    return found


def _times(name: str, rows: int, costs: Costs, at_least: float | None, details: dict[str, Any]) -> Finding:
    """How many times as fast the first of two contestants is, by processor time."""
    first, other = costs
    return times_as_fast(f"{name}, batch {rows}: {first} against {other}", costs, at_least, **details)


if __name__ == "__main__":
    try:
        command("ci_llm", in_folders(BENCHMARKS, partial(Settings, partial(ZooCLI, "fit"))))
    except FileNotFoundError as error:  # no GSM8K
        sys.exit(f"ci_llm.py: {error}")
