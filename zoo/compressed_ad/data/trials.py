"""Data of reinforcement learning in trials: tasks to act in, no histories."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.utils.data import Dataset

from zoo.common.ranges import at_least
from zoo.compressed_ad.data.windows import EvaluationBatches
from zoo.compressed_ad.envs.base import Env
from zoo.training.data import Key, ResumableBatches, ZooDataModule, item_seed

log = logging.getLogger(__name__)

PAIRS_EPOCH = -2  # of the seeds of evaluation pairs, as those of `HistoryData`


class Trials(Dataset[dict[str, Any]]):
    """Pairs of task and seed, keyed by (epoch, item): the items of so many batches in a row are the same pairs.

    Args:
        tasks: (n, F), of which each pair draws one.
        size: items of an epoch.
        together: items of a global batch.
        repeats: batches in a row.
        seed: of the pairs.
    """

    def __init__(self, tasks: Tensor, size: int, together: int, repeats: int, seed: int) -> None:
        self.tasks, self.size, self.together, self.repeats, self.seed = tasks, size, together, repeats, seed

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, key: Key) -> dict[str, Any]:
        """One pair, as a batch of one."""
        return self.__getitems__([key])

    def __getitems__(self, keys: Sequence[Key]) -> dict[str, Any]:
        """`tasks` (B, F), `seeds`, a list of B numbers, and `trial`, the number of the batch that they began with."""
        block = self.together * self.repeats
        (epoch, first), seeds = keys[0], []
        for each, item in keys:
            pair = item // block * self.together + item % self.together
            seeds.append(item_seed(self.seed, each, pair))
        rows = [seed % len(self.tasks) for seed in seeds]
        return {"tasks": self.tasks[rows], "seeds": seeds, "trial": epoch * (self.size // block) + first // block}


class TrialData(ZooDataModule):
    """Tasks to learn to learn in: training tasks for trials, held-out ones for evaluation.

    Args:
        env: the family of tasks.
        batch_size: trials at once, per process.
        trials: batches of trials in an epoch.
        repeats: gradient steps on each batch of trials, in a row.
        split_seed: of the division of the tasks.
        train_share: of the tasks, above 0, below 1; the others are held out.
        eval_seeds: seeds with which each held-out task is acted in.
        rollout_batch: pairs that act at once.

    Attributes:
        train_tasks: (n, F) int64, set by `setup`.
        test_tasks: (m, F) int64, held out.
    """

    train_set: Trials
    train_tasks: Tensor
    test_tasks: Tensor

    def __init__(
        self,
        env: Env,
        batch_size: int = 64,
        trials: int = 100,
        repeats: int = 8,
        split_seed: int = 0,
        train_share: float = 0.8,
        eval_seeds: int = 4,
        rollout_batch: int = 128,
        num_workers: int = 0,
        seed: int = 42,
    ) -> None:
        super().__init__(batch_size=batch_size, num_workers=num_workers, seed=seed)
        at_least(1, trials=trials, repeats=repeats, eval_seeds=eval_seeds, rollout_batch=rollout_batch)
        self.env = env
        self.trials = trials
        self.repeats = repeats
        self.split = (split_seed, train_share)
        self.eval_seeds = eval_seeds
        self.rollout_batch = rollout_batch

    def setup(self, stage: str) -> None:
        """Divide the tasks."""
        tasks = self.env.tasks()
        self.train_tasks, self.test_tasks = (tasks[part] for part in self.env.split(*self.split))
        if not len(self.train_tasks) or not len(self.test_tasks):
            raise ValueError(f"{self.env.name}: {len(tasks)} tasks divided by {self.split[1]}; both sides need some")
        log.info("%s: %d training tasks, %d held out", self.env.name, len(self.train_tasks), len(self.test_tasks))
        world = self._rank_and_world()[1]
        together = self.batch_size * world
        size = together * self.repeats * self.trials
        self.train_set = Trials(self.train_tasks, size, together, self.repeats, self.seed)
        pairs = self.test_tasks.repeat_interleave(self.eval_seeds, dim=0)
        seeds = [item_seed(self.seed, PAIRS_EPOCH, pair) for pair in range(len(pairs))]
        self.contents = (self.train_tasks.numpy(), self.repeats)
        self.val_set = EvaluationBatches(None, self.batch_size, pairs, seeds, self.rollout_batch, world)

    def train_batches(self, rank: int, world: int) -> ResumableBatches:
        """The training set's batches for a process, in order: what is random about them is in their seeds."""
        return ResumableBatches(
            len(self.train_set), self.batch_size, self.seed, rank, world, shuffle=False, drop_last=self.drop_last
        )

    def collate(self, items: dict[str, Any] | Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Batches come ready from their sets."""
        return items if isinstance(items, dict) else items[0]
