"""A crowd on a benchmark: texts, numbers or choices, n-shot, with or without a chat template."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from rich.console import Console
from rich.progress import track

import zoo
from zoo.ci_llm.aggregation.aggregator import Aggregator, Mean, Vote
from zoo.ci_llm.data.prompts import Prompting, context_ids, pair_ids
from zoo.ci_llm.data.text_data import TABLES, Example, Template, json_rows, split_files, table_rows
from zoo.ci_llm.data.tokenizers import Tokenizer
from zoo.ci_llm.evaluation.likelihoods import Likelihood, choice_figures, likelihoods
from zoo.ci_llm.evaluation.matching import gsm8k_figures, normalised, text_figures
from zoo.ci_llm.evaluation.scoring import rules
from zoo.ci_llm.evaluation.trained import load_crowd
from zoo.ci_llm.inference.generate import write_answers
from zoo.ci_llm.losses.metrics import calibration_error
from zoo.ci_llm.nets.crowd import Crowd
from zoo.common.atomic_files import write_atomic
from zoo.common.checks import check_at_least
from zoo.common.environment import local_device
from zoo.common.journal import begin_output, pending_items
from zoo.common.locks import writes_into
from zoo.common.reports import terminal_table, write_report
from zoo.common.tensors import state_digest

Kind = Literal["gsm8k", "arc", "choice", "text", "likelihood"]
VOTE = "vote"
PARTS = "parts"
_GSM8K_STOP = ("Question:", "</s>", "<|im_end|>")


@dataclass(frozen=True)
class Item:
    """A question with its right answer, or with choices and the number of the right one."""

    prompt: str
    answer: str
    choices: tuple[str, ...] = ()
    gold: int = 0


@dataclass(frozen=True)
class Task:
    """How questions are put and answers are compared.

    Attributes:
        measure: "generate" lets the crowd write; "choose" compares the likelihoods of choices; "likelihood" scores the
            right answer and needs no parser.
        fields: of prompt, answer and choices in a record.
    """

    measure: Literal["generate", "choose", "likelihood"]
    fields: tuple[str, str, str] = ("question", "answer", "choices")
    template: Template = field(default_factory=Template)
    stop: tuple[str, ...] = ()


TASKS: dict[str, Task] = {
    "gsm8k": Task("generate", stop=_GSM8K_STOP),
    "arc": Task("choose", ("question", "answerKey", "choices")),
    "choice": Task("choose"),
    "text": Task("generate", stop=("\n",)),
    "likelihood": Task("likelihood"),
}


def read_items(source: str, task: Task, split: str = "test", subset: str | None = None) -> list[Item]:
    """Read questions.

    Args:
        source: a file of JSON lines, Parquet or Arrow; a folder with one for each split; or a dataset of the hub, which
            needs the extra `images` (datasets) and was not run here, for want of a hub.
        task: whose fields are read. Choices are a list of texts, or ARC's `{text: [...], label: [...]}`; the answer to
            them is a label, a number from 0, or the right text.
        subset: name of the hub dataset's configuration.

    Raises:
        FileNotFoundError: when there is no such file, or no such split.
        ValueError: when a record lacks a field or its answer is none of its choices; names file and line.
    """
    return [_item(row, task, where) for where, row in _records(source, split, subset, task)]


def _records(source: str, split: str, subset: str | None, task: Task) -> Iterator[tuple[str, Any]]:
    path = Path(source)
    if path.exists():
        files = [path] if path.is_file() else split_files(path, split)
        if not files:
            raise FileNotFoundError(f"{path} has no files of the split {split}; put {split}.jsonl there or name a file")
        columns = task.fields if task.measure == "choose" else task.fields[:2]
        for each in files:
            rows = table_rows(each, columns) if each.suffix in TABLES else json_rows(each)
            yield from ((f"{each}, line {line}", row) for line, row in rows)
        return
    if source.startswith((".", "/")) or source.endswith((".jsonl", ".json", *TABLES)):
        raise FileNotFoundError(f"no file or folder of questions at {source}")
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise FileNotFoundError(
            f"no file or folder {source}; a dataset of the hub needs pip install 'zoo[images]'"
        ) from error
    try:
        found = load_dataset(source, subset, split=split)
    except OSError as error:  # no such dataset, or no network
        raise FileNotFoundError(f"no file or folder {source}, and no dataset of the hub: {error}") from error
    for number, row in enumerate(found, 1):
        yield f"{source}, row {number}", row


def _item(row: Any, task: Task, where: str) -> Item:
    prompt_field, answer_field, choices_field = task.fields
    wanted = task.fields if task.measure == "choose" else task.fields[:2]
    if not isinstance(row, dict) or any(name not in row for name in wanted):
        found = ", ".join(map(str, row)) if isinstance(row, dict) else type(row).__name__
        raise ValueError(f"{where}: expected the fields {', '.join(wanted)}, found {found}; name them with --fields")
    prompt, answer = row[prompt_field], row[answer_field]
    if not isinstance(prompt, str) or not prompt.strip():
        raise ValueError(f"{where}: {prompt_field} is no text")
    if task.measure != "choose":
        if not isinstance(answer, str) or not answer.strip():
            raise ValueError(f"{where}: {answer_field} is no text")
        return Item(prompt, answer)
    choices = row[choices_field]
    labels = [str(label) for label in choices["label"]] if isinstance(choices, dict) else []
    texts = list(choices["text"]) if isinstance(choices, dict) else choices
    if not isinstance(texts, list) or len(texts) < 2 or not all(isinstance(text, str) and text for text in texts):
        raise ValueError(f"{where}: {choices_field} are not two texts or more")
    if str(answer) in labels:
        gold = labels.index(str(answer))
    elif isinstance(answer, int) and 0 <= answer < len(texts):
        gold = answer
    elif answer in texts:
        gold = texts.index(answer)
    else:
        raise ValueError(f"{where}: {answer_field} {answer!r} is none of the choices")
    return Item(prompt, texts[gold], tuple(texts), gold)


class Benchmark:
    """A crowd, what it is asked, and how.

    Args:
        aggregators: rules that join the agents token by token, by name.
        backbone: ask it without agents, too.
    """

    def __init__(
        self,
        crowd: Crowd,
        tokenizer: Tokenizer,
        task: Task,
        kind: str,
        prompting: Prompting,
        aggregators: Mapping[str, Aggregator],
        max_new_tokens: int = 256,
        batch_size: int = 16,
        backbone: bool = True,
    ) -> None:
        self.crowd, self.tokenizer, self.task, self.kind = crowd, tokenizer, task, kind
        self.prompting, self.aggregators = prompting, dict(aggregators)
        self.max_new_tokens, self.batch_size, self.backbone = max_new_tokens, batch_size, backbone
        self.context = crowd.backbone.context_tokens
        if not all(task.stop):
            raise ValueError("stop strings are not empty")
        if task.measure == "generate" and self.context is not None and self.context <= max_new_tokens:
            raise ValueError(f"max_new_tokens is {max_new_tokens}, and the backbone's context {self.context}: lower it")

    def rows(self, items: Sequence[Item]) -> list[dict[str, Any]]:
        """A row per question: `figures` by system (backbone, agents, rules, vote), and texts or log-probabilities."""
        return self._written(items) if self.task.measure == "generate" else self._scored(items)

    def _written(self, items: Sequence[Item]) -> list[dict[str, Any]]:
        chat = self.prompting.chat
        prompts = [
            context_ids(self.tokenizer, self.prompting.context(self.tokenizer, item.prompt), chat) for item in items
        ]
        if self.context is not None:
            prompts = [ids[-(self.context - self.max_new_tokens) :] for ids in prompts]  # as lm-eval does

        def write(rule: Aggregator) -> list[list[str]]:
            seeds = list(range(len(prompts)))
            return write_answers(
                self.crowd, self.tokenizer, prompts, rule, self.max_new_tokens, None, seeds, self.task.stop, True
            )

        texts: dict[str, list[str]] = {}
        if self.backbone:
            with self.crowd.without_agents():
                texts["backbone"] = [text for (text,) in write(Mean())]
        own = write(Vote())
        texts |= {f"agent_{k}": [each[k] for each in own] for k in range(self.crowd.count)}
        if self.crowd.count > 1:
            texts |= {name: [text for (text,) in write(rule)] for name, rule in self.aggregators.items()}
            texts[VOTE] = [majority(each) for each in own]
        compare = gsm8k_figures if self.kind == "gsm8k" else text_figures
        return [
            {
                "question": item.prompt,
                "gold": item.answer,
                "texts": {system: each[number] for system, each in texts.items()},
                "figures": {system: compare(each[number], item.answer) for system, each in texts.items()},
            }
            for number, item in enumerate(items)
        ]

    def _scored(self, items: Sequence[Item]) -> list[dict[str, Any]]:
        prompting, choose = self.prompting, self.task.measure == "choose"
        pairs, owners = [], []
        for number, item in enumerate(items):
            context = prompting.context(self.tokenizer, item.prompt)
            for choice in item.choices if choose else (item.answer,):
                pairs.append(pair_ids(self.tokenizer, context, prompting.answer(choice), prompting.chat))
                owners.append(number)
        found = likelihoods(self.crowd, pairs, self.aggregators, self.tokenizer.pad_id, self.batch_size)
        sums = [each.sums() for each in found]
        if self.backbone:
            with self.crowd.without_agents():
                alone = likelihoods(self.crowd, pairs, {"backbone": Mean()}, self.tokenizer.pad_id, self.batch_size)
            for mine, each in zip(sums, alone, strict=True):
                mine["backbone"] = each.sums()["backbone"]
        rows = []
        for number, item in enumerate(items):
            own = [at for at, owner in enumerate(owners) if owner == number]
            by_system = {system: [sums[at][system] for at in own] for system in sums[own[0]]}
            row: dict[str, Any] = {"question": item.prompt, "gold": item.answer, "log_probs": by_system}
            if choose:
                figures = {system: choice_figures(each, item.choices, item.gold) for system, each in by_system.items()}
                row |= {"choices": list(item.choices), "figures": figures}
            else:
                row |= {
                    "figures": _answer_figures(found[own[0]], by_system, item.answer),
                    "tokens": _tokens(found[own[0]]),
                }
            rows.append(row)
        return rows


def majority(texts: Sequence[str]) -> str:
    """The text of the first voter for the most frequent answer, compared normalised."""
    keys = [normalised(text) for text in texts]
    return texts[max(range(len(keys)), key=lambda number: (keys.count(keys[number]), -number))]


def _answer_figures(found: Likelihood, sums: Mapping[str, list[float]], answer: str) -> dict[str, dict[str, float]]:
    """NLL of a right answer per token and per byte, in nats, and whether the likeliest tokens are it."""
    tokens = found.agents.shape[1]
    return {
        system: {
            "nll": -total / tokens,
            "nll_byte": -total / len(answer.encode()),
            **({"greedy": float(found.greedy[system])} if system in found.greedy else {}),
        }
        for system, (total,) in sums.items()
    }


def _tokens(found: Likelihood) -> dict[str, list[list[float]]]:
    """Confidence and hits of each rule, token by token, for calibration."""
    return {name: [part[0].tolist(), part[1].float().tolist()] for name, part in found.confidence.items()}


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Means over questions by system and figure, `<figure>_se` beside (with N - 1), and `ece` where there is one."""
    result: dict[str, dict[str, float]] = {}
    for system in rows[0]["figures"]:
        mine: dict[str, float] = {}
        for name in rows[0]["figures"][system]:
            values = np.array([row["figures"][system][name] for row in rows])
            mine[name] = float(values.mean())
            mine[f"{name}_se"] = float(values.std(ddof=1) / len(values) ** 0.5) if len(values) > 1 else float("nan")
        if "confidence" in mine:
            sure, right = (torch.tensor([row["figures"][system][key] for row in rows]) for key in ("confidence", "acc"))
            mine["ece"] = calibration_error(sure, right)
        if "tokens" in rows[0] and system in rows[0]["tokens"]:
            sure, right = (torch.tensor([x for row in rows for x in row["tokens"][system][at]]) for at in (0, 1))
            mine["ece"] = calibration_error(sure, right)
        result[system] = mine
    return result


