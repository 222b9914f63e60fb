"""Base of the datamodules: loaders that resume exactly, evaluation that counts every item once."""

from __future__ import annotations

import hashlib
import logging
import signal
from collections.abc import Sequence
from typing import Any

import lightning as L
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from zoo.common.checks import check_at_least
from zoo.training.resume import BucketBatchSampler, ResumableBatchSampler, describe_data_changes

log = logging.getLogger(__name__)


class ZooDataModule(L.LightningDataModule):
    """Base of all datamodules: resumable training batches, sliced evaluation, workers that ignore stop signals.

    In `setup` a subclass sets `train_set` (indexed by (epoch, index) keys), `val_set` and, if it has one, `test_set`
    (indexed by a number). A stream (IterableDataset) is refused.

    A subclass may also set `lengths` (one number per training item, in any unit), so that batches hold items of similar
    length, and `file_facts` (names and sizes of the training files, plain values or arrays), so that a resume notices
    other data of as many items.

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
    file_facts: Sequence[Any] = ()
    longest_first = False  # every batch as large as the largest one, to measure its memory

    def __init__(self, batch_size: int, num_workers: int = 0, seed: int = 1234, drop_last: bool = True) -> None:
        super().__init__()
        check_at_least(1, batch_size=batch_size)
        check_at_least(0, num_workers=num_workers)
        self.allow_zero_length_dataloader_with_multiple_devices = True
        self.batch_size = batch_size
        self.num_workers = num_workers
        self.seed = seed
        self.drop_last = drop_last
        self._position = (0, 0)
        self._set_facts: dict[str, Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the trainer: a spawned worker gets this module with `collate`, and no trainer can be pickled."""
        return {**self.__dict__, "trainer": None}

    def _rank_and_world(self) -> tuple[int, int]:
        return (self.trainer.global_rank, self.trainer.world_size) if self.trainer is not None else (0, 1)

    def loader(self, dataset: Dataset[Any], **kwargs: Any) -> DataLoader[Any]:
        """Build a DataLoader with a separate generator and workers that ignore stop signals."""
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
        """Build the loader of resumable training batches."""
        batches = self.train_batches(*self._rank_and_world())
        batches.resume_at(*self._position)
        if self.longest_first:
            batches.use_longest_items()
        return self.loader(self.train_set, batch_sampler=batches, collate_fn=self.collate)

    def train_batches(self, rank: int, world: int) -> ResumableBatchSampler:
        """Build a process's training batches: by length where `lengths` is set, at random otherwise."""
        if isinstance(self.train_set, IterableDataset):
            name = type(self.train_set).__name__
            raise ValueError(f"{name} is a stream, which no resume can position: use an indexed dataset")
        size = len(self.train_set)  # type: ignore[arg-type]
        if self.lengths is None:
            return ResumableBatchSampler(size, self.batch_size, self.seed, rank, world, self.drop_last)
        if len(self.lengths) != size:
            raise ValueError(f"{len(self.lengths)} lengths for {size} training items: one for each is needed")
        return BucketBatchSampler(self.lengths, self.batch_size, self.seed, rank, world, self.drop_last)

    def evaluation_loader(self, dataset: Dataset[Any]) -> DataLoader[Any]:
        """Build the loader of this rank's slice of an evaluation set, one item a batch."""
        return self.loader(dataset, batch_size=1, sampler=self.rank_indices(dataset), collate_fn=self.collate)

    def rank_indices(self, dataset: Dataset[Any]) -> range:
        """Return the items of an evaluation set that this rank takes."""
        rank, world = self._rank_and_world()
        return range(rank, len(dataset), world)  # type: ignore[arg-type]

    def val_dataloader(self) -> DataLoader[Any]:
        """Build the loader of this rank's slice of the validation set."""
        return self.evaluation_loader(self.val_set)

    def test_dataloader(self) -> DataLoader[Any]:
        """Build the loader of this rank's slice of the test set, or of the validation set where there is none."""
        return self.evaluation_loader(self.test_set if self.test_set is not None else self.val_set)

    def collate(self, items: Sequence[Any]) -> Any:
        """Join items into a batch."""
        return torch.utils.data.default_collate(list(items))

    def state_dict(self) -> dict[str, Any]:
        """Return the position by the trainer's counters (batches processed, not fetched), and the data facts."""
        trainer: Any = self.trainer
        loop = trainer.fit_loop
        done = loop.epoch_loop.batch_progress.current.processed
        full = done >= trainer.num_training_batches
        position = {"epoch": loop.epoch_progress.current.processed + int(full), "batch": 0 if full else done}
        return position | {"circumstances": self._data_facts()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue at the position of the checkpoint; warn of data that differs."""
        self._position = (int(state_dict["epoch"]), int(state_dict["batch"]))
        before, trainer = state_dict.get("circumstances"), self.trainer
        if before is None or trainer is None or not trainer.is_global_zero:
            return
        if trainer.state.fn != "fit" and not hasattr(self, "train_set"):
            return
        now = self._data_facts()
        if trainer.state.fn != "fit":
            if any(key in before and before[key] != now[key] for key in ("items", "contents")):
                log.warning("other training data than the checkpoint's: items held out here may have been trained on")
            return
        difference = describe_data_changes(before, now)
        if difference is not None:
            log.warning("resumed with %s", difference)

    def _data_facts(self) -> dict[str, Any]:
        """Return what decides, besides weights and hyper-parameters, what each step sees and how it computes."""
        assert self.trainer is not None
        if self._set_facts is None:
            items = len(self.train_set)  # type: ignore[arg-type]
            digest = hashlib.blake2b(digest_size=16)
            for value in (self.lengths, *self.file_facts):
                is_array = isinstance(value, np.ndarray)
                digest.update(np.ravel(value).view(np.uint8).data if is_array else repr(value).encode())
            self._set_facts = {"seed": self.seed, "items": items, "contents": digest.hexdigest()}
        return {
            "batch_size": self.batch_size,
            "processes": self.trainer.world_size,
            "accumulated_batches": self.trainer.accumulate_grad_batches,
            "precision": str(self.trainer.precision),
            "limit_train_batches": str(self.trainer.limit_train_batches),
            **self._set_facts,
        }


def ignore_signals_in_worker(worker_id: int) -> None:
    """Ignore the stop signals in a loader worker but SIGTERM, by which the main process ends it (`worker_init_fn`)."""
    for name in ("SIGINT", "SIGUSR1", "SIGHUP", "SIGBREAK"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
