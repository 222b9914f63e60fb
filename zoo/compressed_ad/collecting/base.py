"""The base of the algorithms whose learning histories are distilled."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from zoo.common.checks import check_positive, check_within
from zoo.common.tensors import SPLITMIX_INCREMENT, sample_uniforms
from zoo.compressed_ad.envs.base import Env, Transition
from zoo.compressed_ad.envs.grids import GridEnv
from zoo.compressed_ad.envs.spaces import Discrete
from zoo.training.resume import item_seed

STREAMS = 1  # number of the random numbers of a task's streams


class HistoryRequest(NamedTuple):
    """Histories to make, see `Algorithm.histories`."""

    env: Env
    tasks: Tensor
    seeds: Sequence[int]
    streams: int
    steps: int
    advance: Callable[[int], object]

    @property
    def size(self) -> int:
        """Number of histories, B."""
        return len(self.tasks) * self.streams

    def rows(self) -> Tensor:
        """Return the task of each history, (B, F)."""
        return self.tasks.repeat_interleave(self.streams, dim=0)

    def stream_seeds(self, number: int) -> list[int]:
        """Return a seed for each history, of stage `number` of its task."""
        return [item_seed(seed, number, stream) for seed in self.seeds for stream in range(self.streams)]

    def by_task(self, histories: np.ndarray) -> np.ndarray:
        """Reshape histories (B, ...) to (N, streams, ...)."""
        return histories.reshape(len(self.tasks), self.streams, *histories.shape[1:])


@dataclass(frozen=True)
class Algorithm(ABC):
    """Makes the histories of tasks; its fields are its settings."""

    name: ClassVar[str]

    def describe(self) -> dict[str, Any]:
        """Return name and settings as JSON values."""
        return {"name": self.name, **asdict(self)}

    def check(self, env: Env, steps: int) -> None:  # noqa: B027 - not every algorithm refuses something
        """Refuse, before anything is written, an environment or a length that it cannot make histories of."""

    def histories(
        self,
        env: Env,
        tasks: Tensor,
        seeds: Sequence[int],
        streams: int,
        steps: int,
        advance: Callable[[int], object] = lambda count: None,
    ) -> np.ndarray:
        """Make histories from scratch: (N, streams, steps) of the schema's dtype.

        Args:
            tasks: (N, F) int64.
            seeds: of the tasks (N,); the histories of a task depend on its own alone.
            steps: of each history; of grids whole episodes.
            advance: called with how many transitions were added, now and then.
        """
        return self.make(HistoryRequest(env, tasks, seeds, streams, steps, advance))

    @abstractmethod
    def make(self, request: HistoryRequest) -> np.ndarray:
        """Make the histories of a request, as `histories` returns them."""


@dataclass(frozen=True)
class EpsilonGreedy(Algorithm):
    """Base of algorithms that take the best action, or with probability epsilon any.

    Args:
        epsilon: share of random actions at the beginning.
        last_epsilon: the same after `explored`.
        explored: share of the history in which epsilon falls linearly, above 0.
    """

    epsilon: float = 1.0
    last_epsilon: float = 0.05
    explored: float = 0.7

    def __post_init__(self) -> None:
        check_within(0, 1, epsilon=self.epsilon, last_epsilon=self.last_epsilon, explored=self.explored)
        check_positive(explored=self.explored)

    def epsilon_at(self, progress: float) -> float:
        """Return the share of random actions after a share of the history."""
        return self.epsilon + (self.last_epsilon - self.epsilon) * min(1.0, progress / self.explored)

    @staticmethod
    def choose(values: Tensor, uniforms: Tensor, epsilon: float) -> Tensor:
        """Choose actions (B,) by values (B, A) and random numbers (2, B)."""
        allowed = (values == values.amax(dim=1, keepdim=True)) | (uniforms[0] < epsilon)[:, None]
        rank = (uniforms[1] * allowed.sum(dim=1)).long()
        return (allowed.cumsum(dim=1) > rank[:, None]).int().argmax(dim=1)


class StepRandoms:
    """Random numbers of each step, `count` of one generator for each seed (B,)."""

    def __init__(self, seeds: Sequence[int], count: int) -> None:
        self._states = np.array(seeds, dtype=np.uint64)
        self._count = count
        self._increment = np.array([count], dtype=np.uint64) * SPLITMIX_INCREMENT  # an array wraps without a warning

    def next(self) -> Tensor:
        """Return numbers of the next step, (count, B) float64 in (0, 1)."""
        uniforms = sample_uniforms(self._states.tolist(), self._count)
        self._states += self._increment
        return uniforms


class StateIndex:
    """Numbers of the states of B environments: Discrete ones as they are, of grids the cells.

    Where the goals of a grid pay once an episode, there is a number for each cell and count of goals reached.
    """

    def __init__(self, env: Env, histories: int) -> None:
        self._size, self._levels = 0, 1
        self._reached = torch.zeros(histories, dtype=torch.int64)
        if isinstance(env, GridEnv):
            self._size = env.grid_size
            self._levels = 1 if env.repeats else env.goals(env.tasks()[:1]).shape[1] + 1
            self.count = env.grid_size**2 * self._levels
        else:
            assert isinstance(env.schema.observation, Discrete)
            self.count = int(env.schema.observation.n)

    def of_states(self, states: Tensor) -> Tensor:
        """Return numbers (B,) int64 of states (B, ...)."""
        if not self._size:
            return states
        cells = states[:, 0] * self._size + states[:, 1]
        return cells if self._levels == 1 else cells * self._levels + self._reached

    def advance(self, transition: Transition) -> Tensor:
        """Return numbers (B,) of the next states, and reset the counts where an episode ended."""
        if self._levels > 1:
            self._reached = self._reached + transition.rewards.long()
        numbers = self.of_states(transition.next_states)
        self._reached = self._reached.masked_fill(transition.dones, 0)
        return numbers
