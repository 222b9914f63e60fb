"""What a learner's curve is compared with: the exact return at random, the best return, and an informed explorer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeGuard

import torch
from torch import Tensor

from zoo.compressed_ad.envs.base import Env
from zoo.compressed_ad.envs.grids import MOVES, BatchedEnv, DarkroomPermuted, Grid, GridEnv, Step


def random_return(env: Env, tasks: Tensor | None = None) -> Tensor:
    """Expected return of an episode of uniformly random actions: of grids exact, by dynamic programming.

    Args:
        tasks: (B, F) int64; all tasks of the environment by default.

    Returns:
        (B,) float64.
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
    # How likely the agent is in a cell (last axis) and looks for the p-th goal (middle axis).
    places = torch.zeros(*goals.shape, len(walk), dtype=torch.float64, device=tasks.device)
    places[:, 0] = first
    total = torch.zeros(len(tasks), dtype=torch.float64, device=tasks.device)
    at = goals[:, :, None]
    for _ in range(env.horizon):
        places = places @ walk
        found = places.gather(2, at)
        total += found.sum(dim=(1, 2))
        places.scatter_(2, at, 0.0)
        places[:, 1:].scatter_add_(2, at[:, :-1], found[:, :-1])
    return total


def oracle_return(env: Env, tasks: Tensor | None = None) -> Tensor:
    """Return of an episode of who knows the task; NaN where nobody does.

    Args:
        env: where; with `random_start` the mean over all cells to start from.
        tasks: (B, F) int64; all tasks of the environment by default.

    Returns:
        (B,) float64.
    """
    tasks = env.tasks() if tasks is None else tasks
    if not isinstance(env, GridEnv):
        return env.oracle_returns(tasks)
    starts = _cells(env.grid_size).to(tasks.device) if env.random_start else tasks.new_tensor([env.start_cell])
    total = sum(env.best_return(tasks, start.expand(len(tasks), 2)).double() for start in starts)
    return torch.as_tensor(total) / len(starts)


class Explorer:
    """Explorers in lock-step, who know the rules of the room, not the goals, and forget nothing.

    Each walks to the nearest cell in which it has not looked for the present goal, of several the one farthest from
    where the episode began, of these the first in row-major order, until it has found the goal; from then on it goes
    there straight. The cell it starts in counts as seen once a step ended there.

    Args:
        worlds: where they act, at the start of an episode.

    Raises:
        ValueError: for an environment whose goal is known.
    """

    def __init__(self, worlds: BatchedEnv) -> None:
        env, device = worlds.env, worlds.tasks.device
        if not can_explore(env):
            raise ValueError("there is nothing to explore in darkroom_permuted: its goal is known, its actions are not")
        self.worlds = worlds
        self._grid = Grid(env.grid_size, device)
        self._cells = _cells(env.grid_size).to(device)
        self._codes = self._grid.encode(self._cells)
        self._world = torch.arange(len(worlds.tasks), device=device)
        self._goals = env.goals(worlds.tasks).shape[1]
        self._seen = torch.zeros(len(self._world), self._goals, len(self._cells), dtype=torch.bool, device=device)
        self._known = self._seen.new_zeros(len(self._world), self._goals)
        self._all_known = False
        self._begin()

    def _begin(self) -> None:
        self._far = _distances(self.worlds.states, self._cells)
        self._goal = torch.zeros_like(self._world)
        self._all_known = bool(self._known.all())

    def actions(self) -> Tensor:
        """What each does now (B,)."""
        actions = self.worlds.optimal_actions()
        if self._all_known:
            return actions
        size, states = self.worlds.env.grid_size, self.worlds.states
        cost = _distances(states, self._cells) * 2 * size - self._far
        nearest = cost.masked_fill(self._seen[self._world, self._goal], 4 * size**2).argmin(dim=1)  # above any cost
        explore = self._grid.first_moves(self._grid.encode(states), self._codes[nearest])
        return torch.where(self._known[self._world, self._goal], actions, explore)

    def observe(self, step: Step) -> None:
        """Take in what a step led to, whoever chose it."""
        env = self.worlds.env
        self._seen[self._world, self._goal, _index(step.next_states, env.grid_size)] = True
        self._known[self._world, self._goal] |= step.rewards > 0
        if not env.repeats:
            self._goal = (self._goal + step.rewards).clamp(max=self._goals - 1)
        if step.done:
            self._begin()


def explorer_returns(
    env: GridEnv, episodes: int, tasks: Tensor | None = None, seeds: Sequence[int] | None = None
) -> Tensor:
    """Returns of an informed explorer, see `Explorer`: a practical upper curve.

    Args:
        env: where the goals are unknown (not `DarkroomPermuted`).
        episodes: number of episodes one after the other, at least 1.
        tasks: (B, F) int64; all tasks of the environment by default.
        seeds: of the worlds, for `random_start`, see `Env.start`.

    Returns:
        (B, episodes) float64.

    Raises:
        ValueError: for an environment whose goal is known.
    """
    tasks = env.tasks() if tasks is None else tasks
    worlds = env.start(tasks, seeds)
    explorer = Explorer(worlds)
    returns = torch.zeros(len(tasks), episodes, dtype=torch.float64, device=tasks.device)
    for episode in range(episodes):
        done = False
        while not done:
            step = worlds.step(explorer.actions())
            explorer.observe(step)
            returns[:, episode] += step.rewards
            done = step.done
    return returns


def can_explore(env: Env) -> TypeGuard[GridEnv]:
    """Whether there is something to explore, and rules by which to do it."""
    return isinstance(env, GridEnv) and not isinstance(env, DarkroomPermuted)


def _cells(size: int) -> Tensor:
    """All cells (size ** 2, 2) in row-major order."""
    return torch.cartesian_prod(torch.arange(size), torch.arange(size))


def _index(cells: Tensor, size: int) -> Tensor:
    """Numbers (...) of cells (..., 2) in row-major order."""
    return cells[..., 0] * size + cells[..., 1]


def _distances(states: Tensor, cells: Tensor) -> Tensor:
    """Steps (B, N) from states (B, 2) to cells (N, 2)."""
    return (states[:, None] - cells).abs().sum(dim=2)


def _random_walk(size: int) -> Tensor:
    """How likely a random action leads from one cell (row) to another (column), float64."""
    cells = _cells(size)
    walk = torch.zeros(len(cells), len(cells), dtype=torch.float64)
    for move in MOVES:
        walk[torch.arange(len(cells)), _index((cells + torch.tensor(move)).clamp(0, size - 1), size)] += 1 / len(MOVES)
    return walk
