"""Around generating: reproducible noise, inversion, interpolation, inpainting, and how straight the paths are."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from zoo.flow.nets.velocity import VectorField
from zoo.flow.process.paths import AffinePath
from zoo.flow.process.solvers import Solution, Solver

# Epochs of the keys of the noise (see `item_seed`): of their own, so that samples do not begin with noise that a
# training on data or on pairs has seen. torch's generator takes 32 bits of a seed, so that one in 2^32 pairs is equal.
PAIRS, SAMPLES = -3, -4


def noise(seeds: Sequence[int], shape: Sequence[int], device: torch.device | str = "cpu") -> Tensor:
    """Standard normal noise (len(seeds), *shape), float32, each sample from its seed.

    So it is the same for any batch size and number of processes, and, drawn on the CPU, for all devices.
    """
    if not seeds:
        raise ValueError("noise needs at least one seed")
    generator, samples = torch.Generator(), torch.empty(len(seeds), *shape)
    for seed, sample in zip(seeds, samples.unbind(), strict=True):
        sample.normal_(generator=generator.manual_seed(seed))
    return samples.to(device)


def invert(velocity: VectorField, x1: Tensor, solver: Solver) -> Solution:
    """Follow the flow backwards, from data (B, ...) to the noise that generates it.

    Guidance makes the way back less exact; invert with the conditional or unconditional field.
    """
    return solver.solve(velocity, x1, start=1.0, end=0.0)


def slerp(first: Tensor, second: Tensor, weights: Tensor) -> Tensor:
    """Noises (K, ...) on the great circle between two, by weights (K,) of the second; a line would shrink their norm.

    Source: Shoemake, "Animating rotation with quaternion curves" (1985).
    """
    if first.shape != second.shape:
        raise ValueError(f"expected noises of one shape, found {tuple(first.shape)} and {tuple(second.shape)}")
    weights = weights.to(first).reshape(-1, *(1,) * first.dim())
    cosine = (first * second).sum() / (first.norm() * second.norm())
    angle = torch.acos(cosine.clamp(-1, 1))
    if angle.sin().abs() < 1e-4:  # (anti)parallel: the circle is not determined, and the line is as good
        return (1 - weights) * first + weights * second
    return (((1 - weights) * angle).sin() * first + (weights * angle).sin() * second) / angle.sin()


def interpolate(velocity: VectorField, first: Tensor, second: Tensor, weights: Tensor, solver: Solver) -> Tensor:
    """Morph one sample into another by weights (K,) of the second: both to noise, around the circle, and back.

    The field has no label, or one label for all rows (`Sampler.field([label])`).
    """
    ends = invert(velocity, torch.stack([first, second]), solver).x
    return solver.solve(velocity, slerp(ends[0], ends[1], weights)).x


def inpaint(
    velocity: VectorField, x0: Tensor, data: Tensor, mask: Tensor, path: AffinePath, solver: Solver
) -> Solution:
    """Generate what is missing of given data: the known part is put back onto its path at each time of the grid.

    Args:
        velocity: the field, for instance of `Sampler.field`.
        data: (B, ...); its values outside the mask do not count.
        mask: bool, broadcastable to (B, ...); True where the data is known.
        path: that the net was trained on.
        solver: how to integrate; its grid says how often the known part is put back, also for dopri5.
    """
    if mask.dtype != torch.bool:
        raise ValueError(f"the mask must be bool, True where the data is known; found {mask.dtype}")

    def project(t: float, x: Tensor) -> Tensor:
        on_path = data if t == 1 else path.sample(x0, data, x.new_full((len(x),), t))
        return torch.where(mask, on_path, x)

    return solver.solve(velocity, x0, project=project)


@torch.no_grad()
def straightness(velocity: VectorField, x0: Tensor, solver: Solver) -> Tensor:
    """How far each path is from a straight line: the integral of |(x_1 - x_0) - v(t, x_t)|^2 over t, by trapezoids.

    The values (B,) are 0 for a straight line at constant speed, which one Euler step follows exactly.

    Source: Liu et al., "Flow Straight and Fast" (2023), section 2.2.
    """
    solution = solver.solve(velocity, x0, keep_trajectory=True)
    chord = solution.x - x0
    bends = [
        (chord - velocity(t, x)).flatten(1).square().sum(dim=1)
        for t, x in zip(solution.times, solution.trajectory, strict=True)
    ]
    total = torch.zeros_like(bends[0])
    for (first, last), (before, after) in zip(pairwise(solution.times), pairwise(bends), strict=True):
        total = total + (last - first) * (before + after) / 2
    return total
