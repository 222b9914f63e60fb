"""What makes learning histories: the base of all algorithms that are distilled."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from zoo.compressed_ad.envs.base import Env


@dataclass(frozen=True)
class Algorithm(ABC):
    """Makes the histories of tasks; its fields are its settings."""

    name: ClassVar[str]

    def describe(self) -> dict[str, Any]:
        """Name and settings as JSON values."""
        return {"name": self.name, **asdict(self)}

    def check(self, env: Env, steps: int) -> None:  # noqa: B027 - one that takes all refuses nothing
        """Refuse, before anything is written, an environment or a length that it cannot make histories of."""

    @abstractmethod
    def histories(
        self,
        env: Env,
        tasks: Tensor,
        seeds: Sequence[int],
        streams: int,
        steps: int,
        advance: Callable[[int], object] | None = None,
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
