"""Exact resume: seeds of items and batches that begin anywhere in an epoch.

A killed and resumed run ends with the same weights, bit for bit, as an uninterrupted one. The order of the data depends
on (seed, epoch) and the position comes from the trainer's batch counter. The random numbers of an item depend on
(seed, epoch, item). `RNGState` has the global generators.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import Sampler

Key = tuple[int, int]  # (epoch, index): what a training dataset is asked for


def item_seed(seed: int, epoch: int, index: int) -> int:
    """Return a 63-bit seed for one item in one epoch, the same in every process and worker."""
    digest = hashlib.blake2b(f"{seed}/{epoch}/{index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


class ResumableBatchSampler(Sampler[list[Key]]):
    """Batches of (epoch, index) keys whose order depends on the seed and the epoch alone.

    A global batch is `batch_size * world` neighbours in the epoch's permutation. Rank r takes every world-th of them
    from the r-th on, so two ranks with half the batch see what one rank with the full batch sees. An incomplete last
    one is dropped (`drop_last`), or filled up to a multiple of `world` from the epoch's beginning.
    """

    def __init__(
        self, size: int, batch_size: int, seed: int = 0, rank: int = 0, world: int = 1, drop_last: bool = True
    ) -> None:
        if size < 1:
            raise ValueError("the training set is empty")
        if drop_last and size < batch_size * world:
            raise ValueError(
                f"{size} training items do not fill one batch of {batch_size} on {world} process(es): "
                "lower data.init_args.batch_size"
            )
        self.size = size
        self.batch_size = batch_size
        self.seed = seed
        self.rank = rank
        self.world = world
        self.drop_last = drop_last
        self.epoch = 0
        self._resume = (0, 0)
        self.sampler = self  # where Lightning looks for set_epoch

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration (Lightning calls this at each epoch's start)."""
        self.epoch = epoch

    def resume_at(self, epoch: int, batch: int) -> None:
        """Let the next iteration of `epoch` begin at its batch number `batch`."""
        self.epoch = epoch
        self._resume = (epoch, batch)

    def __len__(self) -> int:
        full = self.batch_size * self.world
        return self.size // full if self.drop_last else -(-self.size // full)

    def epoch_order(self, epoch: int) -> np.ndarray:
        """Return all indices (N,) in the order of an epoch."""
        generator = torch.Generator().manual_seed(item_seed(self.seed, epoch, -1))
        return torch.randperm(self.size, generator=generator).numpy()

    def use_longest_items(self) -> None:
        """Make every batch as large as the largest one, to measure its memory."""

    def __iter__(self) -> Iterator[list[Key]]:
        epoch = self.epoch
        first = self._resume[1] if self._resume[0] == epoch else 0
        order = self.epoch_order(epoch)
        full = self.batch_size * self.world
        for number in range(first, len(self)):
            indices = order[number * full : (number + 1) * full].tolist()
            indices += [int(order[i % self.size]) for i in range(-len(indices) % self.world)]
            yield [(epoch, index) for index in indices[self.rank :: self.world]]


class BucketBatchSampler(ResumableBatchSampler):
    """Resumable batches of items of similar length, so that little of a padded batch is padding.

    The epoch's permutation is cut into pools. Each pool is sorted by length and cut into global batches; then all
    batches of the epoch are shuffled. An incomplete last batch holds what the permutation has last.

    Args:
        lengths: of the items (N,), in any unit; may be memory-mapped.
    """

    pool_batches = 50  # global batches in a pool; more of them mean less padding and less random batches

    def __init__(
        self,
        lengths: Sequence[int] | np.ndarray,
        batch_size: int,
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
        drop_last: bool = True,
    ) -> None:
        super().__init__(len(lengths), batch_size, seed, rank, world, drop_last)
        self.lengths = np.asarray(lengths)
        self._longest_first = False

    def epoch_order(self, epoch: int) -> np.ndarray:
        """Return all indices (N,), global batch after global batch."""
        if self._longest_first:
            return np.argsort(-self.lengths, kind="stable")
        order = super().epoch_order(epoch)
        full = self.batch_size * self.world
        end, pool = self.size // full * full, full * self.pool_batches
        for start in range(0, end, pool):
            part = order[start : min(start + pool, end)]
            order[start : start + len(part)] = part[np.argsort(self.lengths[part], kind="stable")]
        generator = torch.Generator().manual_seed(item_seed(self.seed, epoch, -2))
        shuffled = torch.randperm(end // full, generator=generator).numpy()
        return np.concatenate([order[:end].reshape(-1, full)[shuffled].ravel(), order[end:]])

    def use_longest_items(self) -> None:
        """Begin each epoch with the longest items."""
        self._longest_first = True


def describe_data_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """Describe in one line how the data facts of a resumed run differ from the checkpoint's; None without changes."""
    changed = [key for key in now if key in before and before[key] != now[key]]
    if not changed:
        return None
    texts = [f"{key.replace('_', ' ')} {now[key]} (was {before[key]})" for key in changed if key != "contents"]
    changes = ", ".join(texts or ["other training data of as many items"])
    global_batches = [each["batch_size"] * each["processes"] for each in (before, now)]
    if not {"seed", "items", "contents"}.isdisjoint(changed):
        effect = "steps see other items from here on"
    elif {"accumulated_batches", "limit_train_batches"}.isdisjoint(changed) and global_batches[0] == global_batches[1]:
        return f"{changes}: steps see the same items, so the run stays the same up to rounding, not bit for bit"
    else:
        effect = "steps see more or fewer items, and this epoch repeats or leaves out some"
    return f"{changes}: {effect}, so this is no longer the run that was interrupted"
