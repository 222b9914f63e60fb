"""Bernoulli bandits: nothing to see, a few arms, each of which pays with a probability of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from zoo.common.ranges import at_least
from zoo.common.tensors import SPLITMIX_INCREMENT, sample_uniforms
from zoo.compressed_ad.envs.base import Env, Transition
from zoo.compressed_ad.envs.schema import Discrete, Schema


class Bandit(Env):
    """Arms that pay 1 with probabilities drawn evenly from 0 to 1; a task is the number of such a draw.

    Args:
        arms: at least 2.
        bandits: number of tasks, at least 2.
        horizon: pulls of an episode, at least 1. A bandit has no memory, so episodes are only a way to count.
    """

    name = "bandit"

    def __init__(self, arms: int = 5, bandits: int = 10_000, horizon: int = 10) -> None:
        at_least(2, arms=arms, bandits=bandits)
        at_least(1, horizon=horizon)
        self.arms = arms
        self.horizon = horizon
        self.task_sizes = (bandits,)
        self.schema = Schema(Discrete(1), Discrete(arms), horizon, True, (0, 1))

    def arguments(self) -> dict[str, Any]:
        """The constructor's arguments as JSON values."""
        return {"arms": self.arms, "bandits": self.task_sizes[0], "horizon": self.horizon}

    def task_names(self) -> list[str]:
        """A word for each feature of a task."""
        return ["Bandit"]

    def chances(self, tasks: Tensor) -> Tensor:
        """How likely each arm pays (B, arms) float64, of tasks (B, 1)."""
        return sample_uniforms(tasks[:, 0].tolist(), self.arms).T.contiguous().to(tasks.device)

    def start(self, tasks: Tensor, seeds: Sequence[int] | None = None) -> Pulls:
        """Bandits in lock-step; what a pull pays depends on the environment's seed and the number of the pull."""
        if seeds is None or len(seeds) != len(tasks):
            raise ValueError(f"{len(tasks)} bandits need as many seeds: env.start(tasks, seeds)")
        return Pulls(self, self.check_tasks(tasks), seeds)

    def oracle_returns(self, tasks: Tensor) -> Tensor:
        """Expected return (B,) float64 of the best arm."""
        return self.horizon * self.chances(tasks).amax(1)

    def random_returns(self, tasks: Tensor) -> Tensor:
        """Expected return (B,) float64 of random arms, exact."""
        return self.horizon * self.chances(tasks).mean(1)


class Pulls:
    """Bandits in lock-step, made by `Bandit.start`."""

    def __init__(self, env: Bandit, tasks: Tensor, seeds: Sequence[int]) -> None:
        self.env = env
        self.tasks = tasks
        self.states = torch.zeros(len(tasks), dtype=torch.int64, device=tasks.device)
        self._chances = env.chances(tasks)
        # far from the numbers that choose actions by the same seeds
        self._seeds = np.array(seeds, dtype=np.uint64) ^ np.uint64(0xB5297A4D3F84D5B5)
        self._time = 0

    def step(self, actions: Tensor) -> Transition:
        """Pull arms (B,) int64."""
        drawn = sample_uniforms(self._seeds.tolist(), 1)[0].to(self.tasks.device)
        self._seeds = self._seeds + SPLITMIX_INCREMENT
        self._time += 1
        paid = (drawn < self._chances.gather(1, actions[:, None])[:, 0]).float()
        over = torch.full_like(paid, self._time % self.env.horizon == 0, dtype=torch.bool)
        return Transition(self.states, paid, torch.zeros_like(over), over)

    def optimal_actions(self) -> Tensor:
        """The arms (B,) that pay most often."""
        return self._chances.argmax(1)
