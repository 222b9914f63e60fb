"""Factors on learning rates that no schedule and no checkpoint sees."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from torch.optim import Optimizer

_FACTORS: WeakKeyDictionary[Optimizer, list[Callable[[], float]]] = WeakKeyDictionary()


def scale_rates(optimizer: Optimizer, factor: Callable[[], float]) -> None:
    """Multiply an optimizer's rates by a factor that may change, in effect during its steps only.

    Between steps the rates are the schedule's, so it neither overwrites the factor nor takes it for its own. Several
    factors multiply.

    Args:
        optimizer: whose rates are scaled.
        factor: asked at each step, > 0.
    """
    if optimizer in _FACTORS:
        _FACTORS[optimizer].append(factor)
        return
    _FACTORS[optimizer] = factors = [factor]
    scheduled: list[Any] = []

    def before(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        scheduled[:] = [group["lr"] for group in optimizer.param_groups]
        product = math.prod(each() for each in factors)
        for group in optimizer.param_groups:
            group["lr"] = group["lr"] * product

    def after(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        for group, rate in zip(optimizer.param_groups, scheduled, strict=True):
            group["lr"] = rate

    optimizer.register_step_pre_hook(before)
    optimizer.register_step_post_hook(after)
