"""A guard against diverging losses: bad batches are thrown away before they reach weights or optimizer states."""

from __future__ import annotations

import copy
import logging
import math
import statistics
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal
from weakref import WeakKeyDictionary

import lightning as L
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from zoo.training.callbacks.checkpoint import SHARDING_STRATEGIES
from zoo.training.callbacks.ema import EMA

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


log = logging.getLogger(__name__)


class DivergedError(RuntimeError):
    """Too many bad batches in a row."""


class LossGuard(L.Callback):
    """Skips batches whose loss or gradient is not finite, or whose loss explodes; stops when they do not end.

    Gradients of a bad batch are dropped before the optimizer sees them, so neither weights nor moments change. With
    several optimizers (GAN) a bad discriminator loss also drops the generator's step on that batch. Losses are
    averaged over ranks first, so that all ranks decide alike. Costs one host synchronisation per optimizer step.

    Under fp16 an overflow of the scaled gradient is the scaler's everyday business and not counted, unless the scale
    has fallen below 1. A snapshot for `roll_back` lives in memory, is not saved, and does not cover an EMA.

    Args:
        action: what happens besides skipping: "skip" nothing; "reduce" lowers the learning rates by a multiplier on
            top of any schedule; "roll_back" returns to the last snapshot of weights and optimizers.
        factor: a loss above `factor` times the running median of good losses is an explosion.
        window: number of good losses in the median; the rule holds once so many were seen and the median is positive.
        limit: a loss above this is an explosion; None for no limit.
        patience: consecutive bad batches at which training stops.
        reduce_factor: multiplier per bad batch for "reduce", in (0, 1).
        floor: smallest learning-rate multiplier.
        snapshot_every: good batches between snapshots for "roll_back".

    Raises:
        ValueError: when a number is out of its range.
        DivergedError: while training, after `patience` bad batches in a row.
    """

    def __init__(
        self,
        action: Literal["skip", "reduce", "roll_back"] = "skip",
        factor: float = 10.0,
        window: int = 100,
        limit: float | None = None,
        patience: int = 10,
        reduce_factor: float = 0.5,
        floor: float = 0.01,
        snapshot_every: int = 100,
    ) -> None:
        if action not in ("skip", "reduce", "roll_back"):
            raise ValueError(f"LossGuard: action is 'skip', 'reduce' or 'roll_back', not {action!r}")
        if factor <= 1 or not 0 < reduce_factor < 1 or not 0 < floor <= 1:
            raise ValueError("LossGuard: factor > 1, 0 < reduce_factor < 1 and 0 < floor <= 1 are needed")
        if min(window, patience, snapshot_every) < 1:
            raise ValueError("LossGuard: window, patience and snapshot_every are at least 1")
        self.action = action
        self.factor = factor
        self.window = window
        self.limit = limit
        self.patience = patience
        self.reduce_factor = reduce_factor
        self.floor = floor
        self.snapshot_every = snapshot_every
        self.trips = 0
        self.multiplier = 1.0
        self.skipped = False
        self._scales = action == "reduce"
        self._stepped = False
        self._in_a_row = 0
        self._good = 0
        self._losses: dict[int, deque[float]] = {}
        self._pending: list[Tensor] = []
        self._reasons: list[str] = []
        self._statistics: list[tuple[Tensor, Tensor]] = []
        self._snapshot: Snapshot | None = None

    @property
    def state_key(self) -> str:
        """Same key whatever the arguments, so that a resume may change them."""
        return "LossGuard"

    def state_dict(self) -> dict[str, Any]:
        """Counters and windows."""
        return {
            "trips": self.trips,
            "multiplier": self.multiplier,
            "in_a_row": self._in_a_row,
            "good": self._good,
            "losses": {index: list(losses) for index, losses in self._losses.items()},
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore counters and windows."""
        self.trips, self.multiplier = state_dict["trips"], state_dict["multiplier"]
        self._in_a_row, self._good = state_dict["in_a_row"], state_dict["good"]
        self._losses = {index: deque(losses, self.window) for index, losses in state_dict["losses"].items()}

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Take the first snapshot, or hook the multiplier into the optimizers."""
        if self.action == "roll_back":
            self._snapshot = Snapshot(trainer, pl_module)
        if self._scales:
            for optimizer in trainer.optimizers:
                scale_rates(optimizer, lambda: self.multiplier)

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Forget the last batch's verdict; remember running statistics, which the forward pass itself changes."""
        self.skipped = self._stepped = False
        if not self._pending:  # otherwise this batch is accumulated on earlier ones, and their step is one
            norms = [m for m in pl_module.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.training]
            self._statistics = [(buffer, buffer.clone()) for norm in norms for buffer in norm.buffers()]

    def on_before_backward(self, trainer: L.Trainer, pl_module: L.LightningModule, loss: Tensor) -> None:
        """Note the loss, unscaled, for the optimizer step that it belongs to."""
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        loss = loss.detach().float()
        if scaler is not None:
            # scaling a one yields the scale without waiting for the device
            loss = loss / scaler.scale(torch.ones_like(loss))
        self._pending.append(loss)

    def on_before_optimizer_step(self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: Optimizer) -> None:
        """Judge the step; drop its gradients when it, or an earlier step on this batch, is bad."""
        self._stepped = True
        index = next(i for i, each in enumerate(trainer.optimizers) if each is optimizer)
        parameters = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        norm = torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        total = torch.stack(self._pending).sum() if self._pending else torch.zeros(())
        self._pending.clear()
        values = torch.stack([value.to(pl_module.device, torch.float32) for value in (total, norm)])
        loss, gradient = trainer.strategy.reduce(values, reduce_op="mean").tolist()
        reason = self._judge(trainer, index, loss, gradient)
        if reason is not None:
            self._reasons.append(reason)
            self.skipped = True
        else:
            self._remember(index, loss, gradient)
        if self.skipped:
            for parameter in parameters:
                parameter.grad = None

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count; act on a bad batch; take a snapshot after enough good ones."""
        if self.skipped:
            self.trips += 1
            self._in_a_row += 1
            message = _describe(trainer, batch, batch_idx, self._reasons)
            self._reasons.clear()
            for buffer, before in self._statistics:
                buffer.copy_(before)
            self._act(trainer, pl_module, message)
        elif self._stepped:
            self._in_a_row = 0
            self._good += 1
            self._approve(trainer, pl_module)
        pl_module.log("train/guard_trips", float(self.trips), on_step=True, on_epoch=False)
        if self._scales:
            pl_module.log("train/guard_lr_multiplier", self.multiplier, on_step=True, on_epoch=False)

    def _judge(self, trainer: L.Trainer, index: int, loss: float, gradient: float) -> str | None:
        """Why this step is bad, or None."""
        what = _loss_of(trainer, index)
        if not math.isfinite(loss):
            return f"{what} is {loss}"
        if self.limit is not None and loss > self.limit:
            return f"{what} is {loss:.4g}, above the limit of {self.limit:g}"
        seen = self._losses.get(index, ())
        median = statistics.median(seen) if len(seen) == self.window else 0.0
        if 0 < median * self.factor < loss:
            return f"{what} is {loss:.4g}, above {self.factor:g} times the running median of {median:.4g}"
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        if not math.isfinite(gradient) and (scaler is None or scaler.get_scale() < 1):
            return f"the gradient norm behind {what} is {gradient}"
        return None

    def _remember(self, index: int, loss: float, gradient: float) -> None:
        """Note the values of a good step."""
        self._losses.setdefault(index, deque(maxlen=self.window)).append(loss)

    def _approve(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Act on a good batch."""
        if self.action == "roll_back" and self._good % self.snapshot_every == 0:
            self._snapshot = Snapshot(trainer, pl_module)

    def _act(self, trainer: L.Trainer, pl_module: L.LightningModule, message: str) -> None:
        """Act on a bad batch, whose gradients are dropped already."""
        if self._in_a_row >= self.patience:
            raise DivergedError(
                f"{self._in_a_row} bad batches in a row, the last: {message}. Lower the learning rate, clip gradients, "
                "or check these files; the last checkpoint is from before"
            )
        if self.action == "reduce":
            self.multiplier = max(self.floor, self.multiplier * self.reduce_factor)
            log.warning("skipped %s; learning rates are now times %g", message, self.multiplier)
        elif self.action == "roll_back" and self._snapshot is not None:
            self._snapshot.restore(trainer)
            log.warning("skipped %s; rolled back to batch %d", message, self._snapshot.batch)
        else:
            log.warning("skipped %s", message)


class Snapshot:
    """Weights, buffers and optimizer states at one batch, in memory.

    Args:
        trainer: whose optimizers are copied.
        pl_module: whose trainable parameters and buffers are copied.
    """

    def __init__(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        tensors = [*(p for p in pl_module.parameters() if p.requires_grad), *pl_module.buffers()]
        self.batch = trainer.global_step
        self._tensors = [(tensor, tensor.detach().clone()) for tensor in tensors]
        self._states = [copy.deepcopy(optimizer.state_dict()["state"]) for optimizer in trainer.optimizers]

    @torch.no_grad()
    def restore(self, trainer: L.Trainer) -> None:
        """Put everything back except the learning rates, which belong to the schedule."""
        for tensor, value in self._tensors:
            tensor.copy_(value)
        for optimizer, state in zip(trainer.optimizers, self._states, strict=True):
            groups = optimizer.state_dict()["param_groups"]
            optimizer.load_state_dict({"state": copy.deepcopy(state), "param_groups": groups})


def _loss_of(trainer: L.Trainer, index: int) -> str:
    return f"the loss of optimizer {index}" if len(trainer.optimizers) > 1 else "the loss"


def _describe(trainer: L.Trainer, batch: Any, batch_idx: int, reasons: list[str]) -> str:
    """Name a bad batch: its number, its reasons, its items when it carries names, and the terms that are not finite."""
    text = f"batch {batch_idx} of epoch {trainer.current_epoch}: {'; '.join(reasons)}"
    terms = {key: float(value) for key, value in trainer.callback_metrics.items() if key.startswith("train/")}
    broken = [f"{key} = {value}" for key, value in terms.items() if not math.isfinite(value)]
    if broken:
        text += f"; terms: {', '.join(broken)}"
    names = batch.get("names") if isinstance(batch, Mapping) else getattr(batch, "names", None)
    if names:
        text += f"; items: {', '.join(map(str, names))}"
    return text


NORMAL = 1.4826  # standard deviation of a normal distribution in units of its median absolute deviation
LEAST_SPREAD = 0.1  # relative; losses that hardly vary would make every one of them an outlier


class RobustGuard(LossGuard):
    """Skips outliers of loss and gradient norm; if they go on, lowers the rates, rolls back, and at last stops.

    A step is bad when its loss or gradient is not finite, or when the logarithm of its loss (summed over what was
    accumulated, averaged over ranks) or of its gradient norm lies `threshold` robust standard deviations above the
    median of the good ones. Where a loss is not positive, the values themselves are compared.

    Every bad step is skipped: neither weights nor moments change. Of those not `calm_steps` good ones apart, the first
    `skips` are only skipped, the next `reductions` also lower the rates, by a multiplier on top of any schedule, and
    the one after returns weights, optimizers and `EMA` to the last snapshot and counts anew. The data go on: what came
    between snapshot and roll-back is not seen again. A snapshot is taken in calm only. It lies in memory and in the
    checkpoint (which it doubles), so that a resumed run rolls back as the uninterrupted one.

    Lightning's SpikeDetection, in contrast, ends the run, to be started anew without the batches that it names.

    Args:
        threshold: robust standard deviations (1.4826 median absolute deviations, at least a tenth of the value).
        window: good steps in the medians; the rule holds once so many were seen.
        limit: a loss above this is bad; None for no limit.
        skips: bad steps that are only skipped.
        reductions: bad steps after these that also lower the rates.
        rollbacks: roll-backs; the next one ends training. Forgotten after `recover_steps` good steps in a row.
        calm_steps: good steps in a row after which bad ones are forgotten.
        reduce_factor: multiplier of the rates, in (0, 1).
        floor: smallest multiplier.
        recover_steps: good steps that undo one reduction, evenly.
        snapshot_every: good steps between snapshots.

    Raises:
        ValueError: when a number is out of its range, or weights are sharded.
        DivergedError: while training, after the last roll-back.
    """

    def __init__(
        self,
        threshold: float = 6.0,
        window: int = 100,
        limit: float | None = None,
        skips: int = 1,
        reductions: int = 2,
        rollbacks: int = 3,
        calm_steps: int = 20,
        reduce_factor: float = 0.5,
        floor: float = 0.01,
        recover_steps: int = 500,
        snapshot_every: int = 100,
    ) -> None:
        super().__init__(
            factor=math.inf,
            window=window,
            limit=limit,
            reduce_factor=reduce_factor,
            floor=floor,
            snapshot_every=snapshot_every,
        )
        if threshold <= 0 or min(skips, reductions, rollbacks) < 0 or min(calm_steps, recover_steps) < 1:
            raise ValueError(
                "RobustGuard: threshold > 0, skips, reductions and rollbacks of at least 0, calm_steps and "
                "recover_steps of at least 1 are needed"
            )
        self.threshold = threshold
        self.skips = skips
        self.reductions = reductions
        self.rollbacks = rollbacks
        self.calm_steps = calm_steps
        self.recover_steps = recover_steps
        self.rolled_back = 0
        self._scales = True
        self._level = 0  # bad steps since the last calm or roll-back
        self._calm = calm_steps  # good steps in a row
        self._due = False  # a snapshot, at the next step: by then every callback is done with this one
        self._gradients: dict[int, deque[float]] = {}
        self._saved: dict[str, Any] | None = None

    @property
    def state_key(self) -> str:
        """Same key whatever the arguments, so that a resume may change them."""
        return "RobustGuard"

    def state_dict(self) -> dict[str, Any]:
        """Counters, windows and the snapshot."""
        snapshot = self._snapshot.state_dict() if isinstance(self._snapshot, WholeSnapshot) else None
        return super().state_dict() | {
            "level": self._level,
            "calm": self._calm,
            "rolled_back": self.rolled_back,
            "due": self._due,
            "gradients": {index: list(norms) for index, norms in self._gradients.items()},
            "snapshot": snapshot,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore counters, windows and the snapshot."""
        super().load_state_dict(state_dict)
        self._level, self._calm = state_dict["level"], state_dict["calm"]
        self.rolled_back, self._due = state_dict["rolled_back"], state_dict["due"]
        self._gradients = {index: deque(norms, self.window) for index, norms in state_dict["gradients"].items()}
        self._saved = state_dict["snapshot"]

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Refuse sharded weights, of which a checkpoint of rank zero would hold a part."""
        if type(trainer.strategy).__name__ in SHARDING_STRATEGIES:
            raise ValueError(
                f"RobustGuard: {type(trainer.strategy).__name__} shards the weights, and its snapshot holds whole "
                "ones: use zoo.training.LossGuard, or another strategy"
            )

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Hook the multiplier into the optimizers; take the first snapshot, or that of the resumed run."""
        super().on_train_start(trainer, pl_module)
        self._snapshot = WholeSnapshot(trainer, pl_module)
        if self._saved is not None:
            self._snapshot.load_state_dict(self._saved)
            self._saved = None

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Take the snapshot that is due."""
        if self._due:
            self._snapshot, self._due = WholeSnapshot(trainer, pl_module), False
        super().on_train_batch_start(trainer, pl_module, batch, batch_idx)

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Act on the step; log the roll-backs."""
        super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)
        pl_module.log("train/guard_rollbacks", float(self.rolled_back), on_step=True, on_epoch=False)

    def _judge(self, trainer: L.Trainer, index: int, loss: float, gradient: float) -> str | None:
        reason = super()._judge(trainer, index, loss, gradient)
        if reason is not None:
            return reason
        what = _loss_of(trainer, index)
        for name, value, seen in (
            (what, loss, self._losses.get(index, ())),
            (f"the gradient norm behind {what}", gradient, self._gradients.get(index, ())),
        ):
            # a gradient that is not finite passes where it is the loss scaler's everyday business
            if len(seen) == self.window and math.isfinite(value) and (z := robust_z(value, seen)) > self.threshold:
                return f"{name} is {value:.4g}, {z:.1f} robust standard deviations above the last {self.window}"
        return None

    def _remember(self, index: int, loss: float, gradient: float) -> None:
        super()._remember(index, loss, gradient)
        if math.isfinite(gradient):
            self._gradients.setdefault(index, deque(maxlen=self.window)).append(gradient)

    def _approve(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._calm += 1
        self.multiplier = min(1.0, self.multiplier * self.reduce_factor ** (-1 / self.recover_steps))
        if self._calm >= self.calm_steps:
            self._level = 0
            self._due = self._good % self.snapshot_every == 0
        if self._calm >= self.recover_steps:
            self.rolled_back = 0

    def _act(self, trainer: L.Trainer, pl_module: L.LightningModule, message: str) -> None:
        self._calm = 0
        self._level += 1
        if self._level <= self.skips:
            log.warning("skipped %s", message)
        elif self._level <= self.skips + self.reductions:
            self.multiplier = max(self.floor, self.multiplier * self.reduce_factor)
            log.warning("skipped %s; learning rates are now times %.3g", message, self.multiplier)
        elif self.rolled_back == self.rollbacks or self._snapshot is None:
            raise DivergedError(
                f"diverging again after {self.rolled_back} roll-backs, the last: {message}. Lower the learning rate, "
                "clip gradients, or check these files"
            )
        else:
            self._snapshot.restore(trainer)
            self.rolled_back += 1
            self._level = 0
            log.warning("skipped %s; rolled back to batch %d", message, self._snapshot.batch)


class WholeSnapshot(Snapshot):
    """A snapshot with the averages of `EMA`, which can be saved.

    Args:
        trainer: whose optimizers and averages are copied.
        pl_module: whose trainable parameters and buffers are copied.
    """

    def __init__(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        super().__init__(trainer, pl_module)
        emas = [callback for callback in trainer.callbacks if isinstance(callback, EMA)]  # type: ignore[attr-defined]
        self._averages = [(ema, clone(ema.shadow), ema.updates) for ema in emas]

    def restore(self, trainer: L.Trainer) -> None:
        """Put everything back except the learning rates, which belong to the schedule."""
        super().restore(trainer)
        for ema, shadow, updates in self._averages:
            ema.shadow, ema.updates = clone(shadow), updates

    def state_dict(self) -> dict[str, Any]:
        """Everything, as tensors and plain values."""
        return {
            "batch": self.batch,
            "tensors": [value for _, value in self._tensors],
            "optimizers": self._states,
            "averages": [(shadow, updates) for _, shadow, updates in self._averages],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the place of the snapshot that was saved.

        Raises:
            ValueError: when it is one of other weights or averages.
        """
        shapes = [value.shape for value in state["tensors"]]
        if shapes != [tensor.shape for tensor, _ in self._tensors] or len(state["averages"]) != len(self._averages):
            raise ValueError(
                "RobustGuard: the checkpoint's snapshot holds other weights or averages than this run trains; "
                "begin anew from its weights by --init_from"
            )
        self.batch = state["batch"]
        self._tensors = [
            (tensor, value.to(tensor.device))
            for (tensor, _), value in zip(self._tensors, state["tensors"], strict=True)
        ]
        self._states = copy.deepcopy(state["optimizers"])
        self._averages = [
            (ema, shadow, updates)
            for (ema, *_), (shadow, updates) in zip(self._averages, state["averages"], strict=True)
        ]


def clone(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copies of named tensors."""
    return {name: tensor.clone() for name, tensor in tensors.items()}


def robust_z(value: float, seen: Sequence[float]) -> float:
    """How far a value lies above others, in robust standard deviations of their logarithms.

    Args:
        value: finite.
        seen: the others, at least one, finite; where they or `value` are not all positive, no logarithm is taken.

    Returns:
        (value - median) / max(1.4826 * median absolute deviation, a tenth), negative below the median.
    """
    positive = value > 0 and min(seen) > 0
    value, values = (math.log(value), [math.log(each) for each in seen]) if positive else (value, list(seen))
    median = statistics.median(values)
    least = LEAST_SPREAD if positive else LEAST_SPREAD * statistics.median(abs(each) for each in values)
    spread = max(NORMAL * statistics.median(abs(each - median) for each in values), least)
    return (value - median) / spread if spread else math.copysign(math.inf, value - median) if value != median else 0.0
