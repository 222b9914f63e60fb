"""Evaluation of a crowd on questions with answers: every system, likelihoods, calibration, diversity.

The work is shared by processes and resumed after a kill.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.progress import track
from torch import Tensor

import zoo
from zoo.ci_llm.aggregation import Dirichlet
from zoo.ci_llm.data.arithmetic import Split
from zoo.ci_llm.data.text_files import Example
from zoo.ci_llm.data.tokens import PROMPT, TokenTable, tokenise
from zoo.ci_llm.evaluation.answering import AnswerSettings, Row, generate_all_answers, gold_answer, grade
from zoo.ci_llm.evaluation.report import compute_accuracies, print_report, write_evaluation
from zoo.ci_llm.evaluation.scoring import fit_weights, fitting_examples, make_batch, score, token_rules
from zoo.ci_llm.evaluation.trained import TrainedCrowd, data_arguments, load_crowd, read_questions
from zoo.ci_llm.inference.generate import length_error
from zoo.ci_llm.losses.metrics import reliability_bins, summarise_scores
from zoo.common.atomic_files import write_atomic
from zoo.common.checks import check_at_least, check_within
from zoo.common.environment import local_device
from zoo.common.journal import begin_output, pending_items
from zoo.common.locks import delete_held_lock, writes_into
from zoo.common.registry import public_name
from zoo.common.tensors import state_digest
from zoo.training.resume import item_seed

log = logging.getLogger(__name__)

PARTS_NAME, WEIGHTS_NAME = "parts", "weights.json"
DEFAULT_ANSWERS = AnswerSettings()


@dataclass
class CrowdEvaluation:
    """An evaluation in parts.

    Attributes:
        settings: with numbers for `max_new_tokens` and `samples`.
        weights: `alpha` and `nll` of the agents on the validation set; empty without. Self-consistency samples the
            agent of least NLL.
        folder: of the parts.
    """

    trained: TrainedCrowd
    examples: Sequence[Example]
    tokens: TokenTable
    settings: AnswerSettings
    weights: dict[str, list[float]]
    folder: Path

    def __post_init__(self) -> None:
        nll = self.weights.get("nll", [0.0])
        self.sampled_agent = nll.index(min(nll))
        self.rules = token_rules(self.trained.crowd.count, self.weights.get("alpha"), self.trained.aggregator)
        self.new_tokens = self.settings.max_new_tokens or 1

    def path(self, number: int) -> Path:
        """File of a part."""
        return self.folder / f"{number:05d}.pt"

    def compute_part(self, number: int, questions: Sequence[int]) -> None:
        """Answer and score some questions, and write the part."""
        crowd, tokenizer = self.trained.crowd, self.trained.tokenizer
        fitting = set(fitting_examples(self.tokens, crowd, self.new_tokens))
        indices = [index for index in questions if index in fitting]
        texts: dict[str, list[list[str]]] = {}
        scores: dict[str, dict[str, Tensor]] = {}
        if indices:
            prompts = [self.tokens.prompt(index) for index in indices]
            texts = generate_all_answers(
                crowd, tokenizer, prompts, indices, self.rules, self.settings, self.sampled_agent
            )
            seeds = [item_seed(self.settings.seed, 0, index) for index in indices]
            batch = make_batch(self.tokens, indices, crowd, tokenizer)
            scores = score(crowd, batch, self.rules, seeds)
        rows = [self._row(index, {key: each[at] for key, each in texts.items()}) for at, index in enumerate(indices)]
        rows += [self._row(index, {}) for index in questions if index not in fitting]
        write_atomic(self.path(number), lambda file: torch.save({"rows": rows, "tokens": scores}, file))

    def _row(self, index: int, texts: dict[str, list[str]]) -> Row:
        example = self.examples[index]
        gold = gold_answer(example.answer, f"{example.file}, line {example.line}")
        prompt_tokens = int(self.tokens.items[index, PROMPT])
        return {
            "index": index,
            "question": example.prompt,
            "gold": example.answer,
            "gold_parsed": str(gold),
            "error": None if texts else length_error(self.trained.crowd, prompt_tokens, self.new_tokens),
            "texts": texts,
            **grade(texts, gold, self.settings.samples or ()),
        }

    def join(self, count: int) -> tuple[dict[str, Any], list[Row]]:
        """Join the parts: the facts of the evaluation, and a row per question."""
        parts = [torch.load(self.path(number), weights_only=True) for number in range(count)]
        rows = sorted((row for part in parts for row in part["rows"]), key=lambda row: row["index"])
        tokens = [part["tokens"] for part in parts if part["tokens"]]
        names = self.rules if tokens else {}
        scores = {name: {key: torch.cat([each[name][key] for each in tokens], -1) for key in tokens[0][name]}
                  for name in names}  # fmt: skip
        return self._facts(rows, scores), rows

    def _facts(self, rows: list[Row], scores: dict[str, dict[str, Tensor]]) -> dict[str, Any]:
        return {
            "version": zoo.__version__,
            "name": self.trained.name,
            "agents": self.trained.crowd.count,
            "count": len(rows),
            "failed": sum(row["error"] is not None for row in rows),
            "first_error": next((row["error"] for row in rows if row["error"]), None),
            "answers": asdict(self.settings) | {"sampled_agent": self.sampled_agent},
            "weights": self.weights,
            "accuracy": compute_accuracies(rows, self.trained.crowd.count),
            "likelihood": {name: summarise_scores(each) for name, each in scores.items()},
            "reliability": {
                name: reliability_bins(each["confidence"], each["correct"]) for name, each in scores.items()
            },
        }


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
    answers: AnswerSettings = DEFAULT_ANSWERS,
    batch_size: int = 16,
    device: str = "cpu",
    rank: int = 0,
    world_size: int = 1,
    progress: bool = True,
) -> dict[str, Any]:
    """Ask a crowd questions: single agents, ensembles, votes, self-consistency, oracle; likelihood and calibration.

    The files of OUTPUT are described in docs/ci_llm.md. The same call resumes after a kill; processes share the work.

    Args:
        run: run folder, checkpoint or export of CI-LLM.
        output: folder to write.
        questions: file of questions and answers, or folder with a file of the split; by default the run's data, which
            an export does not name.
        validation: likewise, to fit the agents' weights; by default the run's, none where `questions` is given or
            `split` is val.
        split: of the questions.
        prompt_field: name of the question in the files; as in the run by default.
        answer_field: name of the answer; likewise.
        max_items: first so many questions; all by default.
        answers: how questions are answered.
        batch_size: questions computed together; fewer need less memory.
        device: torch device.
    """
    check_at_least(1, max_items=1 if max_items is None else max_items)
    trained, data, limit = load_crowd(run, local_device(device))
    if (prompt_field or answer_field) and questions is None and validation is None:
        raise ValueError("--prompt_field and --answer_field name the fields of --questions, which is not given")
    if data_arguments(run) is None:
        if questions is None:
            raise ValueError(f"{run} has no config.yaml that names data of zoo.ci_llm.TextData: give --questions")
        form = data.text_format.answer_template
        log.warning("%s has no config.yaml that names its texts: answers are scored as %r", run, form)
    fields = (prompt_field or data.text_format.prompt_field, answer_field or data.text_format.answer_field)
    if questions is None:
        examples = data.validation_examples() if split == "val" else data.examples(split)
        held_out = None if split == "val" else data.validation_examples()  # nothing is fitted on what is scored
    else:
        examples, held_out = read_questions(Path(questions), split, fields), None
    if validation is not None:
        held_out = read_questions(Path(validation), "val", fields)
    if held_out is None and trained.crowd.count > 1:
        log.warning("without a validation set no weights are fitted, and self-consistency samples agent 0")
    settings = replace(answers, max_new_tokens=answers.max_new_tokens or limit)
    return evaluate_crowd(
        trained, examples[:max_items], held_out, output, settings, batch_size, rank, world_size, progress
    )


def evaluate_crowd(
    trained: TrainedCrowd,
    examples: Sequence[Example],
    validation: Sequence[Example] | None,
    output: Path,
    settings: AnswerSettings,
    batch_size: int = 16,
    rank: int = 0,
    world_size: int = 1,
    progress: bool = True,
) -> dict[str, Any]:
    """Answer questions by every system, score the right answers and write the report; see `evaluate`.

    Processes share the parts (`batch_size` questions of similar length) and do not communicate: the last one writes the
    report, which is the same for any number of processes and kills.

    Returns:
        The content of evaluation.json; `{"missing": n}` while other processes compute n parts.

    Raises:
        ValueError: when an argument is out of range, or the folder was begun with other settings.
    """
    check_within(0, world_size - 1, rank=rank)
    check_at_least(1, batch_size=batch_size)
    if not examples:
        raise ValueError("no question to evaluate: the file is empty")
    for each in examples:
        gold_answer(each.answer, f"{each.file}, line {each.line}")  # refused now, not after hours
    count = trained.crowd.eval().count
    if settings.samples is None:
        settings = replace(settings, samples=(count,) if count > 1 else ())
    tokens = tokenise(examples, trained.tokenizer, trained.text_format)
    output = Path(output).resolve()
    begin_output(output, _describe(trained, tokens, validation, settings, batch_size), sweep=world_size == 1)
    weights = _read_weights(trained, validation, output / WEIGHTS_NAME, batch_size)
    evaluation = CrowdEvaluation(trained, examples, tokens, settings, weights, output / PARTS_NAME)
    order = np.argsort(tokens.items[:, PROMPT], kind="stable").tolist()
    parts = [order[first : first + batch_size] for first in range(0, len(order), batch_size)]
    numbers = range(len(parts))
    pending = pending_items(numbers, lambda number: evaluation.path(number).exists(), rank, world_size)
    for number in track(pending, "questions", disable=not progress or rank > 0):
        evaluation.compute_part(number, parts[number])
    if missing := pending_items(numbers, lambda number: evaluation.path(number).exists()):
        return {"missing": len(missing)}
    facts, rows = evaluation.join(len(parts))
    write_evaluation(output, facts, rows)
    if progress:
        print_report(facts)
    return facts


def _describe(
    trained: TrainedCrowd,
    tokens: TokenTable,
    validation: Sequence[Example] | None,
    settings: AnswerSettings,
    batch_size: int,
) -> dict[str, Any]:
    """What must be equal in all calls that write a folder."""
    held_out = tokenise(validation, trained.tokenizer, trained.text_format) if validation else None
    rule = trained.aggregator
    alpha = {"alpha": rule.alpha} if isinstance(rule, Dirichlet) else {}  # the only one that changes results
    return {
        "adapters": state_digest(trained.crowd.agents.state_dict()),
        "backbone": trained.crowd.backbone.fingerprint(),
        "questions": _digest(tokens),
        "validation": None if held_out is None else _digest(held_out),
        "batch_size": batch_size,
        "answers": asdict(settings),
        "aggregator": None if rule is None else {"class": public_name(type(rule)), **alpha},
    }


def _read_weights(
    trained: TrainedCrowd, validation: Sequence[Example] | None, path: Path, batch_size: int
) -> dict[str, list[float]]:
    """The posterior of the agents' weights and their NLL, empty without validation.

    The first process fits them and writes `path`; the others wait for it.
    """
    from filelock import FileLock

    if not validation or trained.crowd.count == 1:
        return {}
    lock_path = path.with_suffix(".lock")
    with FileLock(lock_path):
        if not path.is_file():
            alpha, nll = fit_weights(
                trained.crowd, trained.tokenizer, trained.text_format, validation, batch_size=batch_size
            )
            text = json.dumps({"alpha": alpha, "nll": nll})
            write_atomic(path, lambda file: file.write(text.encode()))
        delete_held_lock(lock_path)
    return json.loads(path.read_text(encoding="utf-8"))


def _digest(tokens: TokenTable) -> str:
    return state_digest({"ids": torch.from_numpy(np.array(tokens.ids)), "items": torch.from_numpy(tokens.items[:, :3])})
