"""The diffusion process: a cosine schedule that ends in pure noise, its noise, and the base of its samplers."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, Self, get_args

import numpy as np
import torch
from torch import Tensor, nn

from zoo.common.checks import check_at_least, check_one_of

Prediction = Literal["v", "noise"]
Predict = Callable[[Tensor, Tensor], Tensor]
Grid = Literal["trailing", "dense", "original"]

GRIDS: tuple[Grid, ...] = get_args(Grid)
_OFFSET = 0.008  # keeps the first step's noise from vanishing


class CosineDiffusion(nn.Module):
    """x_t = sqrt(a_t) x_0 + sqrt(1 - a_t) e, with a_t falling like a squared cosine to exactly 0.

    Args:
        steps: T; t runs from 0 to T - 1.
        prediction: what the net gives: "v", sqrt(a) e - sqrt(1 - a) x_0; or "noise", e.

    Attributes:
        alpha_bar: a_t (T,), float32.

    Source: Nichol and Dhariwal, "Improved DDPM" (2021), equation 17, without their limit of 0.999 on beta; v: Salimans
    and Ho, "Progressive Distillation" (2022), appendix D.
    """

    alpha_bar: Tensor
    signal: Tensor
    sigma: Tensor

    def __init__(self, steps: int = 1000, prediction: Prediction = "v") -> None:
        super().__init__()
        check_at_least(2, steps=steps)
        check_one_of(get_args(Prediction), prediction=prediction)
        self.steps = steps
        self.prediction = prediction
        angles = (np.arange(steps + 1) / steps + _OFFSET) / (1 + _OFFSET) * (math.pi / 2)
        exact = np.cos(angles[1:]) ** 2 / math.cos(angles[0]) ** 2
        exact[-1] = 0  # cos(pi / 2) is not exactly 0 in floating point
        self._exact = exact
        for name, values in (("alpha_bar", exact), ("signal", np.sqrt(exact)), ("sigma", np.sqrt(1 - exact))):
            self.register_buffer(name, torch.from_numpy(values).float(), persistent=False)

    def levels(self, t: int) -> tuple[float, float]:
        """Factors of signal and noise, sqrt(a_t) and sqrt(1 - a_t), at a step in double precision; -1 is clean data."""
        if t < 0:
            return 1.0, 0.0
        return math.sqrt(self._exact[t]), math.sqrt(1 - self._exact[t])

    def add_noise(self, x0: Tensor, noise: Tensor, t: Tensor) -> Tensor:
        """x_t (B, ...) of data and standard normal noise (B, ...) at steps (B,), int64, 0 to T - 1."""
        signal, sigma = self._factors(t, x0)
        return signal * x0 + sigma * noise

    def target(self, x0: Tensor, noise: Tensor, t: Tensor) -> Tensor:
        """What the net has to predict (B, ...); arguments as in `add_noise`."""
        if self.prediction == "noise":
            return noise
        signal, sigma = self._factors(t, x0)
        return signal * noise - sigma * x0

    def to_x0(self, x: Tensor, output: Tensor, t: Tensor) -> Tensor:
        """Data (B, ...), by the net's output at x_t (B, ...) and steps (B,).

        Noise says nothing about the data at the last step; 0, the data's mean, is given there.
        """
        signal, sigma = self._factors(t, x)
        if self.prediction == "v":
            return signal * x - sigma * output
        last = signal == 0
        return ((x - sigma * output) / signal.masked_fill(last, 1)).masked_fill(last, 0)

    def to_noise(self, x: Tensor, output: Tensor, t: Tensor) -> Tensor:
        """Noise (B, ...), by the net's prediction; arguments as in `to_x0`."""
        if self.prediction == "noise":
            return output
        signal, sigma = self._factors(t, x)
        return signal * output + sigma * x

    def _factors(self, t: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Both factors as (B, 1, ...)."""
        shape = (len(t), *(1,) * (x.dim() - 1))
        return self.signal[t].reshape(shape), self.sigma[t].reshape(shape)


def row_noise(seeds: Sequence[int], shape: Sequence[int], device: torch.device | str = "cpu") -> Iterator[Tensor]:
    """Yield noise whose rows have a seed each: the same for any batch size, number of processes and device.

    Yields:
        (len(seeds), *shape), float32, standard normal, without end: what a sampler starts from, then what it adds.
    """
    if not seeds:
        raise ValueError("noise needs at least one seed")
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    while True:
        rows = [torch.randn(tuple(shape), generator=generator, device="cpu") for generator in generators]
        yield torch.stack(rows).to(device)


class Sampler(ABC):
    """Follows the process backwards, from noise to data.

    Args:
        steps: evaluations of the net.
        grid: see `zoo.audiosr.samplers.time_grid`.
    """

    def __init__(self, steps: int, grid: Grid) -> None:
        check_at_least(1, steps=steps)
        check_one_of(GRIDS, grid=grid)
        self.steps = steps
        self.grid = grid

    def with_steps(self, steps: int) -> Self:
        """Return a copy that takes so many steps."""
        sampler = copy.copy(self)
        sampler.steps = steps
        return sampler

    @abstractmethod
    def sample(
        self, predict: Predict, noise: Tensor, diffusion: CosineDiffusion, noises: Iterator[Tensor] | None = None
    ) -> Tensor:
        """Sample x_0 (B, ...), without gradients.

        Args:
            predict: function of x_t (B, ...) and steps (B,) int64 that returns the net's output (B, ...).
            noise: what to start from, (B, ...), float32; the first item of `row_noise`.
            noises: what to add on the way, one per step, where the sampler adds noise; the rest of `row_noise`.
        """
