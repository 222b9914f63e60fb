"""Grid worlds that step together, by lookup tables.

Actions are 0 (row + 1), 1 (row - 1), 2 (column + 1), 3 (column - 1) and 4 (stay); moves end at the walls. A state is
(row, column) int64. Every episode has exactly `horizon` steps.
"""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from zoo.common.checks import check_at_least
from zoo.common.tensors import SPLITMIX_INCREMENT, sample_uniforms
from zoo.compressed_ad.envs.base import Env, Transition
from zoo.compressed_ad.envs.spaces import Box, Discrete, Schema

MOVES = ((1, 0), (-1, 0), (0, 1), (0, -1), (0, 0))
STAY = 4
PERMUTATIONS = tuple(itertools.permutations(range(len(MOVES))))  # in lexicographic order
START_STREAM = np.uint64(0xA0761D6478BD642F)  # separates random starts from other random numbers of the same seed


class Grid:
    """Lookup tables of a square grid.

    A cell's code is `row * (2 * size - 1) + column`, so that the difference of two codes gives the distances in rows
    and in columns; `nowhere` is the code of no goal.
    """

    def __init__(self, size: int, device: torch.device) -> None:
        self.width = 2 * size - 1
        self.last = (size - 1) * (self.width + 1)
        self.nowhere = 2 * self.last + 1
        codes = torch.arange(self.last + 1)
        cells = torch.stack([codes // self.width, (codes % self.width).clamp(max=size - 1)], dim=1)
        moved = (cells[:, None] + torch.tensor(MOVES)).clamp(0, size - 1)
        offsets = torch.arange(-self.last, self.last + 1)
        rows = (offsets + size - 1).div(self.width, rounding_mode="floor")
        across = torch.where(offsets > rows * self.width, 2, torch.where(offsets < rows * self.width, 3, STAY))
        toward = torch.where(rows > 0, 0, torch.where(rows < 0, 1, across))
        self.cells = cells.to(device)
        self.moves = self.encode(moved).flatten().to(device)
        self.toward = torch.cat([toward, torch.full((self.last + 1,), STAY)]).to(device)

    def encode(self, cells: Tensor) -> Tensor:
        """Return codes (...) of cells (..., 2)."""
        return cells[..., 0] * self.width + cells[..., 1]

    def first_moves(self, codes: Tensor, goals: Tensor) -> Tensor:
        """Return moves (B,) from codes (B,) towards goals (B,): first rows, then columns, then stay."""
        return self.toward.index_select(0, goals - codes + self.last)


class BatchedGrids:
    """Grids of B tasks (B, F), all at the same step `time` of an episode; `states` are (B, 2) int64."""

    def __init__(self, env: GridEnv, tasks: Tensor, seeds: Sequence[int] | None = None) -> None:
        rows = env.check_tasks(tasks)
        if env.random_start and (seeds is None or len(seeds) != len(tasks)):
            raise ValueError(f"{len(tasks)} environments with random_start need as many seeds: env.start(tasks, seeds)")
        self.env = env
        self.tasks = rows
        self._seeds = np.array(seeds, dtype=np.uint64) ^ START_STREAM if env.random_start else None
        self._grid = grid = Grid(env.grid_size, tasks.device)
        targets = grid.encode(env.goals(self.tasks))
        targets = torch.nn.functional.pad(targets, (0, 1), value=grid.nowhere)
        self._targets = targets.flatten()
        index = torch.arange(len(tasks), device=tasks.device)
        self._first_target = index * targets.shape[1]
        permutations = env.permutations(self.tasks)
        self._permuted = permutations is not None
        if permutations is not None:
            self._first_action = index * len(MOVES)
            self._moves_of_actions = permutations.flatten()
            self._actions_of_moves = permutations.argsort(dim=1).flatten()
        self._never = torch.zeros(len(tasks), dtype=torch.bool, device=tasks.device)
        self._always, self._zeros = ~self._never, self._never.float()
        self._begin_episode()

    def _begin_episode(self) -> None:
        if self._seeds is None:
            self._starts = self.tasks.new_tensor(self.env.start_cell).expand(len(self.tasks), 2)
        else:
            size = self.env.grid_size
            cells = (sample_uniforms(self._seeds.tolist(), 1)[0] * size**2).long()
            self._starts = torch.stack([cells // size, cells % size], dim=1).to(self.tasks.device)
            self._seeds = self._seeds + SPLITMIX_INCREMENT
        self.time = 0
        self.states = self._starts.clone()
        self._code = self._grid.encode(self._starts)
        self._cursor = self._first_target
        self._target = self._targets.index_select(0, self._cursor)

    def step(self, actions: Tensor) -> Transition:
        """Act in every environment, by integers (B,), 0 to 4; the range is checked on the CPU alone."""
        if actions.shape != self._code.shape:
            raise ValueError(f"{len(self._code)} environments take as many actions, found {tuple(actions.shape)}")
        if actions.is_cpu and len(actions):  # elsewhere the check would wait for the device
            low, high = (int(bound) for bound in actions.aminmax())
            if low < 0 or high > STAY:
                raise ValueError(f"actions are 0 to {STAY}, found {low} to {high}")
        if self._permuted:
            actions = self._moves_of_actions.index_select(0, self._first_action + actions)
        self._code = self._grid.moves.index_select(0, torch.add(actions, self._code, alpha=len(MOVES)))
        rewards = torch.eq(self._code, self._target, out=torch.empty_like(self._zeros))  # faster than a conversion
        if not self.env.repeats:
            self._cursor = self._cursor + rewards.long()
            self._target = self._targets.index_select(0, self._cursor)
        self.states = next_states = self._grid.cells.index_select(0, self._code)
        self.time += 1
        if self.time < self.env.horizon:
            return Transition(next_states, rewards, self._never, self._never)
        self._begin_episode()
        return Transition(next_states, rewards, self._never, self._always)

    def optimal_actions(self) -> Tensor:
        """Return the best actions (B,) int64: first the row, then the column, then stay."""
        actions = self._grid.first_moves(self._code, self._target)
        return self._actions_of_moves.index_select(0, self._first_action + actions) if self._permuted else actions


class GridEnv(Env):
    """A family of tasks on one grid: goals to be reached in order, the reward of each being 1.

    Args:
        grid_size: rows and columns, at least 2.
        horizon: steps of an episode, at least 1.
        start: row and column where every episode begins; None for the centre.
        repeats: the goal pays in every step in which the agent is there, else once an episode.
        random_start: sample the cell in which an episode begins; `start` is then without effect.
    """

    num_actions: ClassVar[int] = len(MOVES)

    def __init__(
        self, grid_size: int, horizon: int, start: Sequence[int], repeats: bool, random_start: bool = False
    ) -> None:
        check_at_least(2, grid_size=grid_size)
        check_at_least(1, horizon=horizon)
        if len(start) != 2 or not all(0 <= each < grid_size for each in start):
            raise ValueError(f"start is a row and a column from 0 to {grid_size - 1}, not {list(start)}")
        self.grid_size = grid_size
        self.horizon = horizon
        self.start_cell = (int(start[0]), int(start[1]))
        self.repeats = repeats
        self.random_start = random_start
        cells = Box(0, grid_size - 1, (2,), np.int64)
        self.schema = Schema(cells, Discrete(self.num_actions), horizon, fixed=True, reward=(0, 1))

    def start(self, tasks: Tensor, seeds: Sequence[int] | None = None) -> BatchedGrids:
        """Build environments of these tasks; seeds (B,) are needed for `random_start` alone."""
        return BatchedGrids(self, tasks, seeds)

    @abstractmethod
    def goals(self, tasks: Tensor) -> Tensor:
        """Return cells (B, P, 2) to be visited, one after the other."""

    def arguments(self) -> dict[str, Any]:
        """Return the constructor's arguments as JSON values."""
        return {"grid_size": self.grid_size, "horizon": self.horizon}

    def permutations(self, tasks: Tensor) -> Tensor | None:
        """Return the move of each action (B, 5), or None where actions are moves."""
        return None

    def task_names(self) -> list[str]:
        """Return a label for each feature of a task."""
        if len(self.task_sizes) == 1:
            return ["Permutation of the actions"]
        objects = ("Goal",) if len(self.task_sizes) == 2 else ("Key", "Door")
        return [f"{each} {axis}" for each in objects for axis in ("row", "column")]

    def best_return(self, tasks: Tensor, starts: Tensor) -> Tensor:
        """Return the largest return (B,) int64 of episodes of tasks (B, F) that begin at `starts` (B, 2)."""
        stops = torch.cat([starts[:, None], self.goals(tasks)], dim=1)
        # A goal in the present cell still takes a step.
        arrivals = stops.diff(dim=1).abs().sum(dim=2).clamp(min=1).cumsum(dim=1)
        if self.repeats:
            return (self.horizon + 1 - arrivals[:, 0]).clamp(min=0)
        return (arrivals <= self.horizon).sum(dim=1)


class Darkroom(GridEnv):
    """An unseen goal on a grid; a task is (row, column) of the goal.

    Args:
        grid_size: rows and columns, at least 2.
        horizon: steps of an episode, at least 1.
        start: row and column where every episode begins; None for the centre.
        hard: pay the goal once an episode, not in every step (then usual: a grid of 17).
        random_start: sample the cell in which an episode begins; `start` is then without effect.

    Source: Laskin et al., "In-context Reinforcement Learning with Algorithm Distillation" (2022), section 4.1.
    """

    name = "darkroom"

    def __init__(
        self,
        grid_size: int = 9,
        horizon: int = 20,
        start: tuple[int, int] | None = None,
        hard: bool = False,
        random_start: bool = False,
    ) -> None:
        start = (grid_size // 2, grid_size // 2) if start is None else start
        super().__init__(grid_size, horizon, start, not hard, random_start)
        self.task_sizes = (grid_size, grid_size)

    def goals(self, tasks: Tensor) -> Tensor:
        """Return the goal (B, 1, 2)."""
        return tasks[:, None]

    def arguments(self) -> dict[str, Any]:
        """Return the constructor's arguments as JSON values."""
        start, hard = list(self.start_cell), not self.repeats
        return {**super().arguments(), "start": start, "hard": hard, "random_start": self.random_start}


class DarkroomPermuted(GridEnv):
    """A goal in the far corner and permuted actions; a task is the number of the permutation.

    Args:
        grid_size: rows and columns, at least 2.
        horizon: steps of an episode, at least 1.
    """

    name = "darkroom_permuted"

    def __init__(self, grid_size: int = 9, horizon: int = 20) -> None:
        super().__init__(grid_size, horizon, (0, 0), repeats=True)
        self.task_sizes = (len(PERMUTATIONS),)

    def goals(self, tasks: Tensor) -> Tensor:
        """Return the far corner (B, 1, 2)."""
        return tasks.new_full((len(tasks), 1, 2), self.grid_size - 1)

    def permutations(self, tasks: Tensor) -> Tensor:
        """Return the move of each action (B, 5)."""
        return torch.tensor(PERMUTATIONS, device=tasks.device)[tasks[:, 0]]


class DarkKeyToDoor(GridEnv):
    """An unseen key that pays once, then an unseen door that pays once; a task is (row, column, row, column) of both.

    The state does not show whether the agent has the key. A door in the cell of the key takes another step.

    Args:
        grid_size: rows and columns, at least 2.
        horizon: steps of an episode, at least 1.

    Source: Laskin et al., "In-context Reinforcement Learning with Algorithm Distillation" (2022), section 4.1.
    """

    name = "dark_key_to_door"

    def __init__(self, grid_size: int = 9, horizon: int = 50) -> None:
        super().__init__(grid_size, horizon, (grid_size // 2, grid_size // 2), repeats=False)
        self.task_sizes = (grid_size,) * 4

    def goals(self, tasks: Tensor) -> Tensor:
        """Return key and door (B, 2, 2)."""
        return tasks.unflatten(1, (2, 2))
