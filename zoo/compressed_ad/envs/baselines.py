"""Baselines of a learning curve: the return of random actions, the best return, and an informed explorer."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from zoo.compressed_ad.envs.base import Env
from zoo.compressed_ad.envs.explorer import Explorer, all_cells, cell_numbers
from zoo.compressed_ad.envs.grids import MOVES, GridEnv


def random_return(env: Env, tasks: Tensor | None = None) -> Tensor:
    """Return the expected return (B,) float64 of uniformly random actions: of grids exact, by dynamic programming.

    Args:
        tasks: (B, F) int64; all tasks of the environment by default.
    """
    tasks = env.tasks() if tasks is None else tasks
    if not isinstance(env, GridEnv):
        return env.random_returns(tasks)
    goals = cell_numbers(env.goals(tasks), env.grid_size)
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
    starts = all_cells(env.grid_size).to(tasks.device) if env.random_start else tasks.new_tensor([env.start_cell])
    total = sum(env.best_return(tasks, start.expand(len(tasks), 2)).double() for start in starts)
    return torch.as_tensor(total) / len(starts)


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


def _random_walk(size: int) -> Tensor:
    """Return the probability that a random action leads from a cell (row) to another (column), float64."""
    cells = all_cells(size)
    walk = torch.zeros(len(cells), len(cells), dtype=torch.float64)
    for move in MOVES:
        moved = cell_numbers((cells + torch.tensor(move)).clamp(0, size - 1), size)
        walk[torch.arange(len(cells)), moved] += 1 / len(MOVES)
    return walk
