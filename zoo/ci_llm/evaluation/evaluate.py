"""Evaluation of a crowd on questions with answers: every way to answer, likelihoods, calibration, diversity.

Shared by processes, resumed after a kill.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.progress import track
from torch import Tensor

import zoo
from zoo.ci_llm.data.arithmetic import Split
from zoo.ci_llm.data.text_data import Example
from zoo.ci_llm.data.tokens import PROMPT, Tokens, tokenise
from zoo.ci_llm.evaluation.answering import VOTE, AnswerSettings, Row, ask, gold_answer, grade
from zoo.ci_llm.evaluation.report import accuracies, reliability, show, write_evaluation
from zoo.ci_llm.evaluation.scoring import Scores, fit_weights, gather, rules, score, usable
from zoo.ci_llm.evaluation.trained import TrainedCrowd, load_crowd, read_questions, validation_examples
from zoo.ci_llm.losses.distances import sliced_wasserstein
from zoo.ci_llm.losses.metrics import CrowdScores, risk_coverage
from zoo.common.atomic_files import write_atomic
from zoo.common.checks import check_at_least, check_positive, check_within
from zoo.common.environment import local_device
from zoo.common.journal import begin_output, pending_items
from zoo.common.locks import writes_into
from zoo.common.tensors import state_digest
from zoo.training.resume import item_seed

PROJECTIONS = 256  # of the distance between the agents' clouds


@dataclass
class CrowdEvaluation:
    """The parts of an evaluation; the agent of least NLL is asked for samples.

    Attributes:
        fitted: `alpha` and `nll` of the agents on the validation set; empty without.
    """

    trained: TrainedCrowd
    examples: Sequence[Example]
    tokens: Tokens
    options: AnswerSettings
    layers: Sequence[int]
    fitted: dict[str, list[float]]
    folder: Path

    def __post_init__(self) -> None:
        nll = self.fitted.get("nll", [0.0])
        self.options = replace(self.options, speaker=nll.index(min(nll)))
        self.rules = rules(self.trained.crowd.count, self.fitted.get("alpha"))

    def path(self, number: int) -> Path:
        """File of a part."""
        return self.folder / f"{number:05d}.npz"

    def do(self, number: int, questions: Sequence[int]) -> None:
        """Compute a part and write it."""
        crowd, tokenizer = self.trained.crowd, self.trained.tokenizer
        fit = set(usable(self.tokens, crowd, self.options.max_new_tokens))
        asked = [index for index in questions if index in fit]
        texts: dict[str, list[list[str]]] = {}
        arrays: dict[str, Any] = {}
        if asked:
            prompts = [self.tokens.row(index, int(self.tokens.items[index, PROMPT]))[0].tolist() for index in asked]
            texts = ask(crowd, tokenizer, prompts, asked, self.rules, self.options)
            seeds = [item_seed(self.options.seed, 0, index) for index in asked]
            batch = gather(self.tokens, asked, crowd, tokenizer)
            arrays = _arrays(score(crowd, batch, self.rules, seeds, self.layers), asked)
        rows = [self._row(index, {way: each[at] for way, each in texts.items()}) for at, index in enumerate(asked)]
        rows += [self._row(index, {}) for index in questions if index not in fit]
        content = np.frombuffer(json.dumps(rows, ensure_ascii=False).encode(), np.uint8)
        write_atomic(self.path(number), lambda file: np.savez(file, rows=content, **arrays))

    def _row(self, index: int, texts: dict[str, list[str]]) -> Row:
        example = self.examples[index]
        gold = gold_answer(example.answer, f"{example.file}, line {example.line}")
        error = None
        if not texts:
            error = (
                f"a prompt of {self.tokens.items[index, PROMPT]} tokens and {self.options.max_new_tokens} new ones do "
                f"not fit into the backbone's context of {self.trained.crowd.backbone.context_tokens}"
            )
        return {
            "index": index,
            "question": example.prompt,
            "gold": example.answer,
            "gold_parsed": str(gold),
            "error": error,
            "texts": texts,
            **grade(texts, gold, self.options.samples),
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
                kept.add({key: torch.from_numpy(value) for key, value in found.items()}, torch.from_numpy(texts))
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
            "name": self.trained.name,
            "agents": self.trained.crowd.count,
            "count": len(rows),
            "failed": sum(row["error"] is not None for row in rows),
            "first_error": next((row["error"] for row in rows if row["error"]), None),
            "asking": asdict(self.options),
            "weights": self.fitted,
            "accuracy": accuracies(rows, self.trained.crowd.count),
            "likelihood": {name: kept.summary() for name, kept in scored.items()},
            "intervals": {
                name: {key: each._asdict() for key, each in kept.intervals().items()} for name, kept in scored.items()
            },
            "sliced_wasserstein": {
                key: float(sliced_wasserstein(cloud, PROJECTIONS, generator.manual_seed(self.options.seed)))
                for key, cloud in clouds.items()
            },
            "reliability": {name: reliability(kept.state()[0]) for name, kept in scored.items()},
            "risk_coverage": _risk(rows) if self.trained.crowd.count > 1 else None,
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


PARTS_NAME, WEIGHTS_NAME = "parts", "weights.json"


@writes_into("output", positional=False)
def evaluate(
    run: Path,
    output: Path,
    questions: Path | None = None,
    validation: Path | None = None,
    split: Split = "test",
    prompt_field: str | None = None,
    answer_field: str | None = None,
    max_items: int | None = None,
    max_new_tokens: int | None = None,
    samples: Sequence[int] | None = None,
    all_samples: int = 0,
    temperature: float = 0.7,
    layers: Sequence[int] = (-1,),
    batch_size: int = 16,
    seed: int = 0,
    device: str = "cpu",
    rank: int = 0,
    world_size: int = 1,
    progress: bool = True,
) -> dict[str, Any]:
    """Ask a crowd questions: single agents, ensembles, votes, self-consistency, oracle; likelihood and calibration.

    Prints tables and writes items.jsonl, evaluation.json, evaluation.csv and pictures, see `evaluate_crowd`. The same
    call goes on after a kill. Under torchrun the processes share the work; the result is the same.

    Args:
        run: run folder, checkpoint or export of CI-LLM.
        output: folder to write.
        questions: a file of questions and answers, or a folder with a file of the split; by default that of the data
            the run was trained on, which may be arithmetic made in code.
        validation: likewise, for fitting the agents' weights; by default the run's validation set where the questions
            are the run's, none where they are given.
        split: of the questions.
        prompt_field: name of the question in the files; as in the run by default.
        answer_field: name of the answer; likewise.
        max_items: first so many questions; all by default.
        max_new_tokens: most tokens of an answer; the run's own limit by default.
        samples: answers of one agent for each self-consistency vote; as many as agents by default.
        all_samples: answers of every agent for a vote over all; 0 for none.
        temperature: of those answers.
        layers: whose distances between agents are measured.
        batch_size: questions computed together; fewer need less memory.
        seed: of the sampled answers.
        device: torch device.
        rank: of this process.
        world_size: processes.
        progress: show a bar on rank 0, and the result where it is complete.

    Returns:
        What evaluation.json holds; `{"missing": n}` while other processes owe n parts.

    Raises:
        FileNotFoundError: when there is no such run or file.
        ValueError: when the run is another kind's, its weights are not finite, an argument is out of range, or the
            folder was begun with other settings.
    """
    trained, data, limit = load_crowd(run, local_device(device))
    fields = (prompt_field or data.fields[0], answer_field or data.fields[1])
    if questions is None:
        examples, held = data.examples(split), validation_examples(data)
    else:
        examples, held = read_questions(Path(questions), split, fields), None
    if validation is not None:
        held = read_questions(Path(validation), "val", fields)
    if samples is None:
        samples = (trained.crowd.count,) if trained.crowd.count > 1 else ()
    options = AnswerSettings(max_new_tokens or limit, tuple(samples), all_samples, temperature, seed=seed)
    return evaluate_crowd(
        trained, examples[:max_items], held, output, options, layers, batch_size, rank, world_size, progress
    )


def evaluate_crowd(
    trained: TrainedCrowd,
    examples: Sequence[Example],
    validation: Sequence[Example] | None,
    output: Path,
    options: AnswerSettings,
    layers: Sequence[int] = (-1,),
    batch_size: int = 16,
    rank: int = 0,
    world_size: int = 1,
    progress: bool = True,
) -> dict[str, Any]:
    """Answer questions in every way, score the right answers, and sum up; further arguments as those of `evaluate`.

    OUTPUT then holds `items.jsonl` (a line per question: index, question, gold, texts, parsed, correct),
    `evaluation.json`, `evaluation.csv` (a row per way to answer), `evaluation.png` (bars), `reliability.png` and
    `risk_coverage.png`.

    Processes share the parts (`batch_size` questions of similar length) and need not talk to each other: the one that
    ends last writes the result, which is the same for any number of processes and kills.

    Args:
        examples: one whose prompt leaves no room for an answer in the backbone's context has failed, and counts as
            wrong.
        validation: to fit the agents' weights and to choose the agent that is asked for samples; None for equal
            weights and agent 0.
        options: how questions are put; its `speaker` is chosen here.
    """
    check_within(0, world_size - 1, rank=rank)
    if not examples:
        raise ValueError("no question to evaluate: the file is empty, or max_items is 0")
    check_at_least(
        1, max_new_tokens=options.max_new_tokens, batch_size=batch_size, samples=min(options.samples, default=1)
    )
    check_at_least(0, all_samples=options.all_samples)
    check_positive(temperature=options.temperature)
    if not layers:
        raise ValueError("layers: name at least one")
    trained.crowd.eval()
    for each in examples:
        gold_answer(each.answer, f"{each.file}, line {each.line}")  # refused now, not after hours
    tokens = tokenise(examples, trained.tokenizer, trained.template)
    output = Path(output).resolve()
    settings = {
        "adapters": state_digest(trained.crowd.agents.state_dict()),
        "backbone": trained.crowd.backbone.fingerprint(),
        "questions": _digest(tokens),
        "validation": _digest(tokenise(validation, trained.tokenizer, trained.template)) if validation else None,
        "layers": list(layers),
        "batch_size": batch_size,
        "asking": {key: value for key, value in asdict(options).items() if key != "speaker"},
    }
    begin_output(output, settings, sweep=world_size == 1)
    fitted = _fitted(trained, validation, output / WEIGHTS_NAME, batch_size)
    work = CrowdEvaluation(trained, examples, tokens, options, layers, fitted, output / PARTS_NAME)
    order = np.argsort(tokens.items[:, PROMPT], kind="stable").tolist()
    parts = [order[first : first + batch_size] for first in range(0, len(order), batch_size)]
    numbers = range(len(parts))
    pending = pending_items(numbers, lambda number: work.path(number).exists(), rank, world_size)
    for number in track(pending, "questions", disable=not progress or rank > 0):
        work.do(number, parts[number])
    if missing := pending_items(numbers, lambda number: work.path(number).exists()):
        return {"missing": len(missing)}
    facts, rows = work.join(len(parts))
    write_evaluation(output, facts, rows)
    if progress:
        show(facts)
    return facts


def _fitted(
    trained: TrainedCrowd, validation: Sequence[Example] | None, path: Path, batch_size: int
) -> dict[str, list[float]]:
    """The posterior of the agents' weights and their NLL; computed by whoever is first, empty without validation."""
    if not validation or trained.crowd.count == 1:
        return {}
    if not path.is_file():
        alpha, nll = fit_weights(trained.crowd, trained.tokenizer, trained.template, validation, batch_size=batch_size)
        text = json.dumps({"alpha": alpha, "nll": nll})
        write_atomic(path, lambda file: file.write(text.encode()))
    return json.loads(path.read_text(encoding="utf-8"))


def _digest(tokens: Tokens) -> str:
    return state_digest({"ids": torch.from_numpy(np.array(tokens.ids)), "items": torch.from_numpy(tokens.items[:, :3])})
