"""Batches of texts: of similar length, within a budget of tokens, in an order of each agent's own; packed rows."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, get_args

import numpy as np
import torch

from zoo.common.checks import check_at_least, check_one_of
from zoo.training.resume import Key, ResumableBatchSampler, item_seed

AgentData = Literal["shared", "shuffled", "bootstrap"]

GROWTH = 1.1  # longest over shortest text of a bucket
ORDER, SHUFFLE, AGENTS, RESAMPLE = -1, -2, -3, -4  # of the seeds; `ResumableBatchSampler` takes the first two as well


class TextBatches(ResumableBatchSampler):
    """Resumable batches of texts of similar length; every epoch has the same number of them, and so has every rank.

    Texts are sorted into buckets of nearly equal length. An epoch permutes each bucket and cuts it into global batches;
    what is left over joins the next longer bucket. Then the batches are shuffled. Each agent may have an order of its
    own: the batches of all agents that are used together come from the same bucket.

    Args:
        lengths: of the texts (N,), in tokens.
        batch_size: texts per batch, agent and rank; None where `token_budget` decides.
        token_budget: most tokens of a batch with its padding, of one rank and all agents together.
        agent_data: "shared": all agents see the same batches of B keys. "shuffled": each its own order, "bootstrap":
            besides a sample of the texts of its own, drawn with replacement; a batch then has K * B keys, agent by
            agent.
        drop_last: drop an incomplete last global batch; otherwise it is filled up to a multiple of `world` from its own
            beginning.
        least: fewest texts of a batch (2 where their variance is measured).
    """

    def __init__(
        self,
        lengths: Sequence[int] | np.ndarray,
        batch_size: int | None = None,
        token_budget: int | None = None,
        agents: int = 1,
        agent_data: AgentData = "shared",
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
        drop_last: bool = True,
        least: int = 1,
    ) -> None:
        if (batch_size is None) == (token_budget is None):
            raise ValueError(f"TextBatches: give one of batch_size ({batch_size}) and token_budget ({token_budget})")
        check_at_least(1, agents=agents)
        check_one_of(get_args(AgentData), agent_data=agent_data)
        super().__init__(len(lengths), 1, seed, rank, world, drop_last=False)
        self.lengths = np.asarray(lengths)
        self.drop_last = drop_last
        self.streams = 1 if agent_data == "shared" else agents
        self.agent_data = agent_data
        self._members = _buckets(self.lengths)
        self._full: list[int] = []
        for members in self._members:
            longest = int(self.lengths[members].max())
            texts = batch_size or int(token_budget or 0) // (longest * agents)
            if texts < least:
                raise ValueError(
                    f"a token budget of {token_budget} has no room for {least} text(s) of {longest} tokens for each of "
                    f"{agents} agents: raise data.init_args.token_budget to {least * longest * agents}"
                )
            self._full.append(texts * world)
        self._batches = self._count()
        if not self._batches:
            raise ValueError(
                f"{self.size} texts do not fill one batch of {self._full[-1]} on {world} process(es): lower "
                "data.init_args.batch_size or token_budget"
            )

    def __len__(self) -> int:
        return self._batches

    def _count(self) -> int:
        batches = left = 0
        for members, full in zip(self._members, self._full, strict=True):
            more, left = divmod(left + len(members), full)
            batches += more
        return batches + (not self.drop_last and left > 0)

    def stream(self, number: int, epoch: int) -> list[np.ndarray]:
        """The global batches of an agent in an epoch, shortest bucket first, before they are shuffled."""
        seed = self.seed if self.agent_data == "shared" else item_seed(self.seed, AGENTS, number)
        draw = torch.Generator().manual_seed(item_seed(seed, epoch, ORDER))
        resample = torch.Generator().manual_seed(item_seed(seed, 0, RESAMPLE))
        left = np.empty(0, dtype=np.int64)
        batches: list[np.ndarray] = []
        for members, full in zip(self._members, self._full, strict=True):
            if self.agent_data == "bootstrap":
                members = members[torch.randint(len(members), (len(members),), generator=resample).numpy()]
            several = np.concatenate([left, members[torch.randperm(len(members), generator=draw).numpy()]])
            whole = len(several) // full * full
            batches += list(several[:whole].reshape(-1, full))
            left = several[whole:]
        if not self.drop_last and len(left):
            batches.append(np.resize(left, -(-len(left) // self.world) * self.world))
        return batches

    def use_longest_items(self) -> None:
        """Let all batches be the one with the most tokens, its padding among them."""
        stream = self.stream

        def longest(number: int, epoch: int) -> list[np.ndarray]:
            batches = stream(number, epoch)
            return [max(batches, key=lambda batch: len(batch) * int(self.lengths[batch].max()))] * len(batches)

        self.stream = longest  # type: ignore[method-assign]

    def __iter__(self) -> Iterator[list[Key]]:
        epoch = self.epoch
        first = self._resume[1] if self._resume[0] == epoch else 0
        streams = [self.stream(number, epoch) for number in range(self.streams)]
        draw = torch.Generator().manual_seed(item_seed(self.seed, epoch, SHUFFLE))
        for number in torch.randperm(len(self), generator=draw).tolist()[first:]:
            together = [index for batches in streams for index in batches[number][self.rank :: self.world].tolist()]
            yield [(epoch, index) for index in together]


def _buckets(lengths: np.ndarray) -> list[np.ndarray]:
    """Numbers of the texts of each bucket, the shortest texts first."""
    level = np.ceil(np.log(np.maximum(lengths, 1)) / math.log(GROWTH)).astype(np.int64)
    return [np.flatnonzero(level == each) for each in np.unique(level)]


def padding_share(lengths: np.ndarray, batches: Iterable[Sequence[int]]) -> float:
    """The share of padding in batches (numbers of texts) that are padded to their longest text."""
    real = padded = 0
    for batch in batches:
        chosen = lengths[list(batch)]
        real += int(chosen.sum())
        padded += int(chosen.max()) * len(chosen)
    return 1 - real / padded


def pack(lengths: Sequence[int] | np.ndarray, capacity: int, seed: int = 0) -> list[list[int]]:
    """Put texts together into rows of at most `capacity` tokens; returns the numbers of the texts of each.

    Each goes into the fullest row that has room for it, the longest first; `seed` orders those of equal length.
    """
    lengths = np.asarray(lengths)
    if len(lengths) and lengths.max() > capacity:
        raise ValueError(f"a text of {lengths.max()} tokens does not fit a packed row of {capacity}")
    draw = torch.randperm(len(lengths), generator=torch.Generator().manual_seed(item_seed(seed, 0, SHUFFLE))).numpy()
    rows: list[list[int]] = []
    room: list[tuple[int, int]] = []  # (free tokens, row), sorted
    for index in draw[np.argsort(-lengths[draw], kind="stable")].tolist():
        length = int(lengths[index])
        place = bisect_left(room, (length, -1))
        if place < len(room):
            free, row = room.pop(place)
        else:
            free, row = capacity, len(rows)
            rows.append([])
        rows[row].append(index)
        if free > length:
            insort(room, (free - length, row))
    return rows
