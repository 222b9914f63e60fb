"""Distances between agents: sliced Wasserstein distance of point sets, divergence of predictions."""

from __future__ import annotations

from itertools import combinations

import torch
import torch.nn.functional as F
from torch import Tensor


def random_directions(
    dims: int, projections: int, generator: torch.Generator | None = None, pairs: int | None = None
) -> Tensor:
    """Unit vectors (D, n), uniform over all directions, float32 on the CPU.

    Args:
        generator: on the CPU; the global one by default.
        pairs: sample P sets (P, D, n) one after the other, as the original does for its P pairs.
    """
    if pairs is not None:
        return torch.stack([random_directions(dims, projections, generator) for _ in range(pairs)])
    normals = torch.randn(dims, projections, generator=generator)
    return normals / normals.norm(dim=0, keepdim=True)


def pairwise_sliced_wasserstein(representations: Tensor, directions: Tensor) -> Tensor:
    """Squared sliced 2-Wasserstein distance (P,) of each pair of point sets (K, B, D), no root taken.

    Pairs are (0, 1), (0, 2), ..., (K - 2, K - 1); P = K (K - 1) / 2.

    Args:
        directions: (D, n) for all pairs, or (P, D, n) with a set for each pair; columns of length 1.

    Source: Bonneel et al., "Sliced and Radon Wasserstein Barycenters of Measures" (2015), section 3.
    """
    count, _, dims = representations.shape
    pairs = list(combinations(range(count), 2))
    expected = (len(pairs), dims) if directions.dim() == 3 else (dims,)
    if tuple(directions.shape[:-1]) != expected:
        raise ValueError(
            f"{count} point sets of {dims} dimensions need directions ({dims}, n) or ({len(pairs)}, {dims}, n), "
            f"found {tuple(directions.shape)}"
        )
    first, second = (list(side) for side in zip(*pairs, strict=True))
    points = representations.float()
    directions = directions.to(points)
    if directions.dim() == 3:
        projected = [(points[side] @ directions).sort(dim=1).values for side in (first, second)]
    else:
        ordered = (points @ directions).sort(dim=1).values
        projected = [ordered[side] for side in (first, second)]
    return (projected[0] - projected[1]).square().mean(dim=(1, 2))


def pairwise_kl(log_probs: Tensor) -> Tensor:
    """Mean of the two Kullback-Leibler divergences (P, ...), in nats, of each pair of predictions (K, ..., V).

    Source: Kullback and Leibler, "On Information and Sufficiency" (1951), equation 2.6, halved.
    """
    values = []
    for first, second in combinations(log_probs.float(), 2):
        values.append((_divergence(first, second) + _divergence(second, first)) / 2)
    return torch.stack(values) if values else log_probs.new_zeros(0, *log_probs.shape[1:-1])


def _divergence(p: Tensor, q: Tensor) -> Tensor:
    """Kullback-Leibler divergence of log-probabilities (..., V)."""
    return F.kl_div(q, p, reduction="none", log_target=True).sum(-1)
