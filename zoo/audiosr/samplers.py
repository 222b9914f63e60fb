"""Samplers that follow the diffusion backwards, the steps they take, and guidance."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import Tensor

from zoo.audiosr.diffusion import GRIDS, CosineDiffusion, Grid, Predict, Sampler
from zoo.audiosr.nets.denoiser import UNCONDITIONAL, Denoiser, concat
from zoo.blocks.image import classifier_free_guidance
from zoo.common.checks import check_one_of, check_within

_DENSITY = 1.5  # exponent of the dense grid: best for DPM-Solver++ on mixtures of Gaussians, at 8 to 20 steps


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
    times = [-1]
    for index in range(1, steps + 1):
        times.append(max(round(total * (index / steps) ** exponent) - 1, times[-1] + 1))
    return times[::-1]


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
            signal, sigma = diffusion.levels(t)
            next_signal, next_sigma = diffusion.levels(following)
            # share of the noise that the process itself adds between the two steps, given the data
            fresh = self.eta * (next_sigma / sigma * math.sqrt(1 - (signal / next_signal) ** 2))
            x = next_signal * x0 + math.sqrt(max(next_sigma**2 - fresh**2, 0.0)) * direction
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
    net: Denoiser, condition: Tensor, context: Tensor | None, scale: float, rescale: float = 0.0
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


def _log_ratio(diffusion: CosineDiffusion, t: int) -> float:
    """Logarithm of signal over noise, infinite at both ends."""
    signal, sigma = diffusion.levels(t)
    if signal == 0 or sigma == 0:
        return math.inf if sigma == 0 else -math.inf
    return math.log(signal / sigma)
