"""How the flow times of a training batch are drawn."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor

from zoo.common.checks import check_at_least, check_positive
from zoo.common.tensors import sample_uniforms

# Largest float32 below 1: at t = 1 a path may have no finite velocity.
BELOW_ONE = 1 - 2**-24
EVALUATION_TIMES = 10  # at most, at which validation looks at each item


def _even_times(count: int) -> Tensor:
    return (torch.arange(count, dtype=torch.float64) + 0.5) / count


class TimeSampler(ABC):
    """How the times of a training batch are distributed."""

    @abstractmethod
    def quantile(self, u: Tensor) -> Tensor:
        """Turn numbers that are evenly spread over (0, 1), of any shape, into times between 0 and 1."""

    def evaluation_times(self) -> Tensor:
        """Times of validation (n,), float64: ten from 0.05 to 0.95, or those of training where these are no more."""
        trained = self.quantile(_even_times(10 * EVALUATION_TIMES)).unique()
        return trained if len(trained) <= EVALUATION_TIMES else _even_times(EVALUATION_TIMES)

    def __call__(self, u: Tensor) -> Tensor:
        """Turn random numbers (B,), float64, as `sample_uniforms` draws them, into times (B,), float32, 0 <= t < 1."""
        return self.quantile(u).float().clamp(0, BELOW_ONE)


class GridTimes(TimeSampler):
    """Evenly from {0, 1/n, ..., (n - 1)/n}, as the assignment does with n = 1000.

    Args:
        points: n.
    """

    def __init__(self, points: int = 1000) -> None:
        check_at_least(1, points=points)
        self.points = points

    def quantile(self, u: Tensor) -> Tensor:
        """Turn evenly spread numbers into times of the grid."""
        return torch.floor(u * self.points) / self.points


class UniformTimes(TimeSampler):
    """Evenly from [0, 1)."""

    def quantile(self, u: Tensor) -> Tensor:
        """Return the numbers themselves."""
        return u


class LogitNormalTimes(TimeSampler):
    """The logistic function of a Gaussian: more of the middle, where the task is hardest.

    Args:
        mean: of the Gaussian; positive prefers data.
        std: standard deviation of the Gaussian, > 0.

    Source: Esser et al., "Scaling Rectified Flow Transformers" (2024), equation 19.
    """

    def __init__(self, mean: float = 0.0, std: float = 1.0) -> None:
        check_positive(std=std)
        self.mean = mean
        self.std = std

    def quantile(self, u: Tensor) -> Tensor:
        """Turn evenly spread numbers into times."""
        return torch.sigmoid(self.mean + self.std * torch.special.ndtri(u))


class ShiftedTimes(TimeSampler):
    """The times of another sampler, moved towards the noise, as larger images need it: see `shifted`.

    The solver's grid takes the same shift (`zoo.flow.Solver`, `shift`).

    Args:
        times: sampler of the times before.
        shift: 1 for none; SD3 takes 3 at 1024 x 1024 pixels.
    """

    def __init__(self, times: TimeSampler, shift: float) -> None:
        check_positive(shift=shift)
        self.times = times
        self.shift = shift

    def quantile(self, u: Tensor) -> Tensor:
        """Shift the other sampler's quantiles."""
        return shifted(self.times.quantile(u), self.shift)


Time = TypeVar("Time", Tensor, float)


def shifted(t: Time, shift: float) -> Time:
    """Times t / (t + shift (1 - t)): above 1 a shift spends more of them near the noise, 0 and 1 stay.

    For images of m pixels (or tokens) instead of n, the shift is sqrt(m / n): so much more noise hides the same.

    Source: Esser et al. (2024), equation 23, in our direction of time.
    """
    return t / (t + shift * (1 - t))


def sample_times(times: TimeSampler, drop: float, seeds: Sequence[int]) -> tuple[Tensor, Tensor]:
    """What is random about the items of a batch besides their noise, each from its seed.

    Returns:
        Times (B,), float32, and (B,), int64: 0 where the condition is dropped, with probability `drop`; on the CPU.
    """
    u = sample_uniforms(seeds, 2)
    return times(u[0]), (u[1] >= drop).long()
