"""A curriculum of history lengths: which lengths a batch may have at which step, the same on every process."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from zoo.common.checks import check_at_least
from zoo.common.tensors import sample_uniforms
from zoo.training.resume import ResumableBatchSampler, item_seed

CATEGORIES = ("short", "medium", "long", "very_long", "extended")
LONGEST_SHORT = 50
LENGTHS = -3  # index of an epoch's seed of the lengths; the order of an epoch takes -1 and -2


class Curriculum:
    """Stages of training, each with shares of length categories and a limit on compressions.

    Lengths count the transitions before the last action of an item: short `shortest` to min(window - 1, 50), medium
    window to 150, long 200 to 400, very long from 500, extended from 800, all at most what the histories have. A
    category that is longer than that, or than `max_compressions` allows, becomes the longest one that is not.

    Args:
        window: T of the policy, in tokens.
        num_latents: K of its compressor.
        starts: first step of each stage, rising from 0.
        max_compressions: of a history in each stage; null for no limit.
        shares: of the categories in each stage; those not given have none. Each row sums to 1.
        shortest: length of the shortest item.
    """

    def __init__(
        self,
        window: int,
        num_latents: int,
        starts: list[int],
        max_compressions: list[int | None],
        shares: list[list[float]],
        shortest: int = 20,
    ) -> None:
        if not len(starts) == len(max_compressions) == len(shares) >= 1:
            raise ValueError(
                f"curriculum: as many starts ({len(starts)}) as max_compressions ({len(max_compressions)}) and shares "
                f"({len(shares)}) are needed, one for each stage"
            )
        if starts[0] != 0 or any(later <= earlier for earlier, later in pairwise(starts)):
            raise ValueError(f"curriculum.starts rise from 0, found {starts}")
        for row in shares:
            if len(row) > len(CATEGORIES) or min(row) < 0 or abs(sum(row) - 1) > 1e-6:
                raise ValueError(
                    f"curriculum.shares: up to {len(CATEGORIES)} shares ({', '.join(CATEGORIES)}) that sum to 1, "
                    f"found {row}"
                )
        check_at_least(0, num_latents=num_latents)
        check_at_least(num_latents + 2, window=window)  # the latents, a transition and a query
        check_at_least(1, shortest=shortest)
        for limit in max_compressions:
            check_at_least(0, max_compressions=limit or 0)
        self.window = window
        self.num_latents = num_latents
        self.starts = starts
        self.max_compressions = max_compressions
        self.shares = shares
        self.shortest = shortest

    def stage(self, step: int) -> int:
        """Number of the stage that a step belongs to, from 0."""
        return sum(start <= step for start in self.starts) - 1

    def limit(self, stage: int, available: int) -> int:
        """The longest history of a stage, in steps, out of `available`."""
        allowed = self.max_compressions[stage]
        if allowed is None:
            return available
        return min(available, self.window - 1 + allowed * (self.window - 1 - self.num_latents))

    def ranges(self, longest: int) -> list[tuple[int, int]]:
        """Shortest and longest length of each category, where no length may exceed `longest`."""
        top = min(self.window - 1, LONGEST_SHORT, longest)
        ranges = [(min(self.shortest, top), top)]
        for low, high in ((self.window, 150), (200, 400), (500, longest), (800, longest)):
            high = min(high, longest)
            ranges.append((low, high) if low <= high else ranges[-1])
        return ranges

    def steps(self, step: int, seed: int, available: int) -> int:
        """Sample how many steps the items of a batch have: one more than the length, for the last action."""
        stage = self.stage(step)
        category, position = sample_uniforms([seed], 2)[:, 0].tolist()
        chosen, total = 0, self.shares[stage][0]
        while category >= total and chosen + 1 < len(self.shares[stage]):
            chosen += 1
            total += self.shares[stage][chosen]
        low, high = self.ranges(self.limit(stage, available) - 1)[chosen]
        return low + int(position * (high - low + 1)) + 1


class CurriculumBatches(ResumableBatchSampler):
    """Resumable batches of (epoch, index, steps) keys: all items of a global batch have one length.

    The length travels with the keys, so every worker has it from the first batch of a stage on; it depends on seed,
    epoch and number of the batch alone.
    """

    def __init__(
        self,
        size: int,
        batch_size: int,
        curriculum: Curriculum,
        available: int,
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
        drop_last: bool = True,
    ) -> None:
        super().__init__(size, batch_size, seed, rank, world, drop_last=drop_last)
        self.curriculum = curriculum
        self.available = available
        self.trained_before = 0  # optimizer steps that the position in the data does not show
        self.count_steps(1.0, 1)

    def count_steps(self, limit: int | float, accumulated: int) -> None:
        """Let the curriculum count steps of so many accumulated batches, in epochs cut by `limit_train_batches`."""
        self.batches = min(limit, len(self)) if isinstance(limit, int) else int(limit * len(self))
        self.accumulated = accumulated

    def optimizer_step(self, epoch: int, number: int) -> int:
        """Return the optimizer step of a batch."""
        in_epochs = epoch * -(-self.batches // self.accumulated)
        return self.trained_before + in_epochs + number // self.accumulated

    def steps(self, epoch: int, number: int) -> int:
        """Steps of the items of a batch."""
        step = self.optimizer_step(epoch, number)
        seed = item_seed(item_seed(self.seed, epoch, LENGTHS), 0, number)
        return self.curriculum.steps(step, seed, self.available)

    def use_longest_items(self) -> None:
        """Let all items be as long as the longest of any stage."""
        curriculum = self.curriculum
        longest = 0
        for stage, row in enumerate(curriculum.shares):
            ranges = curriculum.ranges(curriculum.limit(stage, self.available) - 1)
            longest = max(longest, *(high + 1 for share, (_, high) in zip(row, ranges, strict=False) if share))
        self.steps = lambda epoch, number: longest  # type: ignore[method-assign]

    def __iter__(self) -> Iterator[list[Any]]:
        epoch = self.epoch
        first = self._resume[1] if self._resume[0] == epoch else 0
        for number, keys in enumerate(super().__iter__(), first):
            yield [(*key, self.steps(epoch, number)) for key in keys]
