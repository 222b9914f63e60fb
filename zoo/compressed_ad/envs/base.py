"""Families of tasks, and environments of many tasks that step together."""

from __future__ import annotations

import math
import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, NoReturn, Protocol

import torch
from torch import Tensor

from zoo.common.build import build
from zoo.common.checks import check_at_least, check_within
from zoo.common.registry import public_name
from zoo.common.tensors import SPLITMIX_INCREMENT, sample_uniforms
from zoo.compressed_ad.envs.spaces import Schema, count_random_numbers, random_actions

NAMES = {
    "darkroom": "zoo.compressed_ad.Darkroom",
    "darkroom_permuted": "zoo.compressed_ad.DarkroomPermuted",
    "dark_key_to_door": "zoo.compressed_ad.DarkKeyToDoor",
}
"""Short names in indices and reports; other environments stand there with their public names."""
COPIES, EPISODES = 16, 4  # of the estimate of random returns
RANDOM_SEED = 0x5EED


class Transition(NamedTuple):
    """Result of a step in all environments.

    next_states: (B, *observation), the true successors, also at the end of an episode.
    rewards: (B,) float32.
    terminated: (B,) bool, whether the task ended the episode.
    truncated: (B,) bool, whether the limit of steps did.
    """

    next_states: Tensor
    rewards: Tensor
    terminated: Tensor
    truncated: Tensor

    @property
    def dones(self) -> Tensor:
        """Which environments (B,) ended an episode."""
        return self.terminated | self.truncated


class BatchedEnvs(Protocol):
    """Environments of B tasks that step together, made by `Env.start`.

    An environment whose episode ends is reset in the same step: `states` then begins the next episode.
    """

    tasks: Tensor
    states: Tensor

    def step(self, actions: Tensor) -> Transition:
        """Act in every environment, by (B, *action)."""

    def optimal_actions(self) -> Tensor:
        """Return the best actions (B, *action) for the tasks; ValueError when they are unknown."""


class Env(ABC):
    """A family of tasks.

    Attributes:
        name: in figures and messages.
        schema: spaces, limit and rewards.
        task_sizes: how many values each feature of a task has.
    """

    name: str
    schema: Schema
    task_sizes: tuple[int, ...]

    def tasks(self) -> Tensor:
        """Return all tasks (N, F) int64, in row-major order."""
        return torch.cartesian_prod(*(torch.arange(size) for size in self.task_sizes)).reshape(-1, len(self.task_sizes))

    def task_names(self) -> list[str]:
        """Return a label for each feature of a task."""
        return [f"Task feature {number}" for number in range(1, len(self.task_sizes) + 1)]

    def split(self, seed: int, train_share: float) -> tuple[Tensor, Tensor]:
        """Shuffle the tasks and cut: indices (n,) int64 into `tasks()` for training and for test."""
        check_within(0, 1, train_share=train_share)
        order = list(range(len(self.tasks())))
        random.Random(seed).shuffle(order)
        train = round(len(order) * train_share)
        return torch.tensor(order[:train], dtype=torch.int64), torch.tensor(order[train:], dtype=torch.int64)

    def check_tasks(self, tasks: Tensor) -> Tensor:
        """Return tasks (B, F) as int64; ValueError when they are no rows of `tasks()`."""
        limits = torch.tensor(self.task_sizes, device=tasks.device)
        rows = tasks.ndim == 2 and tasks.shape[1] == len(limits) and not tasks.is_floating_point()
        if not rows or not bool(((tasks >= 0) & (tasks < limits)).all()):
            raise ValueError(
                f"tasks of {self.name} are rows of {len(limits)} integers below {list(self.task_sizes)}, found "
                f"{tasks.dtype} {tuple(tasks.shape)}{f' from {tasks.min()} to {tasks.max()}' if tasks.numel() else ''}"
            )
        return tasks.long()

    @abstractmethod
    def start(self, tasks: Tensor, seeds: Sequence[int] | None = None) -> BatchedEnvs:
        """Build environments of tasks (B, F), each at the start of an episode, on the tasks' device.

        Args:
            tasks: rows of `tasks()`; a task may repeat.
            seeds: (B,), 0 to 2**64 - 1. What is random in an environment depends on its seed and the number of the
                episode alone.
        """

    @abstractmethod
    def arguments(self) -> dict[str, Any]:
        """Return the constructor's arguments as JSON values."""

    def describe(self) -> dict[str, Any]:
        """Return name and arguments as JSON values, for `build_env`."""
        name = public_name(type(self))
        return {"name": next((short for short, path in NAMES.items() if path == name), name), **self.arguments()}

    def oracle_returns(self, tasks: Tensor) -> Tensor:
        """Return the best return (B,) float64 of tasks (B, F); by default the most that rewards allow, or NaN."""
        best = self.schema.reward[1] * self.schema.limit
        return torch.full((len(tasks),), best if math.isfinite(best) else math.nan, dtype=torch.float64)

    def random_returns(self, tasks: Tensor) -> Tensor:
        """Return the mean return (B,) float64 of uniformly random actions, over 64 episodes with fixed seeds."""
        rows = tasks.cpu().repeat_interleave(COPIES, 0)
        seeds = [RANDOM_SEED + copy for _ in range(len(tasks)) for copy in range(COPIES)]
        envs = self.start(rows, seeds)
        totals, episodes = torch.zeros(len(rows), dtype=torch.float64), torch.zeros(len(rows), dtype=torch.int64)
        width, time = count_random_numbers(self.schema.action), 0
        while int(episodes.min()) < EPISODES:
            shifted = [(seed + (time * width + 1) * int(SPLITMIX_INCREMENT)) % 2**64 for seed in seeds]
            transition = envs.step(random_actions(self.schema.action, sample_uniforms(shifted, width)))
            totals += torch.where(episodes < EPISODES, transition.rewards.double(), 0)
            episodes += transition.dones
            time += 1
        return (totals / EPISODES).view(len(tasks), COPIES).mean(1)


class RecordedEnv(Env):
    """Tasks of which there are histories and no environment: imports of other data sets.

    Train on it with `data.init_args.evaluation.seeds: 0`.

    Args:
        title: its name.
        tasks: how many there are, at least 1.
        described: the schema, as `Schema.describe` has it.
    """

    def __init__(self, title: str, tasks: int, described: dict[str, Any]) -> None:
        check_at_least(1, tasks=tasks)
        self.name = title
        self.task_sizes = (tasks,)
        self.schema = Schema.read(described)

    def arguments(self) -> dict[str, Any]:
        """Return the constructor's arguments as JSON values."""
        return {"title": self.name, "tasks": self.task_sizes[0], "described": self.schema.describe()}

    def start(self, tasks: Tensor, seeds: Sequence[int] | None = None) -> NoReturn:
        """Refuse: there is no environment."""
        raise ValueError(
            f"{self.name} has histories and no environment to act in: train with data.init_args.evaluation.seeds 0, "
            "and evaluate in an environment of the same spaces"
        )


def build_env(description: Mapping[str, Any]) -> Env:
    """Build the environment that `Env.describe` described; ValueError for an unknown name or other arguments."""
    arguments = dict(description)
    name = arguments.pop("name", None)
    if name not in NAMES and "." not in str(name):
        raise ValueError(f"an environment's name is one of {', '.join(NAMES)}, or a class's, found {name!r}")
    try:
        env: Env = build({"class_path": NAMES.get(name, name), "init_args": arguments}, Env)
    except ValueError as error:
        raise ValueError(f"environment {name}: {error}") from error
    return env
