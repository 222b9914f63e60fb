"""Worlds of a family of tasks in lock-step, vectorised with look-up tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from zoo.training.draws import GOLDEN, seeded_uniforms

if TYPE_CHECKING:
    from zoo.compressed_ad.envs import Env

MOVES = ((1, 0), (-1, 0), (0, 1), (0, -1), (0, 0))
STAY = 4
START_STREAM = np.uint64(0xA0761D6478BD642F)  # keeps random starts apart from other draws of the same seed


class Step(NamedTuple):
    """What a step in all worlds led to.

    next_states: (B, 2) int64, the true successors, also at the end of an episode.
    rewards: (B,) int64, 0 or 1.
    done: whether this step ended the episode, in all worlds at once.
    """

    next_states: Tensor
    rewards: Tensor
    done: bool


class Grid:
    """Lookup tables of a square grid.

    A cell's code is `row * (2 * size - 1) + column`, so that the difference of two codes tells how far apart the cells
    are in rows and in columns; `nowhere` stands for a goal that is nowhere.

    Args:
        size: rows and columns.
        device: of the tables.
    """

    def __init__(self, size: int, device: torch.device) -> None:
        self.width = 2 * size - 1
        self.last = (size - 1) * (self.width + 1)
        self.nowhere = 2 * self.last + 1
        codes = torch.arange(self.last + 1)
        cells = torch.stack([codes // self.width, (codes % self.width).clamp(max=size - 1)], dim=1)
        moved = (cells[:, None] + torch.tensor(MOVES)).clamp(0, size - 1)
        apart = torch.arange(-self.last, self.last + 1)
        rows = (apart + size - 1).div(self.width, rounding_mode="floor")
        across = torch.where(apart > rows * self.width, 2, torch.where(apart < rows * self.width, 3, STAY))
        toward = torch.where(rows > 0, 0, torch.where(rows < 0, 1, across))
        self.cells = cells.to(device)
        self.moves = self.encode(moved).flatten().to(device)
        self.toward = torch.cat([toward, torch.full((self.last + 1,), STAY)]).to(device)

    def encode(self, cells: Tensor) -> Tensor:
        """Codes (...) of cells (..., 2)."""
        return cells[..., 0] * self.width + cells[..., 1]

    def first_moves(self, places: Tensor, goals: Tensor) -> Tensor:
        """Moves (B,) that begin the way from one code (B,) to another: first rows, then columns, then stay."""
        return self.toward.index_select(0, goals - places + self.last)


class Worlds:
    """Worlds in lock-step, all at the same step of an episode. Made by `Env.start`.

    Attributes:
        env: the family of tasks.
        tasks: (B, F) int64.
        states: (B, 2) int64, where the agents stand now.
        time: step in the episode, 0 to horizon - 1.
    """

    def __init__(self, env: Env, tasks: Tensor, seeds: Sequence[int] | None = None) -> None:
        limits = torch.tensor(env.task_sizes, device=tasks.device)
        rows = tasks.ndim == 2 and tasks.shape[1] == len(limits) and not tasks.is_floating_point()
        if not rows or not bool(((tasks >= 0) & (tasks < limits)).all()):
            raise ValueError(
                f"tasks of {env.name} are rows of {len(limits)} integers below {list(env.task_sizes)}, found "
                f"{tasks.dtype} {tuple(tasks.shape)}{f' from {tasks.min()} to {tasks.max()}' if tasks.numel() else ''}"
            )
        if env.random_start and (seeds is None or len(seeds) != len(tasks)):
            raise ValueError(f"{len(tasks)} worlds with random_start need as many seeds: env.start(tasks, seeds)")
        self.env = env
        self.tasks = tasks.long()
        self._seeds = np.array(seeds, dtype=np.uint64) ^ START_STREAM if env.random_start else None
        self._grid = grid = Grid(env.grid_size, tasks.device)
        targets = grid.encode(env.goals(self.tasks))
        targets = torch.nn.functional.pad(targets, (0, 1), value=grid.nowhere)
        self._targets = targets.flatten()
        world = torch.arange(len(tasks), device=tasks.device)
        self._first_target = world * targets.shape[1]
        permutations = env.permutations(self.tasks)
        self._permuted = permutations is not None
        if permutations is not None:
            self._first_action = world * len(MOVES)
            self._meanings = permutations.flatten()
            self._names = permutations.argsort(dim=1).flatten()
        self._begin_episode()

    def _begin_episode(self) -> None:
        if self._seeds is None:
            self._starts = self.tasks.new_tensor(self.env.start_cell).expand(len(self.tasks), 2)
        else:
            size = self.env.grid_size
            cells = (seeded_uniforms(self._seeds.tolist(), 1)[0] * size**2).long()
            self._starts = torch.stack([cells // size, cells % size], dim=1).to(self.tasks.device)
            self._seeds = self._seeds + GOLDEN
        self.time = 0
        self.states = self._starts.clone()
        self._code = self._grid.encode(self._starts)
        self._cursor = self._first_target
        self._wanted = self._targets.index_select(0, self._cursor)

    def reset(self) -> Tensor:
        """Leave the episode, if it has begun, for a new one.

        Returns:
            States (B, 2) int64.
        """
        if self.time:
            self._begin_episode()
        return self.states

    def step(self, actions: Tensor) -> Step:
        """Act in every world; after the last step of an episode the worlds stand at the start of the next one.

        Args:
            actions: (B,) integers, 0 to 4.

        Raises:
            ValueError: when there is another number of actions, or (seen on the CPU only) no such action.
        """
        if actions.shape != self._code.shape:
            raise ValueError(f"{len(self._code)} worlds take as many actions, found {tuple(actions.shape)}")
        if actions.is_cpu and len(actions):  # elsewhere the look would wait for the device
            low, high = (int(bound) for bound in actions.aminmax())
            if low < 0 or high > STAY:
                raise ValueError(f"actions are 0 to {STAY}, found {low} to {high}")
        if self._permuted:
            actions = self._meanings.index_select(0, self._first_action + actions)
        self._code = self._grid.moves.index_select(0, torch.add(actions, self._code, alpha=len(MOVES)))
        rewards = (self._code == self._wanted).long()
        if not self.env.repeats:
            self._cursor = self._cursor + rewards
            self._wanted = self._targets.index_select(0, self._cursor)
        self.states = next_states = self._grid.cells.index_select(0, self._code)
        self.time += 1
        done = self.time == self.env.horizon
        if done:
            self._begin_episode()
        return Step(next_states, rewards, done)

    def optimal_actions(self) -> Tensor:
        """Actions (B,) int64 of who knows the task: first the row, then the column, then stay."""
        actions = self._grid.first_moves(self._code, self._wanted)
        return self._names.index_select(0, self._first_action + actions) if self._permuted else actions

    def best_return(self) -> Tensor:
        """The largest return (B,) int64 of the present episode from its start."""
        return self.env.best_return(self.tasks, self._starts)
