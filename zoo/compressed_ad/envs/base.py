"""What in-context reinforcement learning asks of environments: families of tasks, many of them in lock-step."""

from __future__ import annotations

import math
import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from zoo.common.build import build
from zoo.common.checks import check_within
from zoo.common.registry import public_name
from zoo.common.tensors import SPLITMIX_INCREMENT, sample_uniforms
from zoo.compressed_ad.envs.schema import Box, Discrete, Schema, Space

NAMES = {
    "darkroom": "zoo.compressed_ad.Darkroom",
    "darkroom_permuted": "zoo.compressed_ad.DarkroomPermuted",
    "dark_key_to_door": "zoo.compressed_ad.DarkKeyToDoor",
}
"""Short names in indices and reports; other environments stand there with their public names."""
COPIES, EPISODES = 16, 4  # that estimate what random actions earn
RANDOM_SEED = 0x5EED


class Transition(NamedTuple):
    """What a step in all environments led to.

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


class Lockstep(Protocol):
    """Environments that step together, each in its own episode; made by `Env.start`.

    An environment whose episode ends stands at the start of its next one at once: no step is without effect.
    """

    tasks: Tensor
    states: Tensor

    def step(self, actions: Tensor) -> Any:
        """Act in every environment, by (B, *action); what it led to has the fields of `Transition` but for two.

        Grids, whose episodes all end together, have `done` besides, one for all.
        """

    def optimal_actions(self) -> Tensor:
        """Actions (B, *action) of who knows the task.

        Raises:
            ValueError: when nobody knows them.
        """


class Env(ABC):
    """A family of tasks.

    Attributes:
        name: in figures and messages.
        schema: what it shows, takes and pays.
        task_sizes: how many values each feature of a task has.
    """

    name: str
    schema: Schema
    task_sizes: tuple[int, ...]

    def tasks(self) -> Tensor:
        """All tasks (N, F) int64, in row-major order."""
        return torch.cartesian_prod(*(torch.arange(size) for size in self.task_sizes)).reshape(-1, len(self.task_sizes))

    def task_names(self) -> list[str]:
        """A word for each feature of a task."""
        return [f"Task feature {number}" for number in range(1, len(self.task_sizes) + 1)]

    def split(self, seed: int, train_share: float) -> tuple[Tensor, Tensor]:
        """Divide the tasks as the original does: shuffle, then cut.

        Returns:
            Indices (n,) int64 into `tasks()` for training and for test, in the shuffled order.
        """
        check_within(0, 1, train_share=train_share)
        order = list(range(len(self.tasks())))
        random.Random(seed).shuffle(order)
        train = round(len(order) * train_share)
        return torch.tensor(order[:train], dtype=torch.int64), torch.tensor(order[train:], dtype=torch.int64)

    def check_tasks(self, tasks: Tensor) -> Tensor:
        """Tasks (B, F) as int64.

        Raises:
            ValueError: when they are no rows of `tasks()`.
        """
        limits = torch.tensor(self.task_sizes, device=tasks.device)
        rows = tasks.ndim == 2 and tasks.shape[1] == len(limits) and not tasks.is_floating_point()
        if not rows or not bool(((tasks >= 0) & (tasks < limits)).all()):
            raise ValueError(
                f"tasks of {self.name} are rows of {len(limits)} integers below {list(self.task_sizes)}, found "
                f"{tasks.dtype} {tuple(tasks.shape)}{f' from {tasks.min()} to {tasks.max()}' if tasks.numel() else ''}"
            )
        return tasks.long()

    @abstractmethod
    def start(self, tasks: Tensor, seeds: Sequence[int] | None = None) -> Lockstep:
        """Environments of these tasks, each at the start of an episode, on the tasks' device.

        Args:
            tasks: (B, F) integers, rows of `tasks()`; a task may repeat.
            seeds: (B,), 0 to 2**64 - 1: what is random about an environment depends on its seed and the number of the
                episode, not on the other environments.
        """

    @abstractmethod
    def arguments(self) -> dict[str, Any]:
        """The constructor's arguments as JSON values."""

    def describe(self) -> dict[str, Any]:
        """Name and arguments as JSON values, for `build_env`."""
        name = public_name(type(self))
        return {"name": next((short for short, path in NAMES.items() if path == name), name), **self.arguments()}

    def oracle_returns(self, tasks: Tensor) -> Tensor:
        """Return (B,) float64 of who knows each task (B, F); by default the most that rewards allow, NaN if unknown."""
        best = self.schema.reward[1] * self.schema.limit
        return torch.full((len(tasks),), best if math.isfinite(best) else math.nan, dtype=torch.float64)

    def random_returns(self, tasks: Tensor) -> Tensor:
        """Expected return (B,) float64 of uniformly random actions, here the mean of 64 episodes with fixed seeds."""
        rows = tasks.cpu().repeat_interleave(COPIES, 0)
        seeds = [RANDOM_SEED + copy for _ in range(len(tasks)) for copy in range(COPIES)]
        envs = self.start(rows, seeds)
        totals, finished = torch.zeros(len(rows), dtype=torch.float64), torch.zeros(len(rows), dtype=torch.int64)
        width, time = random_numbers(self.schema.action), 0
        while int(finished.min()) < EPISODES:
            shifted = [(seed + (time * width + 1) * int(SPLITMIX_INCREMENT)) % 2**64 for seed in seeds]
            taken = envs.step(random_actions(self.schema.action, sample_uniforms(shifted, width)))
            totals += torch.where(finished < EPISODES, taken.rewards.double(), 0)
            finished += taken.dones
            time += 1
        return (totals / EPISODES).view(len(tasks), COPIES).mean(1)


def random_numbers(space: Space) -> int:
    """How many random numbers a uniformly random action takes."""
    return space.size if isinstance(space, Box) else 1


def random_actions(space: Space, uniforms: Tensor) -> Tensor:
    """Uniformly random actions (B, *action) by numbers (n, B) float64 in (0, 1), see `random_numbers`.

    Raises:
        ValueError: when the space has no bounds.
    """
    if isinstance(space, Discrete):
        return (uniforms[0] * space.n).long()
    if not space.bounded:
        raise ValueError("uniformly random actions need bounds, and the action space has none: wrap the environment")
    low, high = (torch.tensor(bounds, dtype=torch.float64)[:, None] for bounds in space.limits())
    values = (low + uniforms * (high - low)).T.reshape(-1, *space.shape)
    return values.to(tensor_dtype(space))


def tensor_dtype(space: Space) -> torch.dtype:
    """Of values of a space."""
    return torch.from_numpy(np.empty(0, space.dtype)).dtype


def build_env(described: Mapping[str, Any]) -> Env:
    """The environment that `Env.describe` described.

    Raises:
        ValueError: when there is no such environment, or it takes other arguments.
    """
    arguments = dict(described)
    name = arguments.pop("name", None)
    if name not in NAMES and "." not in str(name):
        raise ValueError(f"an environment's name is one of {', '.join(NAMES)}, or a class's, found {name!r}")
    try:
        built: Env = build({"class_path": NAMES.get(name, name), "init_args": arguments}, Env)
    except ValueError as error:
        raise ValueError(f"environment {name}: {error}") from error
    return built
