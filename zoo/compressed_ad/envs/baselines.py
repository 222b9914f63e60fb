"""Baselines of a learning curve: the return of random actions, the best return, and an informed explorer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeGuard

import torch
from torch import Tensor

from zoo.compressed_ad.envs.base import Env, Transition
from zoo.compressed_ad.envs.grids import MOVES, BatchedGrids, DarkroomPermuted, Grid, GridEnv


def random_return(env: Env, tasks: Tensor | None = None) -> Tensor:
    """Return the expected return (B,) float64 of uniformly random actions: of grids exact, by dynamic programming.

    Args:
        tasks: (B, F) int64; all tasks of the environment by default.
    """
    tasks = env.tasks() if tasks is None else tasks
    if not isinstance(env, GridEnv):
        return env.random_returns(tasks)
    goals = _index(env.goals(tasks), env.grid_size)
    walk = _random_walk(env.grid_size).to(tasks.device)
    first = torch.zeros(len(walk), dtype=torch.float64, device=tasks.device)
    if env.random_start:
        first += 1 / len(walk)
    else:
        first[env.start_cell[0] * env.grid_size + env.start_cell[1]] = 1
    if env.repeats:  # then the walk does not depend on the task
        visits = torch.zeros_like(first)
        for _ in range(env.horizon):
            first = first @ walk
            visits += first
        return visits[goals[:, 0]]
    # The probability that the agent is in a cell (last axis) while the p-th goal is next (middle axis).
    probabilities = torch.zeros(*goals.shape, len(walk), dtype=torch.float64, device=tasks.device)
    probabilities[:, 0] = first
    total = torch.zeros(len(tasks), dtype=torch.float64, device=tasks.device)
    at = goals[:, :, None]
    for _ in range(env.horizon):
        probabilities = probabilities @ walk
        arrivals = probabilities.gather(2, at)
        total += arrivals.sum(dim=(1, 2))
        probabilities.scatter_(2, at, 0.0)
        probabilities[:, 1:].scatter_add_(2, at[:, :-1], arrivals[:, :-1])
    return total


def oracle_return(env: Env, tasks: Tensor | None = None) -> Tensor:
    """Return the best return (B,) float64 of an episode, NaN where it is unknown.

    Args:
        env: with `random_start` the mean over all cells to start from.
        tasks: (B, F) int64; all tasks of the environment by default.
    """
    tasks = env.tasks() if tasks is None else tasks
    if not isinstance(env, GridEnv):
        return env.oracle_returns(tasks)
    starts = _cells(env.grid_size).to(tasks.device) if env.random_start else tasks.new_tensor([env.start_cell])
    total = sum(env.best_return(tasks, start.expand(len(tasks), 2)).double() for start in starts)
    return torch.as_tensor(total) / len(starts)


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
        self._cells = _cells(env.grid_size).to(device)
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
        self._seen[self._rows, self._goal, _index(transition.next_states, env.grid_size)] = True
        self._reached[self._rows, self._goal] |= transition.rewards > 0
        if not env.repeats:
            self._goal = (self._goal + transition.rewards.long()).clamp(max=self._goals - 1)
        if self.envs.time == 0:
            self._begin()


def explorer_returns(
    env: GridEnv, episodes: int, tasks: Tensor | None = None, seeds: Sequence[int] | None = None
) -> Tensor:
    """Return what an `Explorer` earns in each episode, (B, episodes) float64: a practical upper curve.

    Args:
        tasks: (B, F) int64; all tasks of the environment by default.
        seeds: of the environments, for `random_start`.
    """
    tasks = env.tasks() if tasks is None else tasks
    envs = env.start(tasks, seeds)
    explorer = Explorer(envs)
    returns = torch.zeros(len(tasks), episodes, dtype=torch.float64, device=tasks.device)
    for episode in range(episodes):
        for _ in range(env.horizon):
            transition = envs.step(explorer.actions())
            explorer.observe(transition)
            returns[:, episode] += transition.rewards
    return returns


def can_explore(env: Env) -> TypeGuard[GridEnv]:
    """Tell whether an environment is a grid with unknown goals."""
    return isinstance(env, GridEnv) and not isinstance(env, DarkroomPermuted)


def _cells(size: int) -> Tensor:
    """Return all cells (size ** 2, 2) in row-major order."""
    return torch.cartesian_prod(torch.arange(size), torch.arange(size))


def _index(cells: Tensor, size: int) -> Tensor:
    """Return numbers (...) of cells (..., 2) in row-major order."""
    return cells[..., 0] * size + cells[..., 1]


def _distances(states: Tensor, cells: Tensor) -> Tensor:
    """Return steps (B, N) from states (B, 2) to cells (N, 2)."""
    return (states[:, None] - cells).abs().sum(dim=2)


def _random_walk(size: int) -> Tensor:
    """Return the probability that a random action leads from a cell (row) to another (column), float64."""
    cells = _cells(size)
    walk = torch.zeros(len(cells), len(cells), dtype=torch.float64)
    for move in MOVES:
        walk[torch.arange(len(cells)), _index((cells + torch.tensor(move)).clamp(0, size - 1), size)] += 1 / len(MOVES)
    return walk
