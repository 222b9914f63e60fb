"""Evaluation of a crowd on questions with answers: every way to answer, likelihoods, calibration, diversity.

Shared by processes, resumed after a kill.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.progress import track

from zoo.atomic import sweep_temporaries, write_atomic
from zoo.ci_llm.answering import Asking, gold_answer
from zoo.ci_llm.arithmetic import Split
from zoo.ci_llm.evaluation_report import show, write_report
from zoo.ci_llm.evaluation_work import Work
from zoo.ci_llm.scoring import fit_weights
from zoo.ci_llm.subject import Subject, load_subject, read_questions, validation_examples
from zoo.ci_llm.text_data import Example
from zoo.ci_llm.tokens import PROMPT, Tokens, tokenise
from zoo.training.folders import begin_output
from zoo.training.frozen import state_digest

PARTS_NAME, WEIGHTS_NAME = "parts", "weights.json"


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
    device: str | torch.device = "cpu",
    rank: int = 0,
    world_size: int = 1,
    progress: bool = True,
) -> dict[str, Any]:
    """Evaluate a run; see `evaluate_crowd`.

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
        samples: of self-consistency, see `evaluate_crowd`.
        all_samples: likewise.
        temperature: of the samples.
        layers: whose distances are measured.
        batch_size: questions computed together; fewer need less memory.
        seed: of the samples.
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
    subject, data, limit = load_subject(run, device)
    fields = (prompt_field or data.fields[0], answer_field or data.fields[1])
    if questions is None:
        examples, held = data.examples(split), validation_examples(data)
    else:
        examples, held = read_questions(Path(questions), split, fields), None
    if validation is not None:
        held = read_questions(Path(validation), "val", fields)
    if samples is None:
        samples = (subject.crowd.count,) if subject.crowd.count > 1 else ()
    asking = Asking(max_new_tokens or limit, tuple(samples), all_samples, temperature, seed=seed)
    return evaluate_crowd(
        subject, examples[:max_items], held, output, asking, layers, batch_size, rank, world_size, progress
    )


def evaluate_crowd(
    subject: Subject,
    examples: Sequence[Example],
    validation: Sequence[Example] | None,
    output: Path,
    asking: Asking,
    layers: Sequence[int] = (-1,),
    batch_size: int = 16,
    rank: int = 0,
    world_size: int = 1,
    progress: bool = True,
) -> dict[str, Any]:
    """Answer questions in every way, score the right answers, and sum up; the same call resumes after a kill.

    OUTPUT then holds `items.jsonl` (a line per question: index, question, gold, texts, parsed, correct),
    `evaluation.json`, `evaluation.csv` (a row per way to answer), `evaluation.png` (bars), `reliability.png` and
    `risk_coverage.png`.

    Processes share the parts (`batch_size` questions of similar length) by `rank` and `world_size` and need not talk
    to each other: the one that ends last writes the result, which is the same for any number of processes and kills.

    Args:
        subject: what is evaluated.
        examples: questions and right answers. One whose prompt leaves no room for an answer in the backbone's context
            has failed, and counts as wrong.
        validation: to fit the agents' weights and to choose the agent that is asked for samples; None for equal
            weights and agent 0.
        output: folder to write.
        asking: how questions are put; its `speaker` is chosen here.
        layers: of the hidden states whose distances are measured.
        batch_size: questions of a part.
        rank: of this process, 0 to world_size - 1. It takes every world_size-th part.
        world_size: processes.
        progress: show a bar on rank 0, and the result where it is complete.

    Returns:
        What evaluation.json holds; `{"missing": n}` while other processes owe n parts.

    Raises:
        ValueError: when an argument is out of range, there is no question or an answer without a number, or the
            folder was begun with other settings.
        OSError: when the disk is full; the same call goes on.
    """
    _check(examples, asking, layers, batch_size, rank, world_size)
    subject.crowd.eval()
    for each in examples:
        gold_answer(each.answer, f"{each.file}, line {each.line}")  # refused now, not after hours
    tokens = tokenise(examples, subject.tokenizer, subject.template)
    output = Path(output).resolve()
    begin_output(output, _settings(subject, tokens, validation, asking, layers, batch_size))
    if world_size == 1:
        sweep_temporaries(output)
    fitted = _fitted(subject, validation, output / WEIGHTS_NAME, batch_size)
    work = Work(subject, examples, tokens, asking, layers, fitted, output / PARTS_NAME)
    order = np.argsort(tokens.items[:, PROMPT], kind="stable").tolist()
    parts = [order[first : first + batch_size] for first in range(0, len(order), batch_size)]
    owed = [number for number in range(rank, len(parts), world_size) if not work.path(number).exists()]
    for number in track(owed, "questions", disable=not (progress and rank == 0)):
        work.do(number, parts[number])
    missing = sum(not work.path(number).exists() for number in range(len(parts)))
    if missing:
        return {"missing": missing}
    facts, rows = work.join(len(parts))
    write_report(output, facts, rows)
    if progress:
        show(facts)
    return facts


def _fitted(
    subject: Subject, validation: Sequence[Example] | None, path: Path, batch_size: int
) -> dict[str, list[float]]:
    """The posterior of the agents' weights and their NLL; computed by whoever is first, empty without validation."""
    if not validation or subject.crowd.count == 1:
        return {}
    if not path.is_file():
        alpha, nll = fit_weights(subject.crowd, subject.tokenizer, subject.template, validation, batch_size=batch_size)
        text = json.dumps({"alpha": alpha, "nll": nll})
        write_atomic(path, lambda file: file.write(text.encode()))
    return json.loads(path.read_text(encoding="utf-8"))


def _settings(
    subject: Subject,
    tokens: Tokens,
    validation: Sequence[Example] | None,
    asking: Asking,
    layers: Sequence[int],
    batch_size: int,
) -> dict[str, Any]:
    """What a folder is for."""
    held = None
    if validation:
        held = tokenise(validation, subject.tokenizer, subject.template)
    asked = {key: value for key, value in asdict(asking).items() if key != "speaker"}
    return {
        "adapters": state_digest(subject.crowd.agents.state_dict()),
        "backbone": subject.crowd.backbone.fingerprint(),
        "questions": _digest(tokens),
        "validation": None if held is None else _digest(held),
        "layers": list(layers),
        "batch_size": batch_size,
        "asking": asked,
    }


def _digest(tokens: Tokens) -> str:
    return state_digest({"ids": torch.from_numpy(np.array(tokens.ids)), "items": torch.from_numpy(tokens.items[:, :3])})


def _check(
    examples: Sequence[Example], asking: Asking, layers: Sequence[int], batch_size: int, rank: int, world_size: int
) -> None:
    if not 0 <= rank < world_size:
        raise ValueError(f"rank lies between 0 and world_size - 1, found rank {rank} of {world_size}")
    if not examples:
        raise ValueError("no question to evaluate: the file is empty, or max_items is 0")
    if min(asking.max_new_tokens, batch_size, len(layers), *asking.samples, 1) < 1 or asking.all_samples < 0:
        raise ValueError(
            f"at least 1 is needed of max_new_tokens ({asking.max_new_tokens}), batch_size ({batch_size}), samples "
            f"({list(asking.samples)}) and layers ({list(layers)}), at least 0 of all_samples ({asking.all_samples})"
        )
    if asking.temperature <= 0:
        raise ValueError(f"temperature of the samples is above 0, not {asking.temperature}")
