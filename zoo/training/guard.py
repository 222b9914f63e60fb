"""A guard against diverging losses: bad batches are thrown away before they reach weights or optimizer states."""

from __future__ import annotations

import copy
import logging
import math
import statistics
from collections import deque
from collections.abc import Mapping
from typing import Any, Literal

import lightning as L
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from zoo.training.rates import scale_rates

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
