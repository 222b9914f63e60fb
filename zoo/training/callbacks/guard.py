"""Guards of the loss: bad batches are thrown away before they reach weights or optimizer states.

`LossGuard` and `RobustGuard` differ in what they take for bad and in the strategy by which they answer it: skip the
batch, also reduce the rates, also roll back to a snapshot, or stop.
"""

from __future__ import annotations

import copy
import logging
import math
import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import lightning as L
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from zoo.common.ranges import above, at_least, between, one_of, positive, within
from zoo.training.callbacks.ema import EMA
from zoo.training.callbacks.rates import Counting
from zoo.training.strategies.shards import (
    drop_gradients,
    gradient_norm,
    hides_gradients,
    shards_weights,
)

log = logging.getLogger(__name__)

Strategy = Literal["skip", "reduce", "roll_back", "stop"]
NORMAL = 1.4826  # standard deviation of a normal distribution in units of its median absolute deviation
LEAST_DEVIATION = 0.1  # relative; losses that hardly vary would make every one of them an outlier


class DivergedError(RuntimeError):
    """Too many bad batches in a row."""


class LossGuard(Counting):
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

    counters: ClassVar[tuple[str, ...]] = ("trips", "multiplier", "in_a_row", "good")
    windows: ClassVar[tuple[str, ...]] = ("losses",)  # of good steps

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
        one_of(("skip", "reduce", "roll_back"), action=action)
        above(1, factor=factor)
        between(0, 1, reduce_factor=reduce_factor)
        positive(floor=floor)
        within(0, 1, floor=floor)
        at_least(1, window=window, patience=patience, snapshot_every=snapshot_every)
        self.action = action
        self.factor = factor
        self.window = window
        self.limit = limit
        self.patience = patience
        self.reduce_factor = reduce_factor
        self.floor = floor
        self.snapshot_every = snapshot_every
        self.trips = 0
        self.in_a_row = 0
        self.good = 0
        self.skipped = False
        self._scales = action == "reduce"
        self._stepped = False
        self._seen: dict[str, dict[int, deque[float]]] = {name: {} for name in self.windows}
        self._pending: list[Tensor] = []
        self._reasons: list[str] = []
        self._statistics: list[tuple[Tensor, Tensor]] = []
        self._snapshot: Snapshot | None = None

    def state_dict(self) -> dict[str, Any]:
        """Counters and windows."""
        windows = {name: {index: list(seen) for index, seen in self._seen[name].items()} for name in self.windows}
        return super().state_dict() | windows

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore counters and windows."""
        super().load_state_dict(state_dict)
        for name in self.windows:
            self._seen[name] = {index: deque(seen, self.window) for index, seen in state_dict[name].items()}

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Take the first snapshot, or hook the multiplier into the optimizers."""
        if self.action == "roll_back":
            self._snapshot = Snapshot(trainer, pl_module)
        if self._scales:
            self.hook_rates(trainer)

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Refuse snapshots where the optimizers do not have their states."""
        if self.action == "roll_back" and hides_gradients(trainer):
            raise ValueError(
                f"{type(self).__name__}: {type(trainer.strategy).__name__} keeps the optimizers' states in shards, of "
                "which there is no snapshot: use zoo.training.LossGuard with action skip or reduce, or another strategy"
            )

    def on_train_batch_start(self, trainer: L.Trainer, pl_module: L.LightningModule, *_: Any) -> None:
        """Forget the last batch; remember running statistics, which the forward pass itself changes."""
        self.skipped = self._stepped = False
        if not self._pending:  # otherwise this batch is accumulated on earlier ones, and their step is one
            norms = [m for m in pl_module.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.training]
            self._statistics = [(buffer, buffer.clone()) for norm in norms for buffer in norm.buffers()]

    def on_before_backward(self, trainer: L.Trainer, pl_module: L.LightningModule, loss: Tensor) -> None:
        """Note the loss, unscaled, for the optimizer step that it belongs to."""
        self._pending.append(unscaled(trainer, loss))

    def on_before_optimizer_step(self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: Optimizer) -> None:
        """Judge the step; drop its gradients when it, or an earlier step on this batch, is bad."""
        self._stepped = True
        index = next(i for i, each in enumerate(trainer.optimizers) if each is optimizer)
        norm = gradient_norm(trainer, optimizer)
        total = torch.stack(self._pending).sum() if self._pending else torch.zeros(())
        self._pending.clear()
        values = torch.stack([value.to(pl_module.device, torch.float32) for value in (total, norm)])
        loss, gradient = trainer.strategy.reduce(values, reduce_op="mean").tolist()
        reason = self._judge(trainer, index, loss, gradient)
        if reason is not None:
            self._reasons.append(reason)
            self.skipped = True
        else:
            for (_, seen), value in zip(self._seen.items(), (loss, gradient), strict=False):
                if math.isfinite(value):
                    seen.setdefault(index, deque(maxlen=self.window)).append(value)
        if self.skipped:
            drop_gradients(trainer, optimizer)

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count; act on a bad batch; take a snapshot after enough good ones."""
        if self.skipped:
            self.trips += 1
            self.in_a_row += 1
            message = _describe(trainer, batch, batch_idx, self._reasons)
            self._reasons.clear()
            for buffer, before in self._statistics:
                buffer.copy_(before)
            self._apply(self._strategy(), trainer, message)
        elif self._stepped:
            self.in_a_row = 0
            self.good += 1
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
        seen = self._seen["losses"].get(index, ())
        median = statistics.median(seen) if len(seen) == self.window else 0.0
        if 0 < median * self.factor < loss:
            return f"{what} is {loss:.4g}, above {self.factor:g} times the running median of {median:.4g}"
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        if not math.isfinite(gradient) and (scaler is None or scaler.get_scale() < 1):
            return f"the gradient norm behind {what} is {gradient}"
        return None

    def _approve(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Act on a good batch."""
        if self.action == "roll_back" and self.good % self.snapshot_every == 0:
            self._snapshot = Snapshot(trainer, pl_module)

    def _strategy(self) -> Strategy:
        """What to do about a bad batch, which is counted and whose gradients are dropped already."""
        return self.action if self.in_a_row < self.patience else "stop"

    def _apply(self, strategy: Strategy, trainer: L.Trainer, message: str) -> None:
        if strategy == "stop":
            raise DivergedError(
                f"{self._history()}, the last: {message}. Lower the learning rate, clip gradients, or check these "
                "files; the last checkpoint is from before"
            )
        done = ""
        if strategy == "reduce":
            self.lower(self.reduce_factor)
            done = f"; learning rates are now times {self.multiplier:.3g}"
        elif strategy == "roll_back" and self._snapshot is not None:
            self._snapshot.restore(trainer)
            done = f"; rolled back to batch {self._snapshot.batch}"
        log.warning("skipped %s%s", message, done)

    def _history(self) -> str:
        return f"{self.in_a_row} bad batches in a row"


class Snapshot:
    """Weights, buffers, optimizer states and averages of `EMA` at one batch, in memory.

    Args:
        averages: copy those of the trainer's `EMA` as well.
    """

    def __init__(self, trainer: L.Trainer, pl_module: L.LightningModule, averages: bool = False) -> None:
        tensors = [*(p for p in pl_module.parameters() if p.requires_grad), *pl_module.buffers()]
        emas = [each for each in trainer.callbacks if averages and isinstance(each, EMA)]  # type: ignore[attr-defined]
        self.batch = trainer.global_step
        self._tensors = [(tensor, tensor.detach().clone()) for tensor in tensors]
        self._states = [copy.deepcopy(optimizer.state_dict()["state"]) for optimizer in trainer.optimizers]
        self._averages = [(ema, clone(ema.shadow), ema.updates) for ema in emas]

    @torch.no_grad()
    def restore(self, trainer: L.Trainer) -> None:
        """Put everything back except the learning rates, which belong to the schedule."""
        for tensor, value in self._tensors:
            tensor.copy_(value)
        for optimizer, state in zip(trainer.optimizers, self._states, strict=True):
            groups = optimizer.state_dict()["param_groups"]
            optimizer.load_state_dict({"state": copy.deepcopy(state), "param_groups": groups})
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
        pairs = zip(self._tensors, state["tensors"], strict=True)
        self._tensors = [(tensor, value.to(tensor.device)) for (tensor, _), value in pairs]
        self._states = copy.deepcopy(state["optimizers"])
        self._averages = [(ema, *saved) for (ema, *_), saved in zip(self._averages, state["averages"], strict=True)]


def clone(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copies of named tensors."""
    return {name: tensor.clone() for name, tensor in tensors.items()}


def unscaled(trainer: L.Trainer, loss: Tensor) -> Tensor:
    """A loss before fp16's scale; scaling a one yields the scale without waiting for the device."""
    scaler = getattr(trainer.precision_plugin, "scaler", None)
    loss = loss.detach().float()
    return loss if scaler is None else loss / scaler.scale(torch.ones_like(loss))


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

    counters = (*LossGuard.counters, "level", "calm", "rolled_back", "due")
    windows = ("losses", "gradients")

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
        super().__init__("roll_back", math.inf, window, limit, 1, reduce_factor, floor, snapshot_every)
        positive(threshold=threshold)
        at_least(0, skips=skips, reductions=reductions, rollbacks=rollbacks)
        at_least(1, calm_steps=calm_steps, recover_steps=recover_steps)
        self.threshold = threshold
        self.skips = skips
        self.reductions = reductions
        self.rollbacks = rollbacks
        self.calm_steps = calm_steps
        self.recover_steps = recover_steps
        self.rolled_back = 0
        self._scales = True
        self.level = 0  # bad steps since the last calm or roll-back
        self.calm = calm_steps  # good steps in a row
        self.due = False  # a snapshot, at the next step: by then every callback is done with this one
        self._saved: dict[str, Any] | None = None

    def state_dict(self) -> dict[str, Any]:
        """Counters, windows and the snapshot."""
        return super().state_dict() | {"snapshot": None if self._snapshot is None else self._snapshot.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore counters, windows and the snapshot."""
        super().load_state_dict(state_dict)
        self._saved = state_dict["snapshot"]

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Refuse sharded weights, of which a checkpoint of rank zero would hold a part."""
        super().setup(trainer, pl_module, stage)
        if shards_weights(trainer):
            raise ValueError(
                f"RobustGuard: {type(trainer.strategy).__name__} shards the weights, and its snapshot holds whole "
                "ones: use zoo.training.LossGuard, or another strategy"
            )

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Hook the multiplier into the optimizers; take the first snapshot, or that of the resumed run."""
        self.hook_rates(trainer)
        self._snapshot = Snapshot(trainer, pl_module, averages=True)
        if self._saved is not None:
            self._snapshot.load_state_dict(self._saved)
            self._saved = None

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Take the snapshot that is due."""
        if self.due:
            self._snapshot, self.due = Snapshot(trainer, pl_module, averages=True), False
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
        names = (what, f"the gradient norm behind {what}")
        for name, value, windows in zip(names, (loss, gradient), self._seen.values(), strict=True):
            seen = windows.get(index, ())
            # a gradient that is not finite passes where it is the loss scaler's everyday business
            if len(seen) == self.window and math.isfinite(value) and (z := robust_z(value, seen)) > self.threshold:
                return f"{name} is {value:.4g}, {z:.1f} robust standard deviations above the last {self.window}"
        return None

    def _approve(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.calm += 1
        self.multiplier = min(1.0, self.multiplier * self.reduce_factor ** (-1 / self.recover_steps))
        if self.calm >= self.calm_steps:
            self.level = 0
            self.due = self.good % self.snapshot_every == 0
        if self.calm >= self.recover_steps:
            self.rolled_back = 0

    def _strategy(self) -> Strategy:
        self.calm = 0
        self.level += 1
        if self.level <= self.skips:
            return "skip"
        if self.level <= self.skips + self.reductions:
            return "reduce"
        if self.rolled_back == self.rollbacks:
            return "stop"
        self.rolled_back += 1
        self.level = 0
        return "roll_back"

    def _history(self) -> str:
        return f"diverging again after {self.rolled_back} roll-backs"


def robust_z(value: float, seen: Sequence[float]) -> float:
    """How far a value lies above others, in robust standard deviations of their logarithms.

    Args:
        seen: the others, at least one, finite; where they or `value` are not all positive, no logarithm is taken.

    Returns:
        (value - median) / max(1.4826 * median absolute deviation, a tenth), negative below the median.
    """
    all_positive = value > 0 and min(seen) > 0
    value, values = (math.log(value), [math.log(each) for each in seen]) if all_positive else (value, list(seen))
    median = statistics.median(values)
    least = LEAST_DEVIATION if all_positive else LEAST_DEVIATION * statistics.median(abs(each) for each in values)
    deviation = max(NORMAL * statistics.median(abs(each - median) for each in values), least)
    if deviation:
        return (value - median) / deviation
    return math.copysign(math.inf, value - median) if value != median else 0.0
