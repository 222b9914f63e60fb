"""Tables of generated answers to the first questions of a validation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from zoo.ci_llm.data.tokenizers import Tokenizer
from zoo.ci_llm.losses.likelihood import IGNORED

MAX_TOKENS = 64  # new tokens of an answer in a table


class Question(NamedTuple):
    """Token ids of a prompt, the prompt without its template, and the right answer."""

    prompt: list[int]
    text: str
    answer: str


def list_questions(
    batches: Sequence[Mapping[str, Tensor]], count: int, tokenizer: Tokenizer, template: str
) -> list[Question]:
    """The first examples in batches of an evaluation, whose rows end with the answer's labels and padding."""
    prefix, _, suffix = template.partition("{prompt}")
    questions = []
    for batch in batches:
        for ids, mask, labels in zip(batch["input_ids"], batch["attention_mask"], batch["labels"], strict=True):
            answer = labels[labels != IGNORED].tolist()
            prompt = ids[: int(mask.sum()) - len(answer)].tolist()
            text = tokenizer.decode(prompt).removeprefix(prefix).removesuffix(suffix)
            questions.append(Question(prompt, text, tokenizer.decode(answer)))
    return questions[:count]


def to_one_line(text: str) -> str:
    """A text as a cell of a table."""
    return " ".join(text.split())


def max_new_tokens(questions: Sequence[Question], context: int | None, limit: int) -> int:
    """New tokens that every answer may have within `limit` and the backbone's context."""
    limit = min(limit, MAX_TOKENS)
    return limit if context is None else min(limit, context - max(len(each.prompt) for each in questions))


def write_answers(
    task: Any,
    batches: Sequence[Mapping[str, Tensor]],
    name: str,
    heads: list[str],
    answer: Callable[[list[list[int]], int], list[list[str]]],
) -> None:
    """Write a table of answers to the first questions; none where this process may not generate alone.

    Args:
        task: with tokenizer, template, `context_tokens` and `max_new_tokens`.
        answer: the cells between question and right answer, for prompts as token ids and a limit of new tokens.
    """
    if not task.can_sample_on_rank_zero:
        return
    questions = list_questions(batches, task.sample_settings.items, task.tokenizer, task.template)
    if not questions:
        return
    limit = max_new_tokens(questions, task.context_tokens, task.max_new_tokens)
    cells = answer([each.prompt for each in questions], limit)
    rows = [[each.text, *row, each.answer] for each, row in zip(questions, cells, strict=True)]
    task.write_media("table", name, heads, [[to_one_line(cell) for cell in row] for row in rows])
