"""An informed explorer of grids: a practical upper curve, and a demonstrator that shows how to look for a goal."""

from __future__ import annotations

from typing import TypeGuard

import torch
from torch import Tensor

from zoo.compressed_ad.envs.base import Env, Transition
from zoo.compressed_ad.envs.grids import BatchedGrids, DarkroomPermuted, Grid, GridEnv


class Explorer:
    """An agent that knows the rules of a grid and remembers everything, but has to find the goals.

    It walks to the nearest cell in which it has not looked for the present goal, of several the one farthest from
    where the episode began, of these the first in row-major order; once the goal is found, straight to it.
    ValueError for an environment whose goal is known.
    """

    def __init__(self, envs: BatchedGrids) -> None:
        env, device = envs.env, envs.tasks.device
        if not can_explore(env):
            raise ValueError("there is nothing to explore in darkroom_permuted: its goal is known, its actions are not")
        self.envs = envs
        self._grid = Grid(env.grid_size, device)
        self._cells = all_cells(env.grid_size).to(device)
        self._codes = self._grid.encode(self._cells)
        self._rows = torch.arange(len(envs.tasks), device=device)
        self._goals = env.goals(envs.tasks).shape[1]
        self._seen = torch.zeros(len(self._rows), self._goals, len(self._cells), dtype=torch.bool, device=device)
        self._reached = self._seen.new_zeros(len(self._rows), self._goals)
        self._begin()

    def _begin(self) -> None:
        self._far = _distances(self.envs.states, self._cells)
        self._goal = torch.zeros_like(self._rows)
        self._all_reached = bool(self._reached.all())

    def actions(self) -> Tensor:
        """Return the next action of each (B,)."""
        actions = self.envs.optimal_actions()
        if self._all_reached:
            return actions
        size, states = self.envs.env.grid_size, self.envs.states
        cost = _distances(states, self._cells) * 2 * size - self._far
        nearest = cost.masked_fill(self._seen[self._rows, self._goal], 4 * size**2).argmin(dim=1)  # above any cost
        explore = self._grid.first_moves(self._grid.encode(states), self._codes[nearest])
        return torch.where(self._reached[self._rows, self._goal], actions, explore)

    def observe(self, transition: Transition) -> None:
        """Update by the result of a step."""
        env = self.envs.env
        self._seen[self._rows, self._goal, cell_numbers(transition.next_states, env.grid_size)] = True
        self._reached[self._rows, self._goal] |= transition.rewards > 0
        if not env.repeats:
            self._goal = (self._goal + transition.rewards.long()).clamp(max=self._goals - 1)
        if self.envs.time == 0:
            self._begin()


def can_explore(env: Env) -> TypeGuard[GridEnv]:
    """Tell whether an environment is a grid with unknown goals."""
    return isinstance(env, GridEnv) and not isinstance(env, DarkroomPermuted)


def all_cells(size: int) -> Tensor:
    """Return all cells (size ** 2, 2) in row-major order."""
    return torch.cartesian_prod(torch.arange(size), torch.arange(size))


def cell_numbers(cells: Tensor, size: int) -> Tensor:
    """Return numbers (...) of cells (..., 2) in row-major order."""
    return cells[..., 0] * size + cells[..., 1]


def _distances(states: Tensor, cells: Tensor) -> Tensor:
    """Return steps (B, N) from states (B, 2) to cells (N, 2)."""
    return (states[:, None] - cells).abs().sum(dim=2)
