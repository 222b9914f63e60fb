"""What tasks set on an optimizer: the kernel of its steps, the end of its schedule, rates for the effective batch."""

from __future__ import annotations

import logging
import math
from typing import Any, Literal

import lightning as L
from torch.optim import Adam, Optimizer
from torch.optim.lr_scheduler import LRScheduler

from zoo.common.checks import check_at_least, check_one_of
from zoo.training.strategies.sharding import is_sharded

log = logging.getLogger(__name__)

Rule = Literal["none", "sqrt", "linear"]
EXPONENTS: dict[Rule, float] = {"none": 0.0, "sqrt": 0.5, "linear": 1.0}


def set_total_steps(scheduler: LRScheduler, trainer: L.Trainer) -> None:
    """Let a schedule without a length end with the training; warn of a training that its warm-up outlasts."""
    if getattr(scheduler, "total_steps", 0) is not None:
        return
    if trainer.max_steps < 0:
        name = type(scheduler).__name__
        raise ValueError(f"{name}: total_steps is null and trainer.max_steps is {trainer.max_steps}; set one of them")
    scheduler.total_steps = trainer.max_steps  # type: ignore[attr-defined]
    if hasattr(scheduler, "check_length"):  # of ours; a warm-up that is a share of the total changes the first rate
        for group, rate in zip(scheduler.optimizer.param_groups, scheduler.get_lr(), strict=True):
            group["lr"] = rate
        try:
            scheduler.check_length()
        except ValueError as error:  # no mistake where a recipe is tried for a few steps
            if trainer.is_global_zero:
                log.warning("%s: total_steps is trainer.max_steps, too few: %s", type(scheduler).__name__, error)


def prepare_optimizer(optimizer: Optimizer, trainer: L.Trainer | None) -> Optimizer:
    """Let one kernel step all weights of an Adam on the CPU, unless the recipe or a strategy with shards chooses.

    A fused one would unscale gradients of 16-mixed within its step, after clipping, norms and guards.
    """
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    on_cpu = all(weight.device.type == "cpu" and weight.is_floating_point() for weight in weights)
    if on_cpu and isinstance(optimizer, Adam) and (trainer is None or not is_sharded(trainer)):
        for group in optimizer.param_groups:
            if group["fused"] is None and group["foreach"] is None:
                group["fused"] = True
    if hasattr(optimizer, "_step_supports_amp_scaling"):
        optimizer._step_supports_amp_scaling = False
    return optimizer


def short_window_factor(trainer: L.Trainer) -> float:
    """What a loss is to be multiplied by, which Lightning has divided by `accumulate_grad_batches`.

    Above 1 where an epoch ends with fewer batches than that.
    """
    window = trainer.accumulate_grad_batches
    left = trainer.num_training_batches - trainer.fit_loop.epoch_loop.batch_idx // window * window
    return window / left if left < window else 1.0


def accumulated_batches(trainer: L.Trainer) -> int:
    """Return how many batches a full optimizer step accumulates: a step ends with its epoch at the latest."""
    data: Any = getattr(trainer, "datamodule", None)
    batches, limit = math.inf, trainer.limit_train_batches
    if hasattr(data, "train_batches") and hasattr(data.train_set, "__len__"):
        batches = len(data.train_batches(0, trainer.world_size))
    batches = min(batches, limit) if isinstance(limit, int) else batches * limit
    return int(min(trainer.accumulate_grad_batches, max(1, batches)))


class LrScaling:
    """Scales an optimizer's rates with the effective batch: batch per process x processes x accumulation.

    Args:
        batch_size: effective batch that the recipe's rates were chosen for.
        rule: "sqrt" multiplies the rates by 1.41 for each doubling of the batch, "linear" by 2, "none" by 1.

    Source: Krizhevsky, "One weird trick for parallelizing convolutional neural networks" (2014), section 5, for sqrt;
    Goyal et al., "Accurate, Large Minibatch SGD" (2017), for linear.
    """

    def __init__(self, batch_size: int, rule: Rule = "sqrt") -> None:
        check_one_of(EXPONENTS, rule=rule)
        check_at_least(1, batch_size=batch_size)
        self.batch_size = batch_size
        self.rule: Rule = rule

    def factor(self, effective: int) -> float:
        """Return the factor on the rates for an effective batch of so many items."""
        return (effective / self.batch_size) ** EXPONENTS[self.rule]

    def scale(self, optimizer: Optimizer, trainer: L.Trainer) -> None:
        """Multiply the rates of an optimizer, before its schedule reads them."""
        data: Any = getattr(trainer, "datamodule", None)
        if getattr(data, "batch_size", None) is None:
            raise ValueError("lr_scaling needs data with a batch_size: set model.init_args.lr_scaling to null")
        if getattr(data, "token_budget", None) is not None:
            raise ValueError("lr_scaling counts items of a batch, which data.token_budget leaves open: set one to null")
        effective = data.batch_size * trainer.world_size * accumulated_batches(trainer)
        for group in optimizer.param_groups:
            group["lr"] *= self.factor(effective)
        if trainer.is_global_zero:
            message = "learning rates x %.4g (%s): effective batch %d, rates are for %d"
            log.info(message, self.factor(effective), self.rule, effective, self.batch_size)
