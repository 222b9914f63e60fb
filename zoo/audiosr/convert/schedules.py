"""The schedule of ProjectLily's trainers, for runs that are compared with theirs."""

from __future__ import annotations

from torch.optim import Optimizer

from zoo.training.schedules import WarmupCosine


class OriginalWarmupCosine(WarmupCosine):
    """Warm-up and cosine with the original's two faults: the first batch has the base rate, and the end rises again.

    The original calls its schedule after each step, so batch s (from 0) trains with its value number s - 1. Past
    `total_steps` the cosine goes on. `zoo.training.WarmupCosine` has neither fault.

    Args:
        optimizer: whose groups' rates are the base rates.
        warmup_steps: batches of warm-up.
        total_steps: batches until `min_factor` is reached, warm-up included.
        min_factor: lowest factor, in [0, 1].

    Raises:
        ValueError: when a number of steps or the factor is out of its range.

    Source: ProjectLily, trainMGPU_DataParallel.py.
    """

    def __init__(
        self, optimizer: Optimizer, warmup_steps: int = 1000, total_steps: int = 100_000, min_factor: float = 0.1
    ) -> None:
        self.decay_steps = total_steps - warmup_steps
        super().__init__(optimizer, warmup_steps, total_steps, min_factor)

    def factor(self, step: int) -> float:
        """Factor on the base rate for batch `step` (from 0)."""
        return 1.0 if step == 0 else self.call(step - 1)

    def call(self, number: int) -> float:
        """The original's value of its call `number` (from 0)."""
        if number < self.warmup_steps:
            return (number + 1) / self.warmup_steps
        progress = (number - self.warmup_steps) / self.decay_steps
        return self.min_factor + (1.0 - self.min_factor) * self.remaining(progress)
