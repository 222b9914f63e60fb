"""A point in the plane with an unseen goal: continuous observations, actions and rewards."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from zoo.common.checks import check_at_least, check_positive
from zoo.compressed_ad.envs.base import Env, Transition
from zoo.compressed_ad.envs.spaces import Box, Schema


class PointMass(Env):
    """A point that starts at the origin and earns minus its distance from an unseen goal on the unit circle.

    An observation is the position. An action is a displacement in units of `speed`; one longer than 1 is shortened to
    1, so the best way is the straight line at top speed. A task is the number of the goal, counterclockwise.

    Args:
        goals: evenly spaced on the circle, at least 2.
        horizon: steps of an episode, at least 1.
        speed: the longest displacement of a step.
    """

    name = "point_mass"

    def __init__(self, goals: int = 64, horizon: int = 20, speed: float = 0.15) -> None:
        check_at_least(2, goals=goals)
        check_at_least(1, horizon=horizon)
        check_positive(speed=speed)
        self.horizon = horizon
        self.speed = speed
        self.task_sizes = (goals,)
        reach = speed * horizon
        self.schema = Schema(Box(-reach, reach, (2,)), Box(-1, 1, (2,)), horizon, True, (-1 - reach, 0))

    def arguments(self) -> dict[str, Any]:
        """Return the constructor's arguments as JSON values."""
        return {"goals": self.task_sizes[0], "horizon": self.horizon, "speed": self.speed}

    def task_names(self) -> list[str]:
        """Return a label for each feature of a task."""
        return ["Goal"]

    def goals(self, tasks: Tensor) -> Tensor:
        """Return positions (B, 2) float32 of the goals of tasks (B, 1)."""
        angles = tasks[:, 0].double() * (2 * math.pi / self.task_sizes[0])
        return torch.stack([angles.cos(), angles.sin()], 1).float()

    def start(self, tasks: Tensor, seeds: Sequence[int] | None = None) -> BatchedPoints:
        """Build points at the start of an episode; nothing about them is random."""
        return BatchedPoints(self, self.check_tasks(tasks))

    def oracle_returns(self, tasks: Tensor) -> Tensor:
        """Return what the straight line at top speed earns, (B,) float64."""
        times = torch.arange(1, self.horizon + 1, dtype=torch.float64)
        return -(1 - self.speed * times).clamp(min=0).sum().expand(len(tasks))


class BatchedPoints:
    """Points of many tasks; see `BatchedEnvs`."""

    def __init__(self, env: PointMass, tasks: Tensor) -> None:
        self.env = env
        self.tasks = tasks
        self.states = torch.zeros(len(tasks), 2, device=tasks.device)
        self._goals = env.goals(tasks)
        self._time = 0

    def step(self, actions: Tensor) -> Transition:
        """Move by actions (B, 2) float32."""
        if actions.shape != self.states.shape:
            raise ValueError(f"{len(self.states)} points take actions {tuple(self.states.shape)}, not {actions.shape}")
        shortened = actions / actions.norm(dim=1, keepdim=True).clamp(min=1)
        positions = self.states + self.env.speed * shortened
        self._time += 1
        truncated = torch.full((len(positions),), self._time == self.env.horizon, device=positions.device)
        self.states = positions
        if self._time == self.env.horizon:
            self.states, self._time = torch.zeros_like(positions), 0
        return Transition(positions, -(positions - self._goals).norm(dim=1), torch.zeros_like(truncated), truncated)

    def optimal_actions(self) -> Tensor:
        """Return displacements (B, 2) straight to the goals."""
        way = (self._goals - self.states) / self.env.speed
        return way / way.norm(dim=1, keepdim=True).clamp(min=1)
