"""What is asked while a run trains: the first questions of a validation, and how much may be written to each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from torch import Tensor

from zoo.ci_llm.data.tokenizers import Tokenizer
from zoo.ci_llm.losses.likelihood import IGNORED

SAMPLE_TOKENS = 64  # most new tokens of an answer


class Question(NamedTuple):
    """The numbers of a prompt's tokens, the prompt without its template, and the right answer."""

    prompt: list[int]
    text: str
    answer: str


def questions(
    batches: Sequence[Mapping[str, Tensor]], count: int, tokenizer: Tokenizer, template: str
) -> list[Question]:
    """The first examples in batches of an evaluation, whose rows end with the answer's labels and padding."""
    before, _, after = template.partition("{prompt}")
    found = []
    for batch in batches:
        for ids, mask, labels in zip(batch["input_ids"], batch["attention_mask"], batch["labels"], strict=True):
            answer = labels[labels != IGNORED].tolist()
            prompt = ids[: int(mask.sum()) - len(answer)].tolist()
            text = tokenizer.decode(prompt).removeprefix(before).removesuffix(after)
            found.append(Question(prompt, text, tokenizer.decode(answer)))
    return found[:count]


def in_one_line(text: str) -> str:
    """A text as a cell of a table."""
    return " ".join(text.split())


def room(asked: Sequence[Question], context: int | None, limit: int) -> int:
    """New tokens that every answer may have within `limit` and the backbone's context."""
    most = min(limit, SAMPLE_TOKENS)
    return most if context is None else min(most, context - max(len(each.prompt) for each in asked))
