"""Data of in-context reinforcement learning: histories of training tasks, and held-out tasks to act in."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from zoo.common.checks import check_at_least
from zoo.compressed_ad.data.curriculum import Curriculum, CurriculumBatches
from zoo.compressed_ad.data.demonstrator import EpsilonCurriculum
from zoo.compressed_ad.data.history import HistoryStore
from zoo.compressed_ad.data.windows import (
    DemonstratedSource,
    EvaluationBatches,
    HistoryItems,
    Offset,
    Source,
    StoredSource,
    TerminalState,
)
from zoo.compressed_ad.envs.base import Env
from zoo.compressed_ad.nets.steps import Statistics
from zoo.training.datamodule import ZooDataModule
from zoo.training.resume import ResumableBatchSampler, item_seed

log = logging.getLogger(__name__)

PAIRS_EPOCH = -2  # of the seeds of pairs; evaluation items take -1
EMBEDDED_EPISODES = 10  # of histories in place of a folder that is missing


class HistoryData(ZooDataModule):
    """Histories from a folder, or demonstrated on demand.

    A training batch has `steps`, B histories of one length: nothing is padded. Evaluation batches have `steps` of
    held-out tasks, or pairs of `tasks` and `seeds`: every held-out task with `eval_seeds` seeds.

    Args:
        env: the family of tasks.
        root: folder that `zoo collect` wrote; its tasks are split as the folder says.
        demonstrator: makes histories, when there is no `root`.
        length: steps of an item, one more than its context; null for whole histories.
        offset: where an item begins, see `HistoryItems`.
        batch_size: items per batch and process.
        epoch_items: items of an epoch; null for one per history (one per piece, with offset "every").
        curriculum: gives each training batch a length of its own.
        split_seed: of the division of the tasks where there is no `root`.
        train_share: of the tasks, above 0, below 1; the others are held out.
        episode_stride: keep every k-th episode only.
        shuffle_episodes: permute the episodes of training histories: a control that sees a task and no learning.
        mix_tasks: take each episode of training histories from another task: a control that learns nothing in context.
        terminal_next_state: "true", or "reset" as in the original's files.
        streams: first histories of each task of the folder; null for all.
        history_steps: first steps of each history of the folder; null for all.
        allow_missing: leave out the tasks of missing or damaged shards.
        val_items: items for the loss in each evaluation.
        eval_seeds: seeds with which each held-out task is acted in; 0 for no acting.
        rollout_batch: pairs that act at once.
        embedded_if_missing: demonstrate histories, with a message, when `root` does not exist.

    Attributes:
        train_tasks: (n, F) int64, set by `setup`.
        test_tasks: (m, F) int64, held out.
    """

    train_set: HistoryItems
    train_tasks: Tensor
    test_tasks: Tensor

    def __init__(
        self,
        env: Env,
        root: str | None = None,
        demonstrator: EpsilonCurriculum | None = None,
        length: int | None = None,
        offset: Offset = "start",
        batch_size: int = 64,
        epoch_items: int | None = None,
        curriculum: Curriculum | None = None,
        split_seed: int = 0,
        train_share: float = 0.8,
        episode_stride: int = 1,
        shuffle_episodes: bool = False,
        mix_tasks: bool = False,
        terminal_next_state: TerminalState = "true",
        streams: int | None = None,
        history_steps: int | None = None,
        allow_missing: bool = False,
        val_items: int = 64,
        eval_seeds: int = 4,
        rollout_batch: int = 128,
        embedded_if_missing: bool = False,
        num_workers: int = 0,
        seed: int = 42,
    ) -> None:
        super().__init__(batch_size=batch_size, num_workers=num_workers, seed=seed)
        check_at_least(0, val_items=val_items, eval_seeds=eval_seeds)
        check_at_least(1, rollout_batch=rollout_batch)
        if val_items + eval_seeds == 0:
            raise ValueError("data.init_args: an evaluation needs val_items or eval_seeds, both are 0")
        if curriculum is not None and offset == "every":
            raise ValueError("data.init_args: a curriculum draws lengths, so offset must be start or random, not every")
        self.env = env
        self.root = None if root is None else Path(root)
        self.demonstrator = demonstrator
        self.length = length
        self.offset: Offset = offset
        self.epoch_items = epoch_items
        self.curriculum = curriculum
        self.split = (split_seed, train_share)
        self.episode_stride = episode_stride
        self.shuffle_episodes = shuffle_episodes
        self.mix_tasks = mix_tasks
        self.terminal_next_state: TerminalState = terminal_next_state
        self.kept = (streams, history_steps)
        self.allow_missing = allow_missing
        self.val_items = val_items
        self.eval_seeds = eval_seeds
        self.rollout_batch = rollout_batch
        if self.root is not None and not self.root.exists():
            if not embedded_if_missing:
                raise FileNotFoundError(
                    f"data.init_args.root: no folder {self.root}; make it with zoo collect, set ZOO_DATA, or use "
                    "root: null with a demonstrator"
                )
            log.warning("no histories at %s: they are demonstrated instead (see zoo collect)", root)
            self.root = None
            episodes = EMBEDDED_EPISODES if length is None else -(-length // env.schema.limit)
            self.demonstrator = demonstrator or EpsilonCurriculum(env, episodes * episode_stride)
        if self.root is None and self.demonstrator is None:
            raise ValueError("data.init_args: one of root and demonstrator is needed, both are null")
        if self.root is None and self.demonstrator is not None:
            _compare(env, self.demonstrator.env, "the demonstrator's")

    def setup(self, stage: str) -> None:
        """Open the source, divide it by task, and make the sets."""
        train, test = self._sources()
        known = {tuple(task) for task in self.train_tasks.tolist()}
        leaked = [task for task in self.test_tasks.tolist() if tuple(task) in known]
        if leaked or not len(self.train_tasks) or not len(self.test_tasks):
            raise ValueError(
                f"{self.root or 'the split'}: {len(self.train_tasks)} training tasks and {len(self.test_tasks)} held "
                f"out, of which {len(leaked)} are in both; both sides must have tasks, and none the same"
            )
        log.info(
            "%s: %d training tasks, %d held out, histories of %d steps",
            self.env.name, len(self.train_tasks), len(self.test_tasks), train.length,
        )  # fmt: skip
        common: dict[str, Any] = {
            "episode_stride": self.episode_stride,
            "terminal_next_state": self.terminal_next_state,
        }
        self.train_set = HistoryItems(
            train, self.length, self.offset, self.epoch_items, self.seed,
            shuffle_episodes=self.shuffle_episodes, mix_tasks=self.mix_tasks, **common,
        )  # fmt: skip
        offset: Offset = "start" if self.offset == "start" else "random"
        held = HistoryItems(test, self.length, offset, self.val_items, self.seed, **common) if self.val_items else None
        tasks = self.test_tasks.repeat_interleave(self.eval_seeds, dim=0)
        seeds = [item_seed(self.seed, PAIRS_EPOCH, pair) for pair in range(len(tasks))]
        self.file_facts = (self.train_tasks.numpy(), self.kept, train.length)
        world = self._rank_and_world()[1]
        self.val_set = EvaluationBatches(held, self.batch_size, tasks, seeds, self.rollout_batch, world)

    def _sources(self) -> tuple[Source, Source]:
        """Histories of training tasks and of held-out ones."""
        if self.root is None:
            assert self.demonstrator is not None
            tasks = self.env.tasks()
            self.train_tasks, self.test_tasks = (tasks[part] for part in self.env.split(*self.split))
            return tuple(DemonstratedSource(self.demonstrator, part) for part in (self.train_tasks, self.test_tasks))  # type: ignore[return-value]
        store = HistoryStore(self.root, self.allow_missing)
        _compare(self.env, store.env, f"that of {self.root}")
        self.train_tasks, self.test_tasks = (store.tasks[store.split[side]] for side in ("train", "test"))
        return tuple(StoredSource(store, store.split[side].tolist(), *self.kept) for side in ("train", "test"))  # type: ignore[return-value]

    def statistics(self) -> Statistics:
        """How the values of the training histories are spread; after `setup`."""
        return self.train_set.source.statistics()

    def train_batches(self, rank: int, world: int) -> ResumableBatchSampler:
        """The training set's batches for a process, with lengths where there is a curriculum."""
        if self.curriculum is None:
            return super().train_batches(rank, world)
        accumulated = 1 if self.trainer is None else self.trainer.accumulate_grad_batches
        return CurriculumBatches(
            len(self.train_set), self.batch_size, self.curriculum, self.train_set.available, self.seed, rank, world,
            self.drop_last, accumulated,
        )  # fmt: skip

    def collate(self, items: dict[str, Any] | Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Batches come ready from their sets."""
        return items if isinstance(items, dict) else items[0]


def _compare(env: Env, other: Env, whose: str) -> None:
    if env.describe() != other.describe():
        raise ValueError(
            f"data.init_args.env is {env.describe()}, {whose} is {other.describe()}: they must be the same"
        )
