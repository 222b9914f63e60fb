"""Exact resume: a run that was killed and resumed ends with the same weights, bit for bit, as one that was not.

The recipe (each part is needed): the order of the data is a function of (seed, epoch) and the position comes from the
trainer's own batch counter; augmentation randomness is keyed by (seed, epoch, item); the global generators are saved
and restored, and validation leaves them as it found them; data loaders draw from generators of their own; every
change of state happens inside the training step.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import lightning as L
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler

from zoo.common.checks import check_at_least
from zoo.common.tensors import KeyedPermutation
from zoo.training.signals import ignore_signals_in_worker

log = logging.getLogger(__name__)

Key = tuple[int, int]  # (epoch, index): what a training dataset is asked for
Order = Callable[[int, int], np.ndarray]  # the indices at the positions from a start to before a stop
KEYED_ABOVE = 1 << 20  # items: larger sets are ordered by position, smaller ones by a permutation in memory
WINDOW_ITEMS = 1 << 17  # keyed batches by length are shuffled among so many items at least
_WINDOW_POOLS = 4  # and among so many pools
_BLOCK_ITEMS = 1 << 16  # whose order is asked for at once


def item_seed(seed: int, epoch: int, index: int) -> int:
    """A 63-bit seed for the augmentation of one item in one epoch, the same in every process and worker."""
    digest = hashlib.blake2b(f"{seed}/{epoch}/{index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


class ResumableBatches(Sampler[list[Key]]):
    """Batches of (epoch, index) keys whose order depends on the seed and the epoch alone.

    A global batch is `batch_size * world` neighbours in the epoch's permutation; rank r takes every world-th of them
    from the r-th on, so that two ranks with half the batch see what one rank with the whole batch sees.

    Args:
        batch_size: items per batch and rank.
        drop_last: drop an incomplete last global batch; otherwise it is filled up to a multiple of `world` from the
            epoch's beginning, so that every rank takes as many steps.

    Attributes:
        keyed: compute the order by position, in blocks, with no permutation in memory; so for more than 2**20 items.
            Resumed runs that began otherwise set it False.

    Raises:
        ValueError: when an epoch would hold no batch.
    """

    def __init__(
        self,
        size: int,
        batch_size: int,
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
        shuffle: bool = True,
        drop_last: bool = True,
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
        self.shuffle = shuffle
        self.drop_last = drop_last
        self.keyed = size > KEYED_ABOVE
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

    def order(self, epoch: int) -> list[int]:
        """All indices in the order of an epoch."""
        return self.in_order(epoch)(0, self.size).tolist()

    def in_order(self, epoch: int) -> Order:
        """What gives the indices at the positions [start, stop) of an epoch's order."""
        if not self.shuffle:
            return np.arange
        seed = item_seed(self.seed, epoch, -1)
        if self.keyed:
            return KeyedPermutation(self.size, seed)
        permuted = torch.randperm(self.size, generator=torch.Generator().manual_seed(seed)).numpy()
        return lambda start, stop: permuted[start:stop]

    def take_longest(self) -> None:
        """Let all batches be as large as the largest one, to measure the memory that it takes; no order to train by."""

    def __iter__(self) -> Iterator[list[Key]]:
        epoch = self.epoch
        first = self._resume[1] if self._resume[0] == epoch else 0
        order = self.in_order(epoch)
        full = self.batch_size * self.world
        step = max(1, _BLOCK_ITEMS // full)
        for begin in range(first, len(self), step):
            block = order(begin * full, min((begin + step) * full, self.size)).tolist()
            for number in range(begin, min(begin + step, len(self))):
                together = block[(number - begin) * full : (number - begin + 1) * full]
                missing = -len(together) % self.world
                together += [int(order(i % self.size, i % self.size + 1)[0]) for i in range(missing)]
                yield [(epoch, index) for index in together[self.rank :: self.world]]


class BucketBatches(ResumableBatches):
    """Resumable batches of items of similar length, so that little of a padded batch is padding.

    The epoch's permutation is cut into pools; each is sorted by length and cut into global batches, which are then
    shuffled: all of them together, in keyed order those of a window of pools, so that no more than a window is held.
    An incomplete last batch holds what the permutation has last.

    Args:
        lengths: of the items (N,), in any unit; may be memory-mapped.
        batch_size: items per batch and rank.
        drop_last: drop an incomplete last global batch, see `ResumableBatches`.
        pool_batches: global batches in a pool; the more, the less padding, and the less random the batches.

    Raises:
        ValueError: when an epoch would hold no batch, or a pool none.
    """

    def __init__(
        self,
        lengths: Sequence[int] | np.ndarray,
        batch_size: int,
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
        drop_last: bool = True,
        pool_batches: int = 50,
    ) -> None:
        super().__init__(len(lengths), batch_size, seed, rank, world, drop_last=drop_last)
        check_at_least(1, pool_batches=pool_batches)
        self.lengths = np.asarray(lengths)
        self.pool_batches = pool_batches

    def in_order(self, epoch: int) -> Order:
        """What gives the indices at the positions [start, stop) of an epoch's order, global batch after batch."""
        plain = super().in_order(epoch)
        full = self.batch_size * self.world
        whole = self.size // full * full
        pool = full * self.pool_batches
        window = max(_WINDOW_POOLS, -(-WINDOW_ITEMS // pool)) * pool if self.keyed else max(whole, 1)

        def read(number: int) -> np.ndarray:
            begin, end = number * window, min((number + 1) * window, whole)
            order = plain(begin, end)
            pools = [order[start : start + pool] for start in range(0, len(order), pool)]
            batches = np.concatenate([each[np.argsort(self.lengths[each], kind="stable")] for each in pools] or [order])
            seed = item_seed(self.seed, epoch, -2 - number)
            shuffled = torch.randperm(len(batches) // full, generator=torch.Generator().manual_seed(seed)).numpy()
            return batches.reshape(-1, full)[shuffled].ravel()

        known = -1, np.empty(0, np.int64)

        def part(start: int, stop: int) -> np.ndarray:
            nonlocal known
            parts = []
            while start < min(stop, whole):
                number, offset = divmod(start, window)
                if known[0] != number:
                    known = number, read(number)
                parts.append(known[1][offset : offset + min(stop, whole) - start])
                start += len(parts[-1])
            return np.concatenate([*parts, plain(max(start, whole), max(stop, whole))])

        return part

    def take_longest(self) -> None:
        """Begin each epoch with the longest items."""
        order = np.argsort(-self.lengths, kind="stable")
        self.in_order = lambda epoch: lambda start, stop: order[start:stop]  # type: ignore[method-assign]


class RankSlice(Sampler[int]):
    """Every world-th index from the rank-th on, once each: for evaluation, where no item may count twice."""

    def __init__(self, size: int, rank: int, world: int) -> None:
        self.indices = range(rank, size, world)

    def __len__(self) -> int:
        return len(self.indices)

    def __iter__(self) -> Iterator[int]:
        return iter(self.indices)


class ZooDataModule(L.LightningDataModule):
    """Base of all datamodules: resumable training batches, sliced evaluation, workers that obey signals.

    Subclasses build `train_set` (asked for (epoch, index) keys) and `val_set`, `test_set` (asked for an index) in
    `setup`. A training set that is an IterableDataset cannot be positioned: it is refused unless it defines
    `resume_at(epoch, batch)`, in which case it promises what its own docstring says.

    A subclass that sets `lengths` (one number per training item, in any unit) in `setup` gets batches of items of
    similar length. One that sets `contents` (names and sizes of its training files, as plain values or arrays) lets a
    resume notice that they changed; without it a resume compares the number of items and their lengths.

    Args:
        batch_size: items per batch and process.
        num_workers: loader processes; the result does not depend on it.
        seed: of the order and of the augmentation.
        drop_last: drop the last incomplete training batch.
    """

    train_set: Dataset[Any]
    val_set: Dataset[Any]
    test_set: Dataset[Any] | None = None
    lengths: Sequence[int] | np.ndarray | None = None
    contents: Sequence[Any] = ()

    def __init__(self, batch_size: int, num_workers: int = 0, seed: int = 1234, drop_last: bool = True) -> None:
        super().__init__()
        check_at_least(1, batch_size=batch_size)
        self.allow_zero_length_dataloader_with_multiple_devices = True
        self.batch_size = batch_size
        self.num_workers = num_workers
        self.seed = seed
        self.drop_last = drop_last
        self._position = (0, 0)
        self._keyed: bool | None = None  # whether the run's order is computed by position; None until it is known
        self._data_facts: dict[str, Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave the trainer behind: a spawned worker gets this module with `collate`, and no trainer can be pickled."""
        return {**self.__dict__, "trainer": None}

    def _rank_and_world(self) -> tuple[int, int]:
        return (self.trainer.global_rank, self.trainer.world_size) if self.trainer is not None else (0, 1)

    def loader(self, dataset: Dataset[Any], **kwargs: Any) -> DataLoader[Any]:
        """A DataLoader with its own generator and workers that obey signals."""
        return DataLoader(
            dataset,
            num_workers=self.num_workers,
            generator=torch.Generator().manual_seed(self.seed),
            worker_init_fn=ignore_signals_in_worker,
            persistent_workers=self.num_workers > 0,
            pin_memory=torch.cuda.is_available(),
            **kwargs,
        )

    def train_dataloader(self) -> DataLoader[Any]:
        """Resumable batches of the training set."""
        if isinstance(self.train_set, IterableDataset):
            resume_at = getattr(self.train_set, "resume_at", None)
            if resume_at is None:
                raise ValueError(
                    f"{type(self.train_set).__name__} is a stream that cannot be positioned, so a resume would repeat "
                    "data: give it resume_at(epoch, batch), or use an indexed dataset"
                )
            resume_at(*self._position)
            return self.loader(self.train_set, batch_size=self.batch_size, drop_last=self.drop_last)
        batches = self.train_batches(*self._rank_and_world())
        batches.resume_at(*self._position)
        self._keyed = batches.keyed = batches.keyed if self._keyed is None else self._keyed
        return self.loader(self.train_set, batch_sampler=batches, collate_fn=self.collate)

    def train_batches(self, rank: int, world: int) -> ResumableBatches:
        """The training set's batches for a process: by length where `lengths` is set, at random otherwise.

        Raises:
            ValueError: when `lengths` does not belong to the training set.
        """
        size = len(self.train_set)  # type: ignore[arg-type]
        if self.lengths is None:
            return ResumableBatches(size, self.batch_size, self.seed, rank, world, drop_last=self.drop_last)
        if len(self.lengths) != size:
            raise ValueError(f"{len(self.lengths)} lengths for {size} training items: one for each is needed")
        return BucketBatches(self.lengths, self.batch_size, self.seed, rank, world, drop_last=self.drop_last)

    def evaluation_loader(self, dataset: Dataset[Any]) -> DataLoader[Any]:
        """This rank's slice of an evaluation set, one item a batch."""
        rank, world = self._rank_and_world()
        size = len(dataset)  # type: ignore[arg-type]
        return self.loader(dataset, batch_size=1, sampler=RankSlice(size, rank, world), collate_fn=self.collate)

    def val_dataloader(self) -> DataLoader[Any]:
        """This rank's slice of the validation set."""
        return self.evaluation_loader(self.val_set)

    def test_dataloader(self) -> DataLoader[Any]:
        """This rank's slice of the test set (the validation set where there is none)."""
        return self.evaluation_loader(self.test_set if self.test_set is not None else self.val_set)

    def collate(self, items: Sequence[Any]) -> Any:
        """Join items into a batch."""
        return torch.utils.data.default_collate(list(items))

    def state_dict(self) -> dict[str, Any]:
        """The position in the data, from the trainer's own counters: batches processed, not batches fetched."""
        trainer: Any = self.trainer
        loop = trainer.fit_loop
        done = loop.epoch_loop.batch_progress.current.processed
        full = done >= trainer.num_training_batches
        position = {"epoch": loop.epoch_progress.current.processed + int(full), "batch": 0 if full else done}
        return position | {"keyed": self._keyed, "circumstances": self._circumstances()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue where the checkpoint was written; say what differs from then."""
        self._position = (int(state_dict["epoch"]), int(state_dict["batch"]))
        self._keyed = state_dict.get("keyed", False)  # runs of former versions permuted sets of any size in memory
        before = state_dict.get("circumstances")
        trainer = self.trainer
        if before is None or trainer is None or trainer.state.fn != "fit" or not trainer.is_global_zero:
            return
        difference = circumstances_changed(before, self._circumstances())
        if difference is not None:
            log.warning("resumed with %s", difference)

    def _circumstances(self) -> dict[str, Any]:
        """What decides, beside the weights, which items each step sees."""
        assert self.trainer is not None
        if self._data_facts is None:
            items = None if isinstance(self.train_set, IterableDataset) else len(self.train_set)  # type: ignore[arg-type]
            digest = hashlib.blake2b(digest_size=16)
            for value in (self.lengths, *self.contents):
                is_array = isinstance(value, np.ndarray)
                digest.update(np.ravel(value).view(np.uint8).data if is_array else repr(value).encode())
            self._data_facts = {"seed": self.seed, "items": items, "contents": digest.hexdigest()}
        return {
            "batch_size": self.batch_size,
            "processes": self.trainer.world_size,
            "accumulated_batches": self.trainer.accumulate_grad_batches,
            **self._data_facts,
        }


def circumstances_changed(before: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """Tell what a resumed run does under other circumstances than the interrupted one, and what that means.

    Args:
        before: batch_size, processes, accumulated_batches, seed, items and contents, as the checkpoint records them.
        now: the same of this run.

    Returns:
        What changed and whether the run is still the same, or None when nothing did.
    """
    words = {
        "batch_size": "batch size {} (was {})",
        "processes": "{} processes (was {})",
        "accumulated_batches": "{} accumulated batches (was {})",
        "seed": "data seed {} (was {})",
        "items": "{} training items (was {})",
        "contents": "other training data of as many items",
    }
    changed = [key for key in words if key in before and before[key] != now[key]]
    if not changed:
        return None
    if "items" in changed and "contents" in changed:
        changed.remove("contents")
    changes = ", ".join(words[key].format(now[key], before[key]) for key in changed)
    if not {"seed", "items", "contents"}.isdisjoint(changed):
        return f"{changes}: steps see other items from here on, so this is no longer the run that was interrupted"
    joined = [each["batch_size"] * each["processes"] for each in (before, now)]
    if "accumulated_batches" not in changed and joined[0] == joined[1]:
        return f"{changes}: steps see the same items, so the run stays the same up to rounding, not bit for bit"
    return (
        f"{changes}: steps see more or fewer items, and this epoch repeats or leaves out some, so this is no longer "
        "the run that was interrupted"
    )
