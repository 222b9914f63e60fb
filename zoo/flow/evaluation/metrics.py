"""How near generated samples are to real ones: Fréchet distance and Chamfer distance.

All compare features or points, real (N, D) with fake (M, D); none downloads a net. State N and the extractor beside
every figure: with fewer samples than dimensions a Fréchet distance is biased upwards, and figures of different
extractors are not comparable.
ValueError is raised for sets of different widths, and for fewer rows than a figure needs.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

CHUNK = 1024  # rows per block of a distance matrix
TINY = 1e-12


class Moments(NamedTuple):
    """Mean (D,) and unbiased covariance (D, D) of features, float64: all that a Fréchet distance takes of them."""

    mean: Tensor
    covariance: Tensor


def moments(features: Tensor | Moments) -> Moments:
    """Mean and covariance of features (N, D)."""
    if isinstance(features, Moments):
        return features
    if features.dim() != 2 or len(features) < 2:
        raise ValueError(f"expected at least 2 features (N, D), found {tuple(features.shape)}")
    x = features.detach().to("cpu", torch.float64)
    return Moments(x.mean(dim=0), torch.cov(x.T).reshape(x.shape[1], x.shape[1]))


def frechet_distance(real: Tensor | Moments, fake: Tensor | Moments) -> float:
    """Squared Fréchet distance of two sets of features (N, D), each taken as a Gaussian; of Inception's it is the FID.

    Source: Heusel et al., "GANs Trained by a Two Time-Scale Update Rule" (2017), equation 6.
    """
    (mean_a, cov_a), (mean_b, cov_b) = moments(real), moments(fake)
    if mean_a.shape != mean_b.shape:
        raise ValueError(f"features have {len(mean_a)} and {len(mean_b)} dimensions")
    # trace of the root of a product, through symmetric matrices: stays real where a covariance is singular
    values, vectors = torch.linalg.eigh(cov_a)
    root = (vectors * values.clamp(min=0).sqrt()) @ vectors.T
    mixed = torch.linalg.eigvalsh(root @ cov_b @ root).clamp(min=0).sqrt().sum()
    return float((mean_a - mean_b).square().sum() + cov_a.trace() + cov_b.trace() - 2 * mixed)


def chamfer(first: Tensor, second: Tensor) -> float:
    """Chamfer distance as the assignment counts it: squared distances to the nearest other point, summed both ways."""
    first, second = checked_pair(first, second)
    distances = _squared_distances(first, second)
    return float(distances.min(dim=1).values.sum() + distances.min(dim=0).values.sum())


def checked_pair(real: Tensor, fake: Tensor) -> tuple[Tensor, Tensor]:
    """Both sets in float64 on the CPU, checked."""
    if real.dim() != 2 or fake.dim() != 2 or real.shape[1] != fake.shape[1]:
        raise ValueError(f"expected two sets (N, D) of one width, found {tuple(real.shape)} and {tuple(fake.shape)}")
    if not len(real) or not len(fake):
        raise ValueError(f"expected rows in each set, found {len(real)} and {len(fake)}")
    return real.detach().to("cpu", torch.float64), fake.detach().to("cpu", torch.float64)


def _squared_distances(a: Tensor, b: Tensor) -> Tensor:
    """Squared distances (N, M), from differences: products would lose the small ones."""
    blocks = [torch.cdist(rows, b, compute_mode="donot_use_mm_for_euclid_dist") for rows in a.split(CHUNK)]
    return torch.cat(blocks).square()
