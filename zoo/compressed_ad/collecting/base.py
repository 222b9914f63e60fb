"""What makes learning histories: the base of all algorithms that are distilled."""

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
from zoo.compressed_ad.envs.base import Env
from zoo.compressed_ad.envs.grids import GridEnv
from zoo.compressed_ad.envs.schema import Discrete
from zoo.training.resume import item_seed

STREAMS = 1  # number of a task's draws


class Request(NamedTuple):
    """Histories that are asked for, see `Algorithm.histories`."""

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
        """The task of each history, (B, F)."""
        return self.tasks.repeat_interleave(self.streams, dim=0)

    def stream_seeds(self, number: int) -> list[int]:
        """A seed for each history, out of draws `number` of its task."""
        return [item_seed(seed, number, stream) for seed in self.seeds for stream in range(self.streams)]

    def by_task(self, histories: np.ndarray) -> np.ndarray:
        """Bring histories (B, ...) into the order (N, streams, ...)."""
        return histories.reshape(len(self.tasks), self.streams, *histories.shape[1:])


@dataclass(frozen=True)
class Algorithm(ABC):
    """Makes the histories of tasks; its fields are its settings."""

    name: ClassVar[str]

    def describe(self) -> dict[str, Any]:
        """Name and settings as JSON values."""
        return {"name": self.name, **asdict(self)}

    def check(self, env: Env, steps: int) -> None:  # noqa: B027 - one that takes all refuses nothing
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
        """Make histories from scratch.

        Args:
            tasks: (N, F) int64.
            seeds: of the tasks (N,); what becomes of a task depends on its own alone.
            steps: of each history; of grids whole episodes.
            advance: called with how many transitions have been added, now and then.

        Returns:
            (N, streams, steps, 7) int8 of grids, see `zoo.compressed_ad.data.history.COLUMNS`; of other environments
            (N, streams, steps) of the schema's dtype.
        """
        return self.make(Request(env, tasks, seeds, streams, steps, advance))

    @abstractmethod
    def make(self, request: Request) -> np.ndarray:
        """The histories of a request, as `histories` returns them."""


@dataclass(frozen=True)
class EpsilonGreedy(Algorithm):
    """Base of those that learn what actions are worth and do the best, or with probability epsilon any.

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
        """Share of random actions after a share of the history."""
        return self.epsilon + (self.last_epsilon - self.epsilon) * min(1.0, progress / self.explored)

    @staticmethod
    def choose(values: Tensor, uniforms: Tensor, epsilon: float) -> Tensor:
        """Actions (B,) by values (B, A): one of the best, or any with probability epsilon; `uniforms` is (2, B)."""
        allowed = (values == values.amax(dim=1, keepdim=True)) | (uniforms[0] < epsilon)[:, None]
        rank = (uniforms[1] * allowed.sum(dim=1)).long()
        return (allowed.cumsum(dim=1) > rank[:, None]).int().argmax(dim=1)


class StepDraws:
    """Random numbers of each step, of one generator for each seed.

    Args:
        seeds: (B,).
        count: numbers that a step takes.
    """

    def __init__(self, seeds: Sequence[int], count: int) -> None:
        self._states = np.array(seeds, dtype=np.uint64)
        self._count = count
        self._ahead = (
            np.array([count], dtype=np.uint64) * SPLITMIX_INCREMENT
        )  # an array may overflow silently, which is meant

    def next(self) -> Tensor:
        """Of the next step, (count, B) float64 in (0, 1)."""
        uniforms = sample_uniforms(self._states.tolist(), self._count)
        self._states += self._ahead
        return uniforms


class StateNumbers:
    """States as numbers: Discrete ones as they are, of grids the cells.

    Where goals pay once an episode, there is a number for each cell and count of goals found so far, without which
    nobody can distinguish the way to the key from that to the door.

    Args:
        env: a grid, or one of Discrete states.
        histories: environments in lock-step, B.
    """

    def __init__(self, env: Env, histories: int) -> None:
        self._size, self._levels = 0, 1
        self._found = torch.zeros(histories, dtype=torch.int64)
        if isinstance(env, GridEnv):
            self._size = env.grid_size
            self._levels = 1 if env.repeats else env.goals(env.tasks()[:1]).shape[1] + 1
            self.count = env.grid_size**2 * self._levels
        else:
            assert isinstance(env.schema.observation, Discrete)
            self.count = env.schema.observation.n

    def look(self, states: Tensor) -> Tensor:
        """Numbers (B,) int64 of states (B, ...) as they are now."""
        if not self._size:
            return states
        cells = states[:, 0] * self._size + states[:, 1]
        return cells if self._levels == 1 else cells * self._levels + self._found

    def follow(self, taken: Any) -> Tensor:
        """Numbers (B,) of where a step of the environments led to; what was found is forgotten at an episode's end."""
        if self._levels > 1:
            self._found = self._found + taken.rewards
        after = self.look(taken.next_states)
        self._found = self._found.masked_fill(taken.dones, 0)
        return after