@writes_into("output", positional=False)
def benchmark(
    run: Path,
    output: Path,
    questions: str,
    task: Kind = "gsm8k",
    split: str = "test",
    subset: str | None = None,
    fields: tuple[str, str, str] | None = None,
    shots: int = 0,
    shots_from: str | None = None,
    template: str | None = None,
    answer_template: str | None = None,
    system: str | None = None,
    chat: bool = False,
    stop: list[str] | None = None,
    max_items: int | None = None,
    max_new_tokens: int = 256,
    batch_size: int = 16,
    device: str = "cpu",
    rank: int = 0,
    world_size: int = 1,
    progress: bool = True,
) -> dict[str, Any]:
    """Put a benchmark to a crowd: the backbone, every agent, every rule that joins them, and their vote.

    OUTPUT then holds `results.json`, `results.csv` and `items.jsonl`. The same call goes on after a kill.

    Args:
        run: run folder, checkpoint or export of CI-LLM.
        output: folder to write.
        questions: a file of JSON lines, Parquet or Arrow, a folder with one for each split, or a dataset of the hub.
        task: `gsm8k` (numbers, as lm-eval's task), `arc` and `choice` (choices by likelihood), `text` (written answers,
            exact and normalised), `likelihood` (NLL and calibration of the right answers).
        split: of the questions.
        subset: configuration of a dataset of the hub.
        fields: names of question, answer and choices in a record.
        shots: questions with answers that stand before each, the first of those in shots_from.
        shots_from: where they are read, as questions; by default the split `train` beside the questions.
        template: of a question, with `{prompt}`.
        answer_template: of an answer, with `{answer}`.
        system: text before all.
        chat: use the tokenizer's chat template.
        stop: texts that end an answer; the task's by default.
        max_items: first so many questions.
        max_new_tokens: most tokens of an answer.
        batch_size: questions (or choices) computed together.
        device: torch device.
        rank: of this process.
        world_size: processes that share the work; the one that ends last writes the results.
        progress: show a bar and the table.

    Returns:
        What results.json holds; `{"missing": n}` while other processes owe n parts.

    Raises:
        FileNotFoundError: when there is no such run or file.
        ValueError: when a record cannot be read, an argument is out of range, or the folder was begun otherwise.
    """
    check_at_least(
        1, batch_size=batch_size, max_new_tokens=max_new_tokens, max_items=1 if max_items is None else max_items
    )
    check_at_least(0, shots=shots)
    form = TASKS[task]
    form = replace(
        form,
        fields=fields or form.fields,
        stop=form.stop if stop is None else tuple(stop),
        template=Template(template or form.template.prompt, answer_template or form.template.answer),
    )
    items = read_items(questions, form, split, subset)[:max_items]
    if not items:
        raise ValueError(f"{questions} holds no questions")
    examples = _shots(shots_from or questions, form, shots, subset)
    trained, _, _ = load_crowd(run, local_device(device))
    prompting = Prompting(form.template, examples, system=system, chat=chat)
    crowd = trained.crowd.eval()
    maker = Benchmark(
        crowd, trained.tokenizer, form, task, prompting, rules(crowd.count), max_new_tokens, batch_size,
        bool(crowd.agents.names),
    )  # fmt: skip
    output = Path(output).resolve()
    asked = json.dumps([[item.prompt, item.answer, *item.choices] for item in items])
    settings = {
        "adapters": state_digest(crowd.agents.state_dict()),
        "backbone": crowd.backbone.fingerprint(),
        "questions": state_digest({"text": torch.frombuffer(bytearray(asked.encode()), dtype=torch.uint8)}),
        "context": prompting.context(trained.tokenizer, items[0].prompt),
        "task": task,
        "stop": list(form.stop),
        "max_new_tokens": max_new_tokens,
        "batch_size": batch_size,
    }
    begin_output(output, settings, sweep=world_size == 1)
    parts = [items[first : first + batch_size] for first in range(0, len(items), batch_size)]
    paths = [output / PARTS / f"{number:05d}.json" for number in range(len(parts))]
    numbers = range(len(parts))
    pending = pending_items(numbers, lambda number: paths[number].exists(), rank, world_size)
    for number in track(pending, "questions", disable=not progress or rank > 0):
        content = json.dumps(maker.rows(parts[number]), ensure_ascii=False).encode()
        write_atomic(paths[number], lambda file, content=content: file.write(content))  # type: ignore[misc]
    if missing := pending_items(numbers, lambda number: paths[number].exists()):
        return {"missing": len(missing)}
    rows = [row for path in paths for row in json.loads(path.read_text(encoding="utf-8"))]
    facts = {"version": zoo.__version__, "name": trained.name, "count": len(rows), **settings, "results": summary(rows)}
    _report(output, facts, rows, progress)
    return facts


