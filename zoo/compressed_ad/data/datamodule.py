"""Data of in-context reinforcement learning: histories of training tasks, and held-out tasks to act in."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any, Literal

from torch import Tensor

from zoo.common.checks import check_at_least, find_data_folder
from zoo.compressed_ad.data.curriculum import Curriculum, CurriculumBatches
from zoo.compressed_ad.data.demonstrator import EpsilonCurriculum
from zoo.compressed_ad.data.history import HistoryStore
from zoo.compressed_ad.data.windows import (
    DemonstratedSource,
    EvaluationBatches,
    HistorySource,
    HistoryWindows,
    StoredSource,
    WindowOptions,
)
from zoo.compressed_ad.envs.base import Env
from zoo.compressed_ad.nets.steps import Statistics
from zoo.training.datamodule import ZooDataModule
from zoo.training.resume import ResumableBatchSampler, item_seed

log = logging.getLogger(__name__)

PAIRS_EPOCH = -2  # of the seeds of pairs; evaluation items take -1
EMBEDDED_EPISODES = 10  # of histories in place of a missing folder


@dataclass(frozen=True)
class StoreOptions:
    """Which part of a folder of histories is used.

    Args:
        streams: first histories of each task; 0 for all.
        steps: first steps of each history; 0 for all.
    """

    streams: int = 0
    steps: int = 0


@dataclass(frozen=True)
class EvaluationOptions:
    """What each evaluation does in the held-out tasks.

    Args:
        items: histories for the loss.
        seeds: agents that act in each task; 0 for no acting.
        batch_size: agents that act at once.
    """

    items: int = 64
    seeds: int = 4
    batch_size: int = 128

    def __post_init__(self) -> None:
        check_at_least(0, items=self.items, seeds=self.seeds)
        check_at_least(1, batch_size=self.batch_size)
        if self.items + self.seeds == 0:
            raise ValueError("evaluation needs items or seeds, both are 0")


class HistoryData(ZooDataModule):
    """Histories from a folder, or demonstrated on demand.

    A training batch has `steps`, B histories of one length: nothing is padded. Evaluation batches have `steps` of
    held-out tasks, or pairs of `tasks` and `seeds`: every held-out task with `evaluation.seeds` seeds.

    Args:
        env: the family of tasks.
        root: folder that `zoo collect` wrote; its tasks are split as its index says.
        demonstrator: makes histories, when there is no `root`.
        length: steps of an item, one more than its context; null for whole histories.
        batch_size: items per batch and process.
        epoch_items: items of an epoch, which go through the histories again and again; where it is below their number,
            so many train, evenly chosen. Null for one per history (one per part, with offset "every").
        curriculum: samples a length for each training batch.
        split_seed: of the division of the tasks where there is no `root`.
        train_share: of the tasks, above 0, below 1; the others are held out.
        windows: offset and order of the items.
        store: part of the folder that is used.
        evaluation: sizes of an evaluation.
        embedded_if_missing: demonstrate histories, with a message, when `root` does not exist.

    Attributes:
        train_tasks: (n, F) int64, set by `setup`.
        test_tasks: (m, F) int64, held out.
    """

    train_set: HistoryWindows
    train_tasks: Tensor
    test_tasks: Tensor

    def __init__(
        self,
        env: Env,
        root: str | None = None,
        demonstrator: EpsilonCurriculum | None = None,
        length: int | None = None,
        batch_size: int = 64,
        epoch_items: int | None = None,
        curriculum: Curriculum | None = None,
        split_seed: int = 0,
        train_share: float = 0.8,
        windows: WindowOptions = WindowOptions(),  # noqa: B008 - immutable
        store: StoreOptions = StoreOptions(),
        evaluation: EvaluationOptions = EvaluationOptions(),
        embedded_if_missing: bool = False,
        num_workers: int = 0,
        seed: int = 42,
    ) -> None:
        super().__init__(batch_size=batch_size, num_workers=num_workers, seed=seed)
        if curriculum is not None and windows.offset == "every":
            raise ValueError("a curriculum samples lengths: windows.offset must be start or random, not every")
        self.env = env
        hint = "make it with zoo collect, set ZOO_DATA, or use root: null with a demonstrator"
        self.root = find_data_folder("root", root, embedded_if_missing, "demonstrated histories", hint)
        self.demonstrator = demonstrator
        self.length = length
        self.epoch_items = epoch_items
        self.curriculum = curriculum
        self.split = (split_seed, train_share)
        self.windows, self.store, self.evaluation = windows, store, evaluation
        if root is not None and self.root is None:
            episodes = EMBEDDED_EPISODES if length is None else -(-length // env.schema.limit)
            self.demonstrator = demonstrator or EpsilonCurriculum(env, episodes * windows.episode_stride)
        if self.root is None and self.demonstrator is None:
            raise ValueError("data.init_args: one of root and demonstrator is needed, both are null")
        if self.root is None and self.demonstrator is not None:
            _check_same(env, self.demonstrator.env, "the demonstrator's")

    def setup(self, stage: str) -> None:
        """Open the source, divide it by task, and make the sets."""
        train, test = self._sources()
        training = {tuple(task) for task in self.train_tasks.tolist()}
        leaked = [task for task in self.test_tasks.tolist() if tuple(task) in training]
        if leaked or not len(self.train_tasks) or not len(self.test_tasks):
            raise ValueError(
                f"{self.root or 'the split'}: {len(self.train_tasks)} training tasks and {len(self.test_tasks)} held "
                f"out, of which {len(leaked)} are in both; both sides must have tasks, and none the same"
            )
        log.info(
            "%s: %d training tasks, %d held out, histories of %d steps",
            self.env.name, len(self.train_tasks), len(self.test_tasks), train.length,
        )  # fmt: skip
        self.train_set = HistoryWindows(train, self.length, self.epoch_items, self.seed, self.windows)
        if len(self.train_set) < train.count:
            log.warning("epoch_items: %d of %d histories train, no others", len(self.train_set), train.count)
        offset: Literal["start", "random"] = "start" if self.windows.offset == "start" else "random"
        plain = replace(self.windows, offset=offset, shuffle_episodes=False, mix_tasks=False)
        items, seeds = self.evaluation.items, self.evaluation.seeds
        losses = HistoryWindows(test, self.length, items, self.seed, plain) if items else None
        tasks = self.test_tasks.repeat_interleave(seeds, dim=0)
        pair_seeds = [item_seed(self.seed, PAIRS_EPOCH, pair) for pair in range(len(tasks))]
        self.file_facts = (self.train_tasks.numpy(), astuple(self.store), train.length)
        if isinstance(train, StoredSource):
            self.file_facts += tuple(train.store.index.get(key) for key in ("source", "seed", "episode_stride"))
        world = self._rank_and_world()[1]
        self.val_set = EvaluationBatches(losses, self.batch_size, tasks, pair_seeds, self.evaluation.batch_size, world)

    def _sources(self) -> tuple[HistorySource, HistorySource]:
        """Histories of training tasks and of held-out ones."""
        if self.root is None:
            assert self.demonstrator is not None
            tasks = self.env.tasks()
            self.train_tasks, self.test_tasks = (tasks[part] for part in self.env.split(*self.split))
            train, test = (DemonstratedSource(self.demonstrator, part) for part in (self.train_tasks, self.test_tasks))
            return train, test
        store, options = HistoryStore(self.root), self.store
        _check_same(self.env, store.env, f"that of {self.root}")
        positions = [store.split[side] for side in ("train", "test")]
        self.train_tasks, self.test_tasks = (store.tasks[each] for each in positions)
        stored = [StoredSource(store, each.tolist(), options.streams, options.steps) for each in positions]
        return stored[0], stored[1]

    def statistics(self) -> Statistics:
        """Compute the statistics of the training histories; after `setup`."""
        return self.train_set.source.statistics()

    def longest(self) -> int:
        """Count the steps of the longest training item; after `setup`."""
        if self.curriculum is None:
            return self.train_set.length
        stages = range(len(self.curriculum.starts))
        return max(self.curriculum.limit(stage, self.train_set.available) for stage in stages)

    def train_batches(self, rank: int, world: int) -> ResumableBatchSampler:
        """Build a process's training batches, with lengths where there is a curriculum."""
        if self.curriculum is None:
            return super().train_batches(rank, world)
        sampler = CurriculumBatches(
            len(self.train_set), self.batch_size, self.curriculum, self.train_set.available, self.seed, rank, world,
            self.drop_last,
        )  # fmt: skip
        if self.trainer is not None:
            limit = self.trainer.limit_train_batches
            sampler.count_steps(1.0 if limit is None else limit, self.trainer.accumulate_grad_batches)
            # not 0 after a resume with other batches in an epoch, of more processes for instance
            sampler.trained_before = self.trainer.global_step - sampler.optimizer_step(*self._position)
        return sampler

    def collate(self, items: dict[str, Any] | Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Return a batch as its set made it."""
        return items if isinstance(items, dict) else items[0]


def _check_same(env: Env, other: Env, owner: str) -> None:
    if env.describe() != other.describe():
        raise ValueError(
            f"data.init_args.env is {env.describe()}, {owner} is {other.describe()}: they must be the same"
        )
