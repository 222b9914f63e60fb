"""Answers to word problems: extracted from texts, compared as numbers, and voted on."""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal
from typing import NamedTuple

# a minus after a word or a bracket subtracts; a comma counts only between thousands
_NUMBER = r"(?:(?<![\w)])[-\u2212])?\$?(?:(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|(?<!\d)\.\d+)"
_MARKED = re.compile(rf"####\s*({_NUMBER})")
_ANY = re.compile(_NUMBER)


class VoteResult(NamedTuple):
    """The outcome of a vote.

    Attributes:
        answer: the winner; None without any answer.
        agreement: its share of all voters, in [0, 1]; those without answer count as voters.
        winner: index of the first voter for it; 0 without any answer.
    """

    answer: Decimal | None
    agreement: float
    winner: int


def strict_answer(text: str) -> Decimal | None:
    """The number after the first `####`, as GSM8K marks its answers; None where there is none."""
    match = _MARKED.search(text)
    return _number(match[1]) if match else None


def flexible_answer(text: str) -> Decimal | None:
    """The last number in a text; None where there is none."""
    matches = _ANY.findall(text)
    return _number(matches[-1]) if matches else None


def _number(text: str) -> Decimal:
    return Decimal(text.replace(",", "").replace("$", "").replace("\u2212", "-"))


def same_answer(answer: Decimal | None, gold: Decimal | None) -> bool:
    """Whether an answer equals the right one as a number; no answer is never right."""
    return answer is not None and answer == gold


def vote(answers: Sequence[Decimal | None]) -> VoteResult:
    """The most frequent answer; of equally frequent ones the first.

    Source: Wang et al., "Self-Consistency Improves Chain of Thought Reasoning in Language Models" (2023), section 2.
    """
    if not answers:
        raise ValueError("a vote needs at least one answer, found none")
    counts: dict[Decimal, int] = {}
    for answer in answers:
        if answer is not None:
            counts[answer] = counts.get(answer, 0) + 1
    if not counts:
        return VoteResult(None, 0.0, 0)
    winner = max(counts, key=lambda answer: counts[answer])
    return VoteResult(winner, counts[winner] / len(answers), list(answers).index(winner))
