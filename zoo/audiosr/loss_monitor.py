"""The original's AdvancedLossMonitor, decision for decision, for runs that are compared with the original's."""

from __future__ import annotations

import logging
import math
from dataclasses import asdict, dataclass
from typing import Any

import lightning as L
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from zoo.common.checks import check_between
from zoo.training.callbacks.guard import unscaled

log = logging.getLogger(__name__)


@dataclass
class MonitorState:
    """The original's averages and counters, and what it does about a loss.

    Source: ProjectLily, trainMGPU_DataParallel.py. Its plateau is a rise: a short average above the long one.
    """

    best: float = math.inf
    since_best: int = 0
    reductions: int = 0
    nonfinite: int = 0
    finite: int = 0
    short: float = math.nan
    long: float = math.nan

    def update(self, loss: float, step: int, threshold: float = 10.0, patience: float = 1000) -> tuple[str, bool]:
        """Count the loss of a micro-batch at an optimizer step.

        Returns:
            "nonfinite" (skip), "explosion" or "plateau" (reduce the rates) or "", and whether to stop training.
        """
        if not math.isfinite(loss):
            self.nonfinite += 1
            return "nonfinite", False
        self.finite += 1
        self.short = 0.9 * self.short + 0.1 * loss if self.finite > 1 else loss
        self.long = 0.99 * self.long + 0.01 * loss if self.finite > 1 else loss
        rises = self.finite > 100 and self.short > 1.01 * self.long and step % 500 == 0
        kind = "explosion" if loss > threshold else "plateau" if rises else ""
        self.reductions += kind != ""
        self.since_best = 0 if loss < self.best else self.since_best + 1
        self.best = min(self.best, loss)
        return kind, self.since_best >= patience


class LossMonitor(L.Callback):
    """Applies the original's rules to each micro-batch's loss, in one process; `zoo.training.LossGuard` is better.

    An exploded loss trains with reduced rates, which the schedule's next step overwrites. Unlike the original, the run
    does stop, and a loss that is not finite in the last micro-batch of a window does not join this window to the next.

    Args:
        threshold: a loss above it is an explosion.
        factor: of the learning rates when they are reduced, in (0, 1).
        patience: micro-batches in a row without a new lowest loss at which training stops; null for never.
        min_lr: lowest learning rate.
    """

    def __init__(
        self, threshold: float = 10.0, factor: float = 0.5, patience: int | None = None, min_lr: float = 1e-7
    ) -> None:
        check_between(0, 1, factor=factor)
        self.threshold, self.factor, self.min_lr = threshold, factor, min_lr
        self.patience = math.inf if patience is None else patience
        self.monitor = MonitorState()
        self._trained = 0  # micro-batches of this window that were not skipped
        self._before: list[tuple[nn.Parameter, Tensor | None]] = []

    def state_dict(self) -> dict[str, Any]:
        """Return averages and counters."""
        return asdict(self.monitor)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore averages and counters."""
        self.monitor = MonitorState(**state_dict)

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Refuse several processes and tasks that step their optimizers themselves."""
        if not pl_module.automatic_optimization or trainer.world_size > 1:
            raise ValueError("LossMonitor needs one process and one optimizer: use zoo.training.LossGuard")

    def on_before_backward(self, trainer: L.Trainer, pl_module: L.LightningModule, loss: Tensor) -> None:
        """Judge the loss; keep the window's gradients if this micro-batch must not add to them."""
        value = float(unscaled(trainer, loss)) * trainer.accumulate_grad_batches
        kind, stop = self.monitor.update(value, trainer.global_step, self.threshold, self.patience)
        self._trained += kind != "nonfinite"
        if kind == "nonfinite":
            for parameter in filter(lambda each: each.requires_grad, pl_module.parameters()):
                self._before.append((parameter, None if parameter.grad is None else parameter.grad.clone()))
            log.warning("the loss is %s: micro-batch left out", value)
        elif kind:
            for group in trainer.optimizers[0].param_groups:
                group["lr"] = max(group["lr"] * self.factor, self.min_lr)
            log.warning("%s, the loss is %.4g: learning rates reduced", kind, value)
        trainer.should_stop = trainer.should_stop or stop

    def on_after_backward(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Restore the gradients from before a skipped micro-batch."""
        for parameter, before in self._before:
            if parameter.grad is not None:  # zero, not None: a loss scaler reads gradients
                parameter.grad = torch.zeros_like(parameter.grad) if before is None else before
        self._before = []

    def on_before_optimizer_step(self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: Optimizer) -> None:
        """Leave the weights alone when the whole window was skipped: a gradient of zero would still decay them."""
        if self._trained == 0:
            optimizer.zero_grad(set_to_none=True)
        self._trained = 0
