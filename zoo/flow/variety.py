"""Whether samples vary as real ones do: spread within classes, and distance to the training images."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_PAIRS = 2**24  # distances at once


def spread(features: Tensor, labels: Sequence[int]) -> dict[int, float]:
    """Root mean square distance of features (N, D) from their class's mean, by label; classes of one are left out."""
    classes = torch.tensor(list(labels))
    found = {}
    for label in sorted(set(labels)):
        own = features[classes == label].double()
        if len(own) > 1:
            found[label] = float(own.var(dim=0).sum().sqrt())
    return found


def spread_ratio(real: Tensor, real_labels: Sequence[int], fake: Tensor, fake_labels: Sequence[int]) -> float:
    """Mean spread of samples within classes over that of real ones, of the classes of both; NaN where there is none.

    Args:
        real: features (N, D).
        real_labels: of them.
        fake: features (M, D).
        fake_labels: of them.

    Returns:
        The ratio: 1 is as varied, 0 is one sample per class.
    """
    ours, theirs = spread(fake, fake_labels), spread(real, real_labels)
    shared = ours.keys() & theirs.keys()
    total = sum(theirs[label] for label in shared)
    return sum(ours[label] for label in shared) / total if total > 0 else float("nan")


def nearest_distances(points: Tensor, others: Tensor) -> Tensor:
    """Euclidean distance of each point to the nearest of others.

    Args:
        points: (N, D).
        others: (M, D).

    Returns:
        (N,), float64; exactly 0 for a copy.

    Raises:
        ValueError: when a set is empty or the widths differ.
    """
    if (
        points.dim() != 2
        or others.dim() != 2
        or points.shape[1] != others.shape[1]
        or not len(points)
        or not len(others)
    ):
        raise ValueError(f"expected points of one width, found {tuple(points.shape)} and {tuple(others.shape)}")
    others = others.double()
    squares = others.square().sum(dim=1)
    found = []
    for rows in points.double().split(max(1, _PAIRS // len(others))):
        # products find the nearest fast, differences tell its distance exactly
        nearest = (squares - 2 * rows @ others.T).argmin(dim=1)
        found.append((rows - others[nearest]).norm(dim=1))
    return torch.cat(found)
