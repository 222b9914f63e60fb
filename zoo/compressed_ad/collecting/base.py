"""The base of the algorithms whose learning histories are distilled."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from torch import Tensor

from zoo.compressed_ad.envs.base import Env
from zoo.training.resume import item_seed


class HistoryRequest(NamedTuple):
    """Histories to make.

    tasks: (N, F) int64.
    seeds: of the tasks (N,); the histories of a task depend on its own alone.
    streams: histories of each task.
    steps: of each history; of grids whole episodes.
    advance: called with how many transitions were added, now and then.
    """

    env: Env
    tasks: Tensor
    seeds: Sequence[int]
    streams: int
    steps: int
    advance: Callable[[int], object] = lambda count: None

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

    @abstractmethod
    def histories(self, request: HistoryRequest) -> np.ndarray:
        """Make histories from scratch: (N, streams, steps) of the schema's dtype."""
