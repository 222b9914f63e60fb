"""Batches of texts of similar length: within a budget of tokens, in one order for all agents or one for each."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Literal, get_args

import numpy as np
import torch

from zoo.common.checks import check_at_least, check_one_of
from zoo.training.resume import Key, ResumableBatchSampler, item_seed

AgentData = Literal["shared", "shuffled"]

GROWTH = 1.1  # longest over shortest text of a bucket
ORDER, SHUFFLE, AGENTS, DROPPED = -1, -2, -3, -4  # of the seeds; `ResumableBatchSampler` uses the first two as well


class TextBatches(ResumableBatchSampler):
    """Resumable batches of texts of similar length; every epoch has the same number of them, and so has every rank.

    Texts are sorted into buckets of nearly equal length. An epoch permutes each bucket and cuts it into global batches;
    the remainder joins the next longer bucket. Then the batches are shuffled. With one order for each agent, the
    batches of all agents that are used together come from the same bucket.

    Args:
        lengths: of the texts (N,), in tokens.
        batch_size: texts per batch, agent and rank; None with `token_budget`.
        token_budget: most tokens of a batch with its padding, of one rank and all agents together.
        agent_data: "shared": all agents see the same batches of B keys; "shuffled": one order for each, a batch has
            K * B keys, agent by agent.
        drop_last: leave out texts at random that would not fill a global batch, others in each epoch; with
            `token_budget` the last batch may be smaller. Otherwise an incomplete one is filled up to a multiple of
            `world` from its beginning.
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
        self._buckets = _find_buckets(self.lengths)
        self._batch_sizes: list[int] = []  # of global batches, by bucket
        self._dropped = self.size % (batch_size * world) if batch_size and drop_last else 0
        for bucket in self._buckets:
            longest = int(self.lengths[bucket].max())
            texts = batch_size or int(token_budget or 0) // (longest * agents)
            if not texts:
                raise ValueError(
                    f"data.init_args.token_budget is {token_budget}, a text of {longest} tokens for each of {agents} "
                    f"agents needs {longest * agents}: raise it"
                )
            self._batch_sizes.append(texts * world)
        self._longest_first = False
        self._batch_count = len(self.stream(0, 0))
        if not self._batch_count:
            raise ValueError(
                f"{self.size} texts do not fill one batch of {self._batch_sizes[-1]} on {world} process(es): lower "
                "data.init_args.batch_size or token_budget"
            )

    def __len__(self) -> int:
        return self._batch_count

    def stream(self, number: int, epoch: int) -> list[np.ndarray]:
        """The global batches of an agent in an epoch, shortest bucket first, before they are shuffled."""
        seed = self.seed if self.agent_data == "shared" else item_seed(self.seed, AGENTS, number)
        generator = torch.Generator().manual_seed(item_seed(seed, epoch, ORDER))
        left_out = np.zeros(self.size, dtype=bool)  # the same for all agents, whose batches are of the same buckets
        if self._dropped:
            choice = torch.Generator().manual_seed(item_seed(self.seed, epoch, DROPPED))
            left_out[torch.randperm(self.size, generator=choice)[: self._dropped].numpy()] = True
        remainder = np.empty(0, dtype=np.int64)
        batches: list[np.ndarray] = []
        for bucket, size in zip(self._buckets, self._batch_sizes, strict=True):
            permuted = bucket[torch.randperm(len(bucket), generator=generator).numpy()]
            texts = np.concatenate([remainder, permuted[~left_out[permuted]]])
            end = len(texts) // size * size
            batches += list(texts[:end].reshape(-1, size))
            remainder = texts[end:]
        last = len(remainder) // self.world if self.drop_last else -(-len(remainder) // self.world)  # of each rank
        if last:
            batches.append(np.resize(remainder, last * self.world))
        return batches

    def use_longest_items(self) -> None:
        """Make every batch the one with the most tokens, padding included."""
        self._longest_first = True

    def __iter__(self) -> Iterator[list[Key]]:
        epoch = self.epoch
        first = self._resume[1] if self._resume[0] == epoch else 0
        streams = [self.stream(number, epoch) for number in range(self.streams)]
        generator = torch.Generator().manual_seed(item_seed(self.seed, epoch, SHUFFLE))
        numbers = torch.randperm(len(self), generator=generator).tolist()
        if self._longest_first:

            def tokens(number: int) -> int:
                return max(each[number].size * int(self.lengths[each[number]].max()) for each in streams)

            numbers = [max(numbers, key=tokens)] * len(numbers)
        for number in numbers[first:]:
            indices = [index for batches in streams for index in batches[number][self.rank :: self.world].tolist()]
            yield [(epoch, index) for index in indices]


def _find_buckets(lengths: np.ndarray) -> list[np.ndarray]:
    """Indices of the texts of each bucket, the shortest texts first."""
    levels = np.ceil(np.log(np.maximum(lengths, 1)) / math.log(GROWTH)).astype(np.int64)
    return [np.flatnonzero(levels == level) for level in np.unique(levels)]
