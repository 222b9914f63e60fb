"""The parts of an evaluation: computed one by one, kept in files, put together."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import zoo
from zoo.atomic import replacing
from zoo.ci_llm.answering import VOTE, Asking, Row, ask, gold_answer, grade
from zoo.ci_llm.distances import sliced_wasserstein
from zoo.ci_llm.evaluation_report import accuracies, reliability
from zoo.ci_llm.metrics import CrowdScores, risk_coverage
from zoo.ci_llm.scoring import Scores, gather, rules, score, usable
from zoo.ci_llm.subject import Subject
from zoo.ci_llm.text_data import Example
from zoo.ci_llm.tokens import PROMPT, Tokens
from zoo.training.resume import item_seed

PROJECTIONS = 256  # of the distance between the agents' clouds


class Work:
    """The parts of an evaluation.

    Args:
        subject: what is evaluated.
        examples: questions and right answers.
        tokens: of them.
        asking: how questions are put; the agent of least NLL is asked for samples.
        layers: of the hidden states whose distances are measured.
        fitted: `alpha` and `nll` of the agents on the validation set; empty without.
        folder: of the parts.
    """

    def __init__(
        self,
        subject: Subject,
        examples: Sequence[Example],
        tokens: Tokens,
        asking: Asking,
        layers: Sequence[int],
        fitted: dict[str, list[float]],
        folder: Path,
    ) -> None:
        self.subject, self.examples, self.tokens, self.layers, self.folder = subject, examples, tokens, layers, folder
        self.fitted = fitted
        nll = fitted.get("nll", [0.0])
        self.asking = replace(asking, speaker=nll.index(min(nll)))
        self.rules = rules(subject.crowd.count, fitted.get("alpha"))

    def path(self, number: int) -> Path:
        """File of a part."""
        return self.folder / f"{number:05d}.npz"

    def do(self, number: int, questions: Sequence[int]) -> None:
        """Compute a part and write it."""
        crowd, tokenizer = self.subject.crowd, self.subject.tokenizer
        fit = set(usable(self.tokens, crowd, self.asking.max_new_tokens))
        asked = [index for index in questions if index in fit]
        texts: dict[str, list[list[str]]] = {}
        arrays: dict[str, Any] = {}
        if asked:
            prompts = [self.tokens.row(index, int(self.tokens.items[index, PROMPT]))[0].tolist() for index in asked]
            texts = ask(crowd, tokenizer, prompts, asked, self.rules, self.asking)
            seeds = [item_seed(self.asking.seed, 0, index) for index in asked]
            batch = gather(self.tokens, asked, crowd, tokenizer)
            arrays = _arrays(score(crowd, batch, self.rules, seeds, self.layers), asked)
        rows = [self._row(index, {way: each[at] for way, each in texts.items()}) for at, index in enumerate(asked)]
        rows += [self._row(index, {}) for index in questions if index not in fit]
        content = np.frombuffer(json.dumps(rows, ensure_ascii=False).encode(), np.uint8)
        with replacing(self.path(number)) as temporary, temporary.open("wb") as file:
            np.savez(file, rows=content, **arrays)

    def _row(self, index: int, texts: dict[str, list[str]]) -> Row:
        example = self.examples[index]
        gold = gold_answer(example.answer, f"{example.file}, line {example.line}")
        error = None
        if not texts:
            error = (
                f"a prompt of {self.tokens.items[index, PROMPT]} tokens and {self.asking.max_new_tokens} new ones do "
                f"not fit into the backbone's context of {self.subject.crowd.backbone.context_tokens}"
            )
        return {
            "index": index,
            "question": example.prompt,
            "gold": example.answer,
            "gold_parsed": str(gold),
            "error": error,
            "texts": texts,
            **grade(texts, gold, self.asking.samples),
        }

    def join(self, count: int) -> tuple[dict[str, Any], list[Row]]:
        """Put the parts together: the facts, and a row per question."""
        rows: list[Row] = []
        scores: dict[str, CrowdScores] = {name: CrowdScores() for name in self.rules}
        clouds: dict[str, list[Tensor]] = {}
        for number in range(count):
            with np.load(self.path(number), allow_pickle=False) as file:
                held = {key: file[key] for key in file.files}
            rows += json.loads(held.pop("rows").tobytes())
            texts = held.pop("texts", None)
            for name, kept in scores.items() if texts is not None else ():
                found = {key.rpartition(":")[2]: held[key] for key in held if key.startswith(f"tokens:{name}:")}
                kept.restore({key: torch.from_numpy(value) for key, value in found.items()}, torch.from_numpy(texts))
            for key in held:
                if key.startswith("cloud:"):
                    clouds.setdefault(key.partition(":")[2], []).append(torch.from_numpy(held[key]))
        rows.sort(key=lambda row: row["index"])
        return self._facts(rows, scores, {key: torch.cat(each, 1) for key, each in clouds.items()}), rows

    def _facts(self, rows: list[Row], scores: dict[str, CrowdScores], clouds: dict[str, Tensor]) -> dict[str, Any]:
        generator = torch.Generator()
        scored = {name: kept for name, kept in scores.items() if clouds}
        return {
            "version": zoo.__version__,
            "name": self.subject.name,
            "agents": self.subject.crowd.count,
            "count": len(rows),
            "failed": sum(row["error"] is not None for row in rows),
            "first_error": next((row["error"] for row in rows if row["error"]), None),
            "asking": asdict(self.asking),
            "weights": self.fitted,
            "accuracy": accuracies(rows, self.subject.crowd.count),
            "likelihood": {name: kept.summary() for name, kept in scored.items()},
            "intervals": {
                name: {key: each._asdict() for key, each in kept.intervals().items()} for name, kept in scored.items()
            },
            "sliced_wasserstein": {
                key: float(sliced_wasserstein(cloud, PROJECTIONS, generator.manual_seed(self.asking.seed)))
                for key, cloud in clouds.items()
            },
            "reliability": {name: reliability(kept.tokens()) for name, kept in scored.items()},
            "risk_coverage": _risk(rows) if self.subject.crowd.count > 1 else None,
        }


def _risk(rows: Sequence[Row]) -> dict[str, list[float]]:
    """Risk over coverage of the vote, by the agreement of the agents."""
    agreement = torch.tensor([row["agreement"] for row in rows])
    right = torch.tensor([row["correct"]["flexible"].get(VOTE, False) for row in rows])
    coverage, risk = risk_coverage(agreement, right)
    return {"coverage": coverage.tolist(), "risk": risk.tolist()}


def _arrays(scores: Scores, questions: Sequence[int]) -> dict[str, np.ndarray]:
    """Scores as a file keeps them."""
    arrays = {"texts": torch.tensor(questions)[scores.texts].numpy()}
    for name, tokens in scores.tokens.items():
        arrays |= {f"tokens:{name}:{key}": values.numpy() for key, values in tokens.items()}
    return arrays | {f"cloud:{key}": cloud.numpy() for key, cloud in scores.clouds.items()}
