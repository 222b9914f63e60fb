"""The learning rate of a larger or smaller batch than the one that it was chosen for."""

from __future__ import annotations

import logging
from typing import Literal

import lightning as L
from torch.optim import Optimizer

log = logging.getLogger(__name__)

Rule = Literal["none", "sqrt", "linear"]
EXPONENTS: dict[Rule, float] = {"none": 0.0, "sqrt": 0.5, "linear": 1.0}


class LrScaling:
    """Scales an optimizer's rates with the effective batch: batch per process x processes x accumulation.

    Args:
        batch_size: effective batch that the recipe's rates were chosen for.
        rule: "sqrt" multiplies the rates by 1.41 for each doubling of the batch, "linear" by 2, "none" by 1.

    Raises:
        ValueError: when the rule is unknown, or the batch is empty.

    Source: Krizhevsky, "One weird trick for parallelizing convolutional neural networks" (2014), section 5, for sqrt;
    Goyal et al., "Accurate, Large Minibatch SGD" (2017), for linear.
    """

    def __init__(self, batch_size: int, rule: Rule = "sqrt") -> None:
        if rule not in EXPONENTS:
            raise ValueError(f"lr_scaling.rule is one of {', '.join(EXPONENTS)}, not {rule!r}")
        if batch_size < 1:
            raise ValueError(f"lr_scaling.batch_size is at least 1, not {batch_size}")
        self.batch_size = batch_size
        self.rule: Rule = rule

    def factor(self, effective: int) -> float:
        """Factor on the rates for an effective batch of so many items."""
        return (effective / self.batch_size) ** EXPONENTS[self.rule]

    def scale(self, optimizer: Optimizer, trainer: L.Trainer) -> None:
        """Multiply the rates of an optimizer, before its schedule takes them for the base rates.

        Raises:
            ValueError: when the data does not tell its batch size.
        """
        per_process = getattr(getattr(trainer, "datamodule", None), "batch_size", None)
        if per_process is None:
            raise ValueError("lr_scaling needs data with a batch_size: set model.init_args.lr_scaling to null")
        effective = per_process * trainer.world_size * trainer.accumulate_grad_batches
        for group in optimizer.param_groups:
            group["lr"] *= self.factor(effective)
        if trainer.is_global_zero:
            log.info(
                "learning rates x %.4g (%s): effective batch %d (%d x %d processes x %d accumulated), rates are for %d",
                self.factor(effective), self.rule, effective, per_process, trainer.world_size,
                trainer.accumulate_grad_batches, self.batch_size,
            )  # fmt: skip
