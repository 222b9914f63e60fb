"""The first questions of a validation, for tables of generated answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

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
