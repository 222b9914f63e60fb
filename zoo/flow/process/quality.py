"""What judges the samples of a flow while it trains."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from zoo.common.checks import check_at_least

Draw = Callable[[list[int] | None, Sequence[int]], Tensor]
"""Samples (B, *sample_shape), float32 on the CPU, of labels (None without classes) and seeds."""


class SampleMetrics(ABC):
    """Figures of samples, computed at every n-th validation and in every test.

    Args:
        every: n. At the other validations the figures are not logged, and no checkpoint is saved for them.
    """

    def __init__(self, every: int = 1) -> None:
        check_at_least(1, every=every)
        self.every = every

    @property
    @abstractmethod
    def names(self) -> tuple[str, ...]:
        """Names of the figures, `frechet` for `val/frechet`."""

    @abstractmethod
    def compute(self, draw: Draw, num_classes: int, train_set: Any, val_set: Any) -> dict[str, float]:
        """Draw samples and judge them by sets that have `examples`, as those of `FlowData` do."""
