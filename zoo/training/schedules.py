"""Learning-rate schedules in closed form, which a resume or a changed rate does not shift."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from zoo.common.checks import check_above, check_at_least, check_within


class _ClosedForm(LRScheduler):
    """Base of the schedules: a factor on the base rates as a function of the step, from 0."""

    def factor(self, step: int) -> float:
        """Return the factor on the base rates."""
        raise NotImplementedError

    def get_lr(self) -> list[float | Tensor]:
        """Return the rates of the current step, one per parameter group."""
        factor = self.factor(self.last_epoch)
        return [rate * factor for rate in self.base_lrs]


class _Warmup(_ClosedForm):
    """Base of the schedules that begin with a linear warm-up."""

    start_at_zero = False

    def __init__(self, optimizer: Optimizer, warmup_steps: int | float) -> None:
        check_at_least(0, warmup_steps=warmup_steps)
        if warmup_steps > 1 and warmup_steps % 1:
            raise ValueError(f"warmup_steps is {warmup_steps}; give whole steps, or a share below 1")
        self.warmup_steps = warmup_steps
        super().__init__(optimizer)

    @property
    def rise(self) -> int:
        """Steps of the warm-up."""
        return int(self.warmup_steps)

    def factor(self, step: int) -> float:
        """Return the factor on the base rates."""
        if step >= self.rise:
            return self.decay(step - self.rise)
        return step / self.rise if self.start_at_zero else (step + 1) / (self.rise + 1)

    def decay(self, step: int) -> float:
        """Return the factor `step` steps after the warm-up."""
        return 1.0


class WarmupConstant(_Warmup):
    """Linear warm-up, then the base rate: step s (from 0) trains with (s + 1) / (warmup_steps + 1) of it.

    Args:
        warmup_steps: steps of the rise; 0 for none.
    """

    def __init__(self, optimizer: Optimizer, warmup_steps: int = 0) -> None:
        if 0 < warmup_steps < 1:
            raise ValueError(f"warmup_steps is {warmup_steps}; give whole steps, or WarmupLinear with min_factor 1")
        super().__init__(optimizer, warmup_steps)


class WarmupLinear(_Warmup):
    """Linear warm-up, then a straight line down to `min_factor`, which stays.

    Args:
        warmup_steps: steps of the rise, 0 for none; below 1 its share of `total_steps`, rounded up.
        total_steps: steps until `min_factor` is reached, warm-up included; null for `trainer.max_steps`.
        min_factor: last factor, in [0, 1].
        start_at_zero: step s of the warm-up trains with s / warmup_steps of the base rate, the first with zero.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        warmup_steps: int | float,
        total_steps: int | None = None,
        min_factor: float = 0.0,
        start_at_zero: bool = False,
    ) -> None:
        check_within(0, 1, min_factor=min_factor)
        self.warmup_steps = warmup_steps
        self.total_steps = total_steps
        self.check_length()
        self.min_factor = min_factor
        self.start_at_zero = start_at_zero
        super().__init__(optimizer, warmup_steps)

    def check_length(self) -> None:
        """Refuse a total that is not longer than the warm-up."""
        if self.total_steps is not None:  # -1 comes from trainer.max_steps
            check_above(self.warmup_steps, total_steps=self.total_steps)

    @property
    def rise(self) -> int:
        """Steps of the warm-up, a share rounded up; 0 for a share of a total that is not known yet."""
        share = self.warmup_steps if self.warmup_steps < 1 else 0
        return super().rise + math.ceil(round(share * (self.total_steps or 0), 6))  # 0.29 of 100 is not 29 in floats

    def decay(self, step: int) -> float:
        """Return the factor `step` steps after the warm-up."""
        total = math.inf if self.total_steps is None else self.total_steps
        progress = min(1.0, step / max(1, total - self.rise))
        return self.min_factor + (1.0 - self.min_factor) * self.remaining(progress)

    def remaining(self, progress: float) -> float:
        """Return the share of the decay that is left at a share `progress` in [0, 1] of the time."""
        return 1.0 - progress


class WarmupCosine(WarmupLinear):
    """Linear warm-up, then half a cosine down to `min_factor`; the arguments are those of `WarmupLinear`.

    With `start_at_zero` it is `get_cosine_schedule_with_warmup` of transformers.

    Source: Loshchilov and Hutter, SGDR, equation 5, without restarts.
    """

    def remaining(self, progress: float) -> float:
        """Return the share of the decay that is left."""
        return 0.5 * (1.0 + math.cos(math.pi * progress))


class StageCosine(_ClosedForm):
    """In each stage a linear rise from `min_factor` to the base rate, then half a cosine back to it.

    Args:
        starts: first step of each stage, rising from 0.
        total_steps: steps until the last stage ends; null for `trainer.max_steps`.
        warmup_steps: length of the first stage's rise.
        stage_warmup_steps: length of the rise in each later stage.
        min_factor: factor at the beginning and at the end of a stage, in [0, 1].
    """

    def __init__(
        self,
        optimizer: Optimizer,
        starts: Sequence[int],
        total_steps: int | None = None,
        warmup_steps: int = 1000,
        stage_warmup_steps: int = 500,
        min_factor: float = 0.1,
    ) -> None:
        if not starts or starts[0] != 0:
            raise ValueError(f"StageCosine: the first stage starts at step 0, found starts {list(starts)}")
        check_within(0, 1, min_factor=min_factor)
        self.starts = list(starts)
        self.total_steps = total_steps
        self.warmup_steps = warmup_steps
        self.stage_warmup_steps = stage_warmup_steps
        self.check_length()
        self.min_factor = min_factor
        super().__init__(optimizer)

    def check_length(self) -> None:
        """Refuse a stage that is not longer than its rise."""
        for start, end, rise in self.stages():
            if end - start <= rise:
                raise ValueError(
                    f"StageCosine: the stage from step {start} to {end} is not longer than its rise of {rise} steps"
                )

    def stages(self) -> list[tuple[float, float, int]]:
        """Return first step, end and length of the rise of each stage."""
        ends: list[float] = [*self.starts, math.inf if self.total_steps is None else self.total_steps]
        return [(start, end, self.stage_warmup_steps if start else self.warmup_steps) for start, end in pairwise(ends)]

    def factor(self, step: int) -> float:
        """Return the factor on the base rates."""
        start, end, rise = next(stage for stage in reversed(self.stages()) if stage[0] <= step)
        if step < start + rise:
            share = (step - start) / rise
        else:
            share = 0.5 * (1.0 + math.cos(math.pi * min(1.0, (step - start - rise) / max(1, end - start - rise))))
        return self.min_factor + (1.0 - self.min_factor) * share
