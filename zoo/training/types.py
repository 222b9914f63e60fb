"""Types of the slots that recipes fill: callables that still lack their parameters or their optimizer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

OptimizerCallable: TypeAlias = Callable[[Iterable], Optimizer]
SchedulerCallable: TypeAlias = Callable[[Optimizer], LRScheduler]
