"""Learning rates below any schedule: a multiplier that callbacks reduce, and one that reduces it on a plateau."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any, ClassVar, Literal

import lightning as L
from torch.optim import Optimizer

from zoo.common.checks import check_at_least, check_between, check_one_of, check_positive, check_within
from zoo.training.strategies.sharding import hides_gradients

log = logging.getLogger(__name__)


def multiply_lr(optimizer: Optimizer, factor: Callable[[], float]) -> None:
    """Multiply an optimizer's rates during its steps only; between them they are the schedule's.

    Args:
        factor: called at each step; returns a number > 0.
    """
    scheduled: list[Any] = []

    def multiply(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        scheduled[:] = [group["lr"] for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            group["lr"] = group["lr"] * factor()

    def restore(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        for group, rate in zip(optimizer.param_groups, scheduled, strict=True):
            group["lr"] = rate

    optimizer.register_step_pre_hook(multiply)
    optimizer.register_step_post_hook(restore)


def lr_multiplier(trainer: L.Trainer) -> float:
    """Return the product of the multipliers of all callbacks."""
    return math.prod(each.multiplier for each in _multipliers(trainer))


def _multipliers(trainer: L.Trainer) -> list[LrMultiplier]:
    callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
    return [each for each in callbacks if isinstance(each, LrMultiplier)]


class LrMultiplier(L.Callback):
    """Base of callbacks with counters in the checkpoint, and a multiplier of the learning rates."""

    counters: ClassVar[tuple[str, ...]] = ()
    floor = 0.0
    multiplier = 1.0

    @property
    def state_key(self) -> str:
        """Same key whatever the arguments, so that a resume may change them."""
        return type(self).__name__

    def state_dict(self) -> dict[str, Any]:
        """Return the counters."""
        return {name: getattr(self, name) for name in self.counters}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the counters."""
        for name in self.counters:
            setattr(self, name, state_dict[name])

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Refuse strategies that step an optimizer of their own."""
        if hides_gradients(trainer):
            name = type(trainer.strategy).__name__
            raise ValueError(f"{type(self).__name__} does not work with {name}: use --config trainer/fsdp")

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Apply all multipliers to the optimizers, once."""
        if self is _multipliers(trainer)[0]:
            for optimizer in trainer.optimizers:
                multiply_lr(optimizer, lambda: lr_multiplier(trainer))

    def reduce(self, factor: float) -> None:
        """Reduce the multiplier, to `floor` at the lowest."""
        self.multiplier = max(self.floor, self.multiplier * factor)


class Plateau(LrMultiplier):
    """Multiplies the learning rates by a factor after validations without improvement.

    torch's ReduceLROnPlateau sets the rates themselves, and any other schedule would overwrite it one step later.
    Lightning's EarlyStopping ends training instead.

    Args:
        monitor: metric key, e.g. `val/loss`.
        factor: of the rates on a plateau, in (0, 1).
        patience: validations in a row without improvement that make a plateau.
        mode: "min" or "max".
        min_delta: a change of less is no improvement, >= 0.
        floor: smallest multiplier.

    Raises:
        ValueError: when a number is out of its range; in validation, when the metric is not logged.
    """

    counters = ("multiplier", "best", "waited")

    def __init__(
        self,
        monitor: str = "val/loss",
        factor: float = 0.5,
        patience: int = 10,
        mode: Literal["min", "max"] = "min",
        min_delta: float = 0.0,
        floor: float = 0.01,
    ) -> None:
        check_between(0, 1, factor=factor)
        check_positive(floor=floor)
        check_within(0, 1, floor=floor)
        check_at_least(1, patience=patience)
        check_at_least(0, min_delta=min_delta)
        check_one_of(("min", "max"), mode=mode)
        self.monitor = monitor
        self.factor = factor
        self.patience = patience
        self.sign = 1.0 if mode == "min" else -1.0
        self.min_delta = min_delta
        self.floor = floor
        self.best = math.inf
        self.waited = 0

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Compare the metric with the best."""
        if trainer.sanity_checking or trainer.state.fn != "fit":
            return
        if self.monitor not in trainer.callback_metrics:
            names = ", ".join(sorted(map(str, trainer.callback_metrics))) or "none"
            raise ValueError(f"Plateau: monitor {self.monitor!r} is not logged; logged metrics: {names}")
        score = self.sign * float(trainer.callback_metrics[self.monitor])
        if score < self.best - self.min_delta:
            self.best, self.waited = score, 0
            return
        self.waited += 1
        if self.waited >= self.patience:
            self.waited = 0
            self.reduce(self.factor)
            message = "%s did not improve in %d validations: learning rates are now times %.3g"
            log.warning(message, self.monitor, self.patience, self.multiplier)
