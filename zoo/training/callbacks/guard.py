"""Guards of a training: bad batches are skipped, and learning rates reduced below any schedule."""

from __future__ import annotations

import logging
import math
import statistics
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal

import lightning as L
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from zoo.common.checks import check_above, check_at_least, check_between, check_one_of
from zoo.training.optimizers import short_window_factor
from zoo.training.strategies.sharding import gradient_norm

log = logging.getLogger(__name__)


def multiply_lr(optimizer: Optimizer, factor: Callable[[], float]) -> None:
    """Multiply an optimizer's rates by what `factor` returns, during its steps only, so below any schedule."""
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
    callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
    return math.prod(getattr(each, "multiplier", 1.0) for each in callbacks)


class LrMultiplier(L.Callback):
    """Base of callbacks with a multiplier of the learning rates, and counters in the checkpoint."""

    counters: ClassVar[tuple[str, ...]] = ()
    floor = 0.0
    multiplier = 1.0

    def state_dict(self) -> dict[str, Any]:
        """Return the counters."""
        return {name: getattr(self, name) for name in self.counters}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the counters."""
        for name in self.counters:
            setattr(self, name, state_dict[name])

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Refuse DeepSpeed, whose engine holds gradients and optimizer."""
        if getattr(trainer.strategy, "hides_gradients", False):
            name = type(trainer.strategy).__name__
            raise ValueError(f"{type(self).__name__} does not work with {name}: use --config trainer/fsdp")

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Apply all multipliers to the optimizers, once."""
        callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
        if self is next(each for each in callbacks if isinstance(each, LrMultiplier)):
            for optimizer in trainer.optimizers:
                multiply_lr(optimizer, lambda: lr_multiplier(trainer))

    def reduce(self, factor: float) -> None:
        """Reduce the multiplier, to `floor` at the lowest."""
        self.multiplier = max(self.floor, self.multiplier * factor)


class Plateau(LrMultiplier):
    """Multiplies the learning rates by a factor after validations without improvement, below any schedule.

    Args:
        monitor: metric key, e.g. `val/loss`.
        factor: of the rates on a plateau, in (0, 1).
        patience: validations in a row without improvement that make a plateau.
        mode: "min" or "max".
        floor: smallest multiplier.
    """

    counters = ("multiplier", "best", "waited")

    def __init__(
        self,
        monitor: str = "val/loss",
        factor: float = 0.5,
        patience: int = 10,
        mode: Literal["min", "max"] = "min",
        floor: float = 0.01,
    ) -> None:
        check_between(0, 1, factor=factor, floor=floor)
        check_at_least(1, patience=patience)
        check_one_of(("min", "max"), mode=mode)
        self.monitor = monitor
        self.factor = factor
        self.patience = patience
        self.sign = 1.0 if mode == "min" else -1.0
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
        if self.monitor in getattr(pl_module, "undefined_metrics", ()):
            return
        if score < self.best:
            self.best, self.waited = score, 0
            return
        self.waited += 1
        if self.waited >= self.patience:
            self.waited = 0
            self.reduce(self.factor)
            message = "%s did not improve in %d validations: learning rates are now times %.3g"
            log.warning(message, self.monitor, self.patience, self.multiplier)


class DivergedError(RuntimeError):
    """Too many bad batches in a row."""


class LossGuard(LrMultiplier):
    """Skips batches whose loss or gradient is not finite, or whose loss explodes; stops when they do not end.

    Gradients of a bad batch are dropped before the optimizer sees them, so neither weights nor moments change. With
    several optimizers (GAN) a bad discriminator loss also drops the generator's step on that batch. Losses are
    averaged over ranks first, so that all ranks decide alike. Under fp16 an overflow of the scaled gradient is left to
    the scaler, unless the scale has fallen below 1. Costs one host synchronisation per optimizer step.

    Args:
        action: what happens besides skipping: "skip" nothing; "reduce" lowers the learning rates by a multiplier on
            top of any schedule.
        factor: a loss above `factor` times the running median of good losses is an explosion.
        window: number of good losses in the median; the rule holds once so many were seen and the median is positive.
        limit: a loss above this is an explosion; None for no limit.
        patience: consecutive bad batches at which training stops.
        reduce_factor: multiplier per bad batch for "reduce", in (0, 1).
        floor: smallest learning-rate multiplier.
    """

    counters: ClassVar[tuple[str, ...]] = ("skipped_batches", "multiplier", "in_a_row")

    def __init__(
        self,
        action: Literal["skip", "reduce"] = "skip",
        factor: float = 10.0,
        window: int = 100,
        limit: float | None = None,
        patience: int = 10,
        reduce_factor: float = 0.5,
        floor: float = 0.01,
    ) -> None:
        check_one_of(("skip", "reduce"), action=action)
        check_above(1, factor=factor)
        check_between(0, 1, reduce_factor=reduce_factor, floor=floor)
        check_at_least(1, window=window, patience=patience)
        self.action = action
        self.factor = factor
        self.window = window
        self.limit = limit
        self.patience = patience
        self.reduce_factor = reduce_factor
        self.floor = floor
        self.skipped_batches = 0
        self.in_a_row = 0
        self.skipped = False
        self._stepped = False
        self._losses: dict[int, deque[float]] = {}  # of good steps, by optimizer
        self._pending: list[Tensor] = []
        self._reasons: list[str] = []
        self._statistics: list[tuple[Tensor, Tensor]] = []

    def state_dict(self) -> dict[str, Any]:
        """Return counters and losses."""
        return super().state_dict() | {"losses": {index: list(losses) for index, losses in self._losses.items()}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore counters and losses."""
        super().load_state_dict(state_dict)
        self._losses = {index: deque(losses, self.window) for index, losses in state_dict["losses"].items()}

    def on_train_batch_start(self, trainer: L.Trainer, pl_module: L.LightningModule, *_: Any) -> None:
        """Reset; save running statistics, which the forward pass itself changes."""
        self.skipped = self._stepped = False
        if not self._pending:  # otherwise this batch is accumulated on earlier ones, and their step is one
            norms = [m for m in pl_module.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.training]
            self._statistics = [(buffer, buffer.clone()) for norm in norms for buffer in norm.buffers()]

    def on_before_backward(self, trainer: L.Trainer, pl_module: L.LightningModule, loss: Tensor) -> None:
        """Note the loss, unscaled, for the optimizer step that it belongs to."""
        self._pending.append(unscaled(trainer, loss) * short_window_factor(trainer))

    def on_before_optimizer_step(self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: Optimizer) -> None:
        """Check the step; drop its gradients when it, or an earlier step on this batch, is bad."""
        self._stepped = True
        index = next(i for i, each in enumerate(trainer.optimizers) if each is optimizer)
        norm = gradient_norm(trainer, optimizer)
        total = torch.stack(self._pending).sum() if self._pending else torch.zeros(())
        self._pending.clear()
        values = torch.stack([value.to(pl_module.device, torch.float32) for value in (total, norm)])
        loss, gradient = trainer.strategy.reduce(values, reduce_op="mean").tolist()
        reason = self._find_fault(trainer, index, loss, gradient)
        if reason is not None:
            self._reasons.append(reason)
            self.skipped = True
        else:
            self._losses.setdefault(index, deque(maxlen=self.window)).append(loss)
        if self.skipped:
            optimizer.zero_grad(set_to_none=True)

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count; act on a bad batch."""
        if self.skipped:
            self.skipped_batches += 1
            self.in_a_row += 1
            for buffer, before in self._statistics:
                buffer.copy_(before)
            self._handle_bad_batch(_describe_batch(trainer, batch, batch_idx, self._reasons))
            self._reasons = []
        elif self._stepped:
            self.in_a_row = 0
        values = {"train/skipped_batches": float(self.skipped_batches)}
        if self.action == "reduce":
            values["train/guard_lr_multiplier"] = self.multiplier
        pl_module.log_dict(values, on_step=True, on_epoch=False)

    def _find_fault(self, trainer: L.Trainer, index: int, loss: float, gradient: float) -> str | None:
        """Return why this step is bad, or None."""
        name = f"the loss of optimizer {index}" if len(trainer.optimizers) > 1 else "the loss"
        if not math.isfinite(loss):
            return f"{name} is {loss}"
        if self.limit is not None and loss > self.limit:
            return f"{name} is {loss:.4g}, above the limit of {self.limit:g}"
        history = self._losses.get(index, ())
        median = statistics.median(history) if len(history) == self.window else 0.0
        if 0 < median * self.factor < loss:
            return f"{name} is {loss:.4g}, above {self.factor:g} times the running median of {median:.4g}"
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        if not math.isfinite(gradient) and (scaler is None or scaler.get_scale() < 1):
            return f"the gradient norm behind {name} is {gradient}"
        return None

    def _handle_bad_batch(self, message: str) -> None:
        if self.in_a_row >= self.patience:
            raise DivergedError(
                f"{self.in_a_row} bad batches in a row, the last: {message}. Lower the learning rate, clip gradients, "
                "or check these files; the last checkpoint is from before"
            )
        if self.action == "reduce":
            self.reduce(self.reduce_factor)
            message += f"; learning rates are now times {self.multiplier:.3g}"
        log.warning("skipped %s", message)


def unscaled(trainer: L.Trainer, loss: Tensor) -> Tensor:
    """Return a loss before fp16's scale; scaling a one yields the scale without waiting for the device."""
    scaler = getattr(trainer.precision_plugin, "scaler", None)
    loss = loss.detach().float()
    return loss if scaler is None else loss / scaler.scale(torch.ones_like(loss))


def _describe_batch(trainer: L.Trainer, batch: Any, batch_idx: int, reasons: list[str]) -> str:
    """Return a batch's number, the reasons, the terms that are not finite, and its items where it carries names."""
    text = f"batch {batch_idx} of epoch {trainer.current_epoch}: {'; '.join(reasons)}"
    terms = {key: float(value) for key, value in trainer.callback_metrics.items() if key.startswith("train/")}
    if nonfinite := [f"{key} = {value}" for key, value in terms.items() if not math.isfinite(value)]:
        text += f"; terms: {', '.join(nonfinite)}"
    if names := batch.get("names") if isinstance(batch, Mapping) else getattr(batch, "names", None):
        text += f"; items: {', '.join(map(str, names))}"
    return text
