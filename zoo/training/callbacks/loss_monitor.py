"""The loss monitor of ProjectLily's trainers, decision for decision, for runs that are compared with theirs."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import Any, Literal

import lightning as L
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from zoo.common.ranges import between
from zoo.training.callbacks.guard import unscaled
from zoo.training.callbacks.rates import Counting

log = logging.getLogger(__name__)

Kind = Literal["", "nonfinite", "explosion", "plateau", "early_stop"]
_HISTORY = 100  # finite losses before a rise is looked for
_RISE = 1.01  # short over long average
_RISE_EVERY = 500  # optimizer steps
_STATE = ("best", "since_best", "reductions", "nonfinite", "finite", "short", "long")


@dataclass(frozen=True)
class Decision:
    """What the original does about one loss.

    Args:
        kind: the last reason; empty without one.
    """

    skip: bool = False
    reduce: bool = False
    stop: bool = False
    kind: Kind = ""


class OriginalMonitor:
    """AdvancedLossMonitor: looks at each micro-batch's loss.

    What it calls a plateau is a rise: a short average above the long one. Its counters of explosions and of lowered
    loss scales are always zero when read, and left out here.

    Args:
        threshold: a loss above it is an explosion.
        factor: of the learning rates when they are lowered.
        patience: losses in a row without a new best one at which it stops; infinity for never.
        min_lr: lowest learning rate.

    Source: ProjectLily, trainMGPU_DataParallel.py.
    """

    def __init__(
        self, threshold: float = 10.0, factor: float = 0.5, patience: float = 1000, min_lr: float = 1e-7
    ) -> None:
        self.threshold = threshold
        self.factor = factor
        self.patience = patience
        self.min_lr = min_lr
        self.best = math.inf
        self.since_best = 0
        self.reductions = 0
        self.nonfinite = 0
        self.finite = 0
        self.short = math.nan
        self.long = math.nan

    def update(self, loss: float, step: int) -> Decision:
        """Count a loss.

        Args:
            loss: of one micro-batch.
            step: optimizer steps done.

        Returns:
            What to do.
        """
        if not math.isfinite(loss):
            self.nonfinite += 1
            return Decision(skip=True, kind="nonfinite")
        self.finite += 1
        self.short = 0.9 * self.short + 0.1 * loss if self.finite > 1 else loss
        self.long = 0.99 * self.long + 0.01 * loss if self.finite > 1 else loss
        kind: Kind = ""
        if loss > self.threshold:
            kind = "explosion"
        elif self.finite > _HISTORY and self.short > _RISE * self.long and step % _RISE_EVERY == 0:
            kind = "plateau"
        reduce = kind != ""
        self.reductions += reduce
        if loss < self.best:
            self.best, self.since_best = loss, 0
        else:
            self.since_best += 1
        stop = self.since_best >= self.patience
        return Decision(reduce=reduce, stop=stop, kind="early_stop" if stop else kind)

    def lowered(self, rate: float) -> float:
        """A learning rate after one reduction."""
        return max(rate * self.factor, self.min_lr)

    def state_dict(self) -> dict[str, Any]:
        """Averages and counters."""
        return {name: getattr(self, name) for name in _STATE}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore averages and counters."""
        for name in _STATE:
            setattr(self, name, state[name])


class LossMonitor(Counting):
    """Applies `OriginalMonitor`. For parity with the original; `zoo.training.LossGuard` is better.

    Like the original it judges each
    micro-batch before its backward pass, lets an exploded one train with lowered rates, and lowers the optimizer's own
    rates, which the schedule's next step overwrites.

    Unlike it, the micro-batch that stops training is trained, the run does stop, and a loss that is not finite in the
    last micro-batch of a window does not join this window to the next.

    Args:
        threshold: a loss above it is an explosion.
        factor: of the learning rates when they are lowered, in (0, 1).
        patience: micro-batches in a row without a new lowest loss at which training stops; null for never.
        min_lr: lowest learning rate.

    Raises:
        ValueError: when the factor is out of its range, the task steps its optimizers itself, or there are several
            processes: the original's is one.
    """

    def __init__(
        self, threshold: float = 10.0, factor: float = 0.5, patience: int | None = None, min_lr: float = 1e-7
    ) -> None:
        between(0, 1, factor=factor)
        self.monitor = OriginalMonitor(threshold, factor, math.inf if patience is None else patience, min_lr)
        self.skipped = False
        self._taken = 0  # micro-batches of this window that were not skipped
        self._before: list[tuple[nn.Parameter, Tensor | None]] = []

    def state_dict(self) -> dict[str, Any]:
        """Averages and counters."""
        return self.monitor.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore averages and counters."""
        self.monitor.load_state_dict(state_dict)

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Refuse what the original does not know."""
        if not pl_module.automatic_optimization or trainer.world_size > 1:
            raise ValueError(
                "LossMonitor: the original's monitor works in one process, with one optimizer that the Trainer steps; "
                "use zoo.training.LossGuard"
            )

    def on_before_backward(self, trainer: L.Trainer, pl_module: L.LightningModule, loss: Tensor) -> None:
        """Judge the loss; keep the gradients of the window if this one must not add to them."""
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        value = float(unscaled(trainer, loss)) * trainer.accumulate_grad_batches
        decision = self.monitor.update(value, trainer.global_step)
        self.skipped = decision.skip
        self._taken += not decision.skip
        if decision.skip:
            self._before = [
                (parameter, None if parameter.grad is None else parameter.grad.clone())
                for parameter in pl_module.parameters()
                if parameter.requires_grad
            ]
            advice = "; often so: check train/amp_scale" if scaler is not None and self.monitor.nonfinite > 3 else ""
            log.warning("the loss is %s: micro-batch left out%s", value, advice)
        if decision.reduce:
            groups = [group for optimizer in trainer.optimizers for group in optimizer.param_groups]
            for group in groups:
                group["lr"] = self.monitor.lowered(group["lr"])
            log.warning("%s, the loss is %.4g: learning rate %.3g", decision.kind, value, groups[0]["lr"])
        if decision.stop:
            log.warning("no lower loss in %d micro-batches: training stops", self.monitor.since_best)
            trainer.should_stop = True

    def on_after_backward(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Take the gradients of a skipped micro-batch back."""
        for parameter, before in self._before:
            if parameter.grad is not None:
                # zero, not None: a loss scaler demands gradients to look at
                parameter.grad = torch.zeros_like(parameter.grad) if before is None else before
        self._before = []

    def on_before_optimizer_step(self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: Optimizer) -> None:
        """Leave the weights alone when the whole window was skipped: a gradient of zero would still decay them."""
        if self._taken == 0:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.grad = None
        self._taken = 0

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *_: Any) -> None:
        """Log the counters."""
        counters = {"reductions": self.monitor.reductions, "nonfinite": self.monitor.nonfinite}
        values = {f"train/monitor_{name}": float(value) for name, value in counters.items()}
        pl_module.log_dict(values, on_step=True, on_epoch=False)