def _shots(source: str, task: Task, count: int, subset: str | None) -> tuple[Example, ...]:
    if not count:
        return ()
    found = read_items(source, task, "train", subset)[:count]
    if len(found) < count:
        raise ValueError(f"{source} has {len(found)} examples for {count} shots")
    return tuple(Example(item.prompt, item.answer, source, line) for line, item in enumerate(found, 1))


def _report(output: Path, facts: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], progress: bool) -> None:
    results = facts["results"]
    columns = ["system", *dict.fromkeys(name for each in results.values() for name in each)]
    table = [{"system": system, **{name: each.get(name) for name in columns[1:]}} for system, each in results.items()]
    write_report(output, {"items.jsonl": rows, "results.csv": (columns, table), "results.json": facts})
    if progress:
        heads = [name for name in columns if not name.endswith("_se")]
        lines = [[row["system"], *(_shown(row, name) for name in heads[1:])] for row in table]
        title = f"{facts['name']}: {facts['task']}, {facts['count']} questions"
        Console().print(terminal_table(heads, lines, title, heads[:1], heads))


def _shown(row: Mapping[str, Any], name: str) -> str:
    if row[name] is None:
        return "-"
    error = row.get(f"{name}_se")
    return f"{row[name]:.3f}" + ("" if error is None or error != error else f" ± {error:.3f}")
