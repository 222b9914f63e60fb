"""Learning rates below any schedule: a multiplier that callbacks lower, and one that lowers it on a plateau."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any, ClassVar, Literal
from weakref import WeakKeyDictionary

import lightning as L
from torch.optim import Optimizer

from zoo.common.checks import check_at_least, check_between, check_one_of, check_positive, check_within
from zoo.training.strategies.sharding import hides_gradients

log = logging.getLogger(__name__)

_FACTORS: WeakKeyDictionary[Optimizer, list[Callable[[], float]]] = WeakKeyDictionary()


def scale_rates(optimizer: Optimizer, factor: Callable[[], float]) -> None:
    """Multiply an optimizer's rates by a factor that may change, in effect during its steps only.

    Between steps the rates are the schedule's, so it neither overwrites the factor nor takes it for its own. Several
    factors multiply.

    Args:
        factor: asked at each step, > 0.
    """
    if optimizer in _FACTORS:
        _FACTORS[optimizer].append(factor)
        return
    _FACTORS[optimizer] = [factor]
    scheduled: list[Any] = []

    def before(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        scheduled[:] = [group["lr"] for group in optimizer.param_groups]
        product = rate_factor(optimizer)
        for group in optimizer.param_groups:
            group["lr"] = group["lr"] * product

    def after(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        for group, rate in zip(optimizer.param_groups, scheduled, strict=True):
            group["lr"] = rate

    optimizer.register_step_pre_hook(before)
    optimizer.register_step_post_hook(after)


def rate_factor(optimizer: Optimizer) -> float:
    """Return the product of the factors that `scale_rates` applies in an optimizer's next step."""
    return math.prod(factor() for factor in _FACTORS.get(optimizer, ()))


class Counting(L.Callback):
    """Base of callbacks with counters in the checkpoint, and a multiplier of the learning rates."""

    counters: ClassVar[tuple[str, ...]] = ()
    floor = 0.0
    multiplier = 1.0

    @property
    def state_key(self) -> str:
        """Same key whatever the arguments, so that a resume may change them."""
        return type(self).__name__

    def state_dict(self) -> dict[str, Any]:
        """The counters."""
        return {name: getattr(self, name) for name in self.counters}

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Refuse strategies that step an optimizer of their own."""
        if hides_gradients(trainer):
            name = type(trainer.strategy).__name__
            raise ValueError(f"{type(self).__name__} does not work with {name}: use --config trainer/fsdp")

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the counters."""
        for name in self.counters:
            setattr(self, name, state_dict[name])

    def hook_rates(self, trainer: L.Trainer) -> None:
        """Hook the multiplier into the optimizers."""
        for optimizer in trainer.optimizers:
            scale_rates(optimizer, lambda: self.multiplier)

    def lower(self, factor: float) -> None:
        """Lower the multiplier, to `floor` at the most."""
        self.multiplier = max(self.floor, self.multiplier * factor)


class Plateau(Counting):
    """Multiplies the learning rates by a factor after validations without improvement.

    torch's ReduceLROnPlateau sets the rates themselves, and any other schedule would overwrite it one step later. To
    end training instead, Lightning's EarlyStopping serves as it is, with validations by batches and over a resume:

        - class_path: lightning.pytorch.callbacks.EarlyStopping
          init_args: {monitor: val/loss, patience: 10}

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

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Hook the multiplier into the optimizers."""
        self.hook_rates(trainer)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Look at the metric."""
        if trainer.sanity_checking or trainer.state.fn != "fit":
            return
        if self.monitor not in trainer.callback_metrics:
            known = ", ".join(sorted(map(str, trainer.callback_metrics))) or "none"
            raise ValueError(f"Plateau: monitor {self.monitor!r} is not logged; logged metrics: {known}")
        score = self.sign * float(trainer.callback_metrics[self.monitor])
        if score < self.best - self.min_delta:
            self.best, self.waited = score, 0
            return
        self.waited += 1
        if self.waited >= self.patience:
            self.waited = 0
            self.lower(self.factor)
            said = "%s did not improve in %d validations: learning rates are now times %.3g"
            log.warning(said, self.monitor, self.patience, self.multiplier)

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *_: Any) -> None:
        """Log the multiplier."""
        pl_module.log("train/plateau_lr_multiplier", self.multiplier, on_step=True, on_epoch=False)
