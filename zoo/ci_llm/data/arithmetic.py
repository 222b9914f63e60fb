"""Synthetic word problems of addition and subtraction: a corpus for runs without any file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch

from zoo.common.checks import check_at_least
from zoo.common.tensors import sample_uniforms
from zoo.training.resume import item_seed

Split = Literal["train", "val", "test"]
Operation = Literal["add", "subtract"]

SPLITS: tuple[Split, ...] = ("train", "val", "test")
HOLD_OUT = 0.2  # share of all sums, for validation and for the test each
NAMES = ("Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gus", "Hana")
THINGS = ("apples", "books", "coins", "eggs", "pens", "shells", "stamps", "toys")
TEMPLATES: dict[str, tuple[str, ...]] = {
    "add": (
        "{name} has {a} {thing} and gets {b} more. How many {thing} are there?",
        "{name} finds {a} {thing}, then {b} {thing}. How many in all?",
        "There are {a} {thing} in a box and {b} in a bag. How many {thing} has {name}?",
    ),
    "subtract": (
        "{name} has {a} {thing} and gives away {b}. How many {thing} are left?",
        "{name} had {a} {thing} and lost {b} of them. How many remain?",
        "Of {a} {thing}, {name} sells {b}. How many {thing} stay?",
    ),
}


class Arithmetic:
    """Problems sampled from seeds. No sum (operation and both numbers) of one split occurs in another.

    Args:
        train_items: number of training problems; sums repeat in other words where there are more problems than sums.
        val_items: number of validation problems, likewise.
        test_items: number of test problems, likewise.
        operations: kinds of problems.
        largest: of the numbers added, and of the number subtracted from; the smallest is 0.
        seed: of the problems and of the splits.
    """

    def __init__(
        self,
        train_items: int = 256,
        val_items: int = 32,
        test_items: int = 32,
        operations: Sequence[Operation] = ("add", "subtract"),
        largest: int = 20,
        seed: int = 0,
    ) -> None:
        check_at_least(1, train_items=train_items, val_items=val_items, test_items=test_items)
        check_at_least(4, largest=largest)
        unknown = [name for name in operations if name not in TEMPLATES]
        if unknown or not operations:
            raise ValueError(f"arithmetic: operations are some of {', '.join(TEMPLATES)}, found {list(operations)}")
        self.counts: dict[str, int] = {"train": train_items, "val": val_items, "test": test_items}
        self.operations = list(operations)
        self.largest = largest
        self.seed = seed

    def problems(self, split: Split) -> list[tuple[str, str]]:
        """All problems of a split, the same in every process: question, and answer that ends in `#### n`."""
        sums = self._sums(split)
        number = SPLITS.index(split)
        return [self._problem(sums[i % len(sums)], item_seed(self.seed, number, i)) for i in range(self.counts[split])]

    def _sums(self, split: Split) -> list[tuple[str, int, int]]:
        span = range(self.largest + 1)
        sums = [(name, a, b) for name in self.operations for a in span for b in span if name == "add" or b <= a]
        generator = torch.Generator().manual_seed(item_seed(self.seed, len(SPLITS), 0))
        order = torch.randperm(len(sums), generator=generator).tolist()
        count = int(HOLD_OUT * len(sums))
        parts = {"val": order[:count], "test": order[count : 2 * count], "train": order[2 * count :]}
        return [sums[i] for i in parts[split]]

    def _problem(self, terms: tuple[str, int, int], seed: int) -> tuple[str, str]:
        operation, a, b = terms
        choices = (TEMPLATES[operation], NAMES, THINGS)
        shares = sample_uniforms([seed], len(choices))[:, 0].tolist()
        template, name, thing = (each[int(share * len(each))] for each, share in zip(choices, shares, strict=True))
        sign, result = ("+", a + b) if operation == "add" else ("-", a - b)
        question = template.format(name=name, thing=thing, a=a, b=b)
        return question, f"{a} {sign} {b} = {result}\n#### {result}"
