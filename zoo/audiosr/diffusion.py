"""The diffusion process: a cosine schedule that ends in pure noise, samplers that follow it backwards, guidance."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Literal, Self, get_args

import numpy as np
import torch
from torch import Tensor, nn

from zoo.audiosr.nets.denoiser import UNCONDITIONAL, Denoiser, concat
from zoo.blocks.image import classifier_free_guidance
from zoo.common.checks import check_at_least, check_one_of, check_within

Prediction = Literal["v", "noise"]
Predict = Callable[[Tensor, Tensor], Tensor]
Grid = Literal["trailing", "dense", "original"]

GRIDS: tuple[Grid, ...] = get_args(Grid)
_OFFSET = 0.008  # keeps the first step's noise from vanishing
_DENSITY = 1.5  # exponent of the dense grid: best for DPM-Solver++ on mixtures of Gaussians, at 8 to 20 steps


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


def time_grid(steps: int, grid: Grid, total: int) -> list[int]:
    """Return the falling steps of 0 to `total` - 1 at which to run the net, and where the last leads; -1 is clean data.

    Args:
        steps: evaluations of the net, 1 to `total`.
        grid: "trailing": evenly from the last step, pure noise, to clean data. "dense": likewise, with shorter steps
            towards the data. "original": AudioSR's, 1 + every (total // steps)-th, to step 0; it starts below
            pure noise and takes more steps where `steps` does not divide `total`.

    Source: trailing: Lin et al., "Common Diffusion Noise Schedules and Sample Steps are Flawed" (2024), section 3.3.
    """
    check_within(1, total, steps=steps)
    if grid == "original":
        return [*reversed(range(1, total, total // steps)), 0]
    check_one_of(GRIDS, grid=grid)
    exponent = _DENSITY if grid == "dense" else 1.0
    times: list[int] = []
    for index in range(1, steps + 1):
        time = round(total * (index / steps) ** exponent) - 1
        times.append(max(time, times[-1] + 1) if times else max(time, 0))
    return [*reversed(times), -1]


class Sampler(ABC):
    """Follows the process backwards, from noise to data.

    Args:
        steps: evaluations of the net.
        grid: see `time_grid`.
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


class DDIM(Sampler):
    """One step of first order per evaluation, with or without fresh noise.

    Args:
        eta: share of fresh noise, 0 (none) to 1 (as much as the process itself has).
        grid: see `time_grid`; "original" with eta 1 is AudioSR's way.

    Source: Song et al., "DDIM" (2021), equations 12 and 16.
    """

    def __init__(self, steps: int = 100, eta: float = 0.0, grid: Grid = "trailing") -> None:
        super().__init__(steps, grid)
        check_within(0, 1, eta=eta)
        self.eta = eta

    @torch.no_grad()
    def sample(
        self, predict: Predict, noise: Tensor, diffusion: CosineDiffusion, noises: Iterator[Tensor] | None = None
    ) -> Tensor:
        """Sample; see `Sampler.sample`."""
        if self.eta and noises is None:
            raise ValueError(
                f"DDIM with eta {self.eta} adds noise in every step: pass noises, as of row_noise(seeds, ...)"
            )
        x = noise
        for t, following in pairwise(time_grid(self.steps, self.grid, diffusion.steps)):
            rows = torch.full((len(x),), t, device=x.device)
            output = predict(x, rows)
            x0, direction = diffusion.to_x0(x, output, rows), diffusion.to_noise(x, output, rows)
            fresh = self.eta * _ancestral_deviation(diffusion, t, following)
            signal, sigma = diffusion.levels(following)
            x = signal * x0 + math.sqrt(max(sigma**2 - fresh**2, 0.0)) * direction
            if noises is not None and fresh:
                x = x + fresh * next(noises)
        return x


class DPMSolver(Sampler):
    """DPM-Solver++(2M): second order from the estimate of the step before, at one evaluation per step.

    Source: Lu et al., "DPM-Solver++" (2022), algorithm 2. Steps from pure noise and to clean data, where the logarithm
    of the signal-to-noise ratio is infinite, are of first order.
    """

    def __init__(self, steps: int = 15, grid: Grid = "dense") -> None:
        super().__init__(steps, grid)

    @torch.no_grad()
    def sample(
        self, predict: Predict, noise: Tensor, diffusion: CosineDiffusion, noises: Iterator[Tensor] | None = None
    ) -> Tensor:
        """Sample; see `Sampler.sample`. No noise is added."""
        x, earlier, stride_before = noise, None, 0.0
        for t, following in pairwise(time_grid(self.steps, self.grid, diffusion.steps)):
            rows = torch.full((len(x),), t, device=x.device)
            x0 = diffusion.to_x0(x, predict(x, rows), rows)
            stride = _log_ratio(diffusion, following) - _log_ratio(diffusion, t)
            estimate = x0
            if earlier is not None and math.isfinite(stride):
                weight = stride / (2 * stride_before)
                estimate = (1 + weight) * x0 - weight * earlier
            signal, sigma = diffusion.levels(t)
            next_signal, next_sigma = diffusion.levels(following)
            ratio = next_sigma / sigma
            x = ratio * x + (next_signal - signal * ratio) * estimate
            earlier, stride_before = x0, stride
        return x


def conditional_predictor(
    net: Denoiser, condition: Tensor, context: Tensor | None, scale: float, rescale: float
) -> Predict:
    """Return the net's prediction under a condition, with guidance or without; a guided one is one call of two copies.

    Args:
        condition: latents of the input (B, C, H, W) in the scale that the net sees.
        context: vectors of the clips (B, C), see `Denoiser.encode_clip`; None without a global encoder.
        scale: of the guidance, like `rescale` as of `classifier_free_guidance`.
    """
    copies = 1 if scale == 1 else 2
    if copies == 2:
        condition = torch.cat([condition, torch.full_like(condition, UNCONDITIONAL) * net.latent_scale])
    if context is not None:
        context = context.repeat(copies, 1)

    def predict(x: Tensor, t: Tensor) -> Tensor:
        noisy = concat(x.repeat(copies, 1, 1, 1), condition)
        output = net(noisy, t.repeat(copies), context=context).float()
        if copies == 1:
            return output
        conditional, unconditional = output.chunk(2)
        return classifier_free_guidance(conditional, unconditional, scale, rescale)

    return predict


def _ancestral_deviation(diffusion: CosineDiffusion, t: int, following: int) -> float:
    """Standard deviation of the noise that the process itself adds between two steps, given the data."""
    signal, sigma = diffusion.levels(t)
    next_signal, next_sigma = diffusion.levels(following)
    return next_sigma / sigma * math.sqrt(1 - (signal / next_signal) ** 2)


def _log_ratio(diffusion: CosineDiffusion, t: int) -> float:
    """Logarithm of signal over noise, infinite at both ends."""
    signal, sigma = diffusion.levels(t)
    if signal == 0 or sigma == 0:
        return math.inf if sigma == 0 else -math.inf
    return math.log(signal / sigma)
