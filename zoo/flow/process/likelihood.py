"""Exact and estimated log-likelihoods of data under a flow, and bits per dimension of 8-bit images."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from zoo.flow.nets.velocity import VectorField
from zoo.flow.process.solvers import Solver

LEVELS = 256  # of an 8-bit image


@dataclass
class Likelihood:
    """What `log_likelihood` returns."""

    log_p: Tensor  # natural logarithm of the density (B,)
    x0: Tensor  # the noise that the data flows back to (B, ...)
    nfe: int  # evaluations of the field


def log_likelihood(
    velocity: VectorField,
    x1: Tensor,
    solver: Solver,
    probes: int | None = 1,
    generator: torch.Generator | None = None,
) -> Likelihood:
    """Log-density of data: that of the noise it flows back to, minus the integral of the field's divergence.

    Args:
        velocity: the field; its rows must not depend on one another.
        x1: data (B, ...), float.
        solver: how to integrate; dopri5, or a fine fixed grid.
        probes: random +-1 vectors per divergence (Hutchinson), the same at all times; None computes it exactly, with
            one backward pass per dimension.
        generator: source of the probes; torch's global one by default.

    Source: Grathwohl et al., "FFJORD" (2019), equations 4 and 7.
    """
    if probes is not None and probes < 1:
        raise ValueError(f"probes is at least 1, or None for the exact divergence; found {probes}")
    batch, dims = len(x1), x1[0].numel()
    if probes is None:
        vectors = torch.eye(dims, dtype=x1.dtype, device=x1.device)[:, None].expand(dims, batch, dims)
    else:
        signs = torch.randint(0, 2, (probes, batch, dims), generator=generator, device=x1.device)
        vectors = (2 * signs - 1).to(x1.dtype)

    def augmented(t: float, state: Tensor) -> Tensor:
        # autograd needs tensors that were not made in inference mode
        with torch.inference_mode(False), torch.enable_grad():
            x = state[:, :-1].reshape(x1.shape).clone().requires_grad_()
            slope = velocity(t, x)
            divergence = torch.zeros(batch, dtype=x1.dtype, device=x1.device)
            for index, vector in enumerate(vectors):
                last = index == len(vectors) - 1
                product = torch.autograd.grad(slope, x, vector.reshape(x1.shape).clone(), retain_graph=not last)[0]
                divergence = divergence + (product.flatten(1) * vector).sum(dim=1)
        if probes is not None:
            divergence = divergence / probes
        return torch.cat([slope.detach().flatten(1), divergence[:, None]], dim=1)

    start = torch.cat([x1.flatten(1), x1.new_zeros(batch, 1)], dim=1)
    solution = solver.solve(augmented, start, start=1.0, end=0.0)
    x0 = solution.x[:, :-1]
    log_p0 = -0.5 * x0.square().sum(dim=1) - 0.5 * dims * math.log(2 * math.pi)
    # integrated from 1 to 0, the last column is minus the integral from 0 to 1
    return Likelihood(log_p0 + solution.x[:, -1], x0.reshape(x1.shape), solution.nfe)


def dequantise(images: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Spread 8-bit values evenly over their bins of [-1, 1], so that a density of them bounds that of the image.

    Source: Theis et al., "A note on the evaluation of generative models" (2016), section 3.1.
    """
    if images.dtype != torch.uint8:
        raise ValueError(f"expected uint8 images, found {images.dtype}")
    noisy = images + torch.rand(images.shape, generator=generator, device=images.device)
    return 2 * noisy / LEVELS - 1


def bits_per_dim(log_p: Tensor, dims: int) -> Tensor:
    """Bits per value of 8-bit images from log-densities (B,), in nats, of their dequantised form with `dims` values."""
    return -log_p / (dims * math.log(2)) + math.log2(LEVELS / 2)
