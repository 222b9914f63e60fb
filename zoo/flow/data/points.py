"""Sets of points of the plane on which a flow can be watched, most of them scikit-learn's."""

from __future__ import annotations

from functools import cache
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from zoo.common.checks import check_at_least, check_one_of

PointSet = Literal["gaussian", "shifted_gaussian", "circles", "s_curve", "moons", "swiss_roll", "checkerboard"]
STANDARDISED = ("s_curve", "moons", "swiss_roll", "checkerboard")
SCALE = 2.0  # standard deviation, over both axes, of a standardised set
SHIFT = 1.5  # of the shifted Gaussian, along both axes
REFERENCE_POINTS = 2**18  # that mean and standard deviation of a set are taken from


def draw(kind: PointSet, count: int, seed: int) -> Tensor:
    """Draw points (count, 2), float32, of a set.

    S-curve, moons, swiss roll and checkerboard have one mean and one standard deviation for both axes removed, and are
    scaled by 2. Both are those of the set, not of the draw, so all draws lie on the same curves. Circles and moons are
    evenly spaced; their seed decides the order alone.

    Source: KAIST CS492(D) 2024, assignment 7, task 1, whose draws are standardised each by itself and of whose
    checkerboards the number of points varies.
    """
    check_one_of(get_args(PointSet), kind=kind)
    check_at_least(1, count=count)
    points = _draw(kind, count, seed)
    if kind in STANDARDISED:
        mean, deviation = _moments(kind)
        points = (points - mean) / deviation * SCALE
    return torch.from_numpy(points.astype(np.float32))


@cache
def _moments(kind: PointSet) -> tuple[float, float]:
    points = _draw(kind, REFERENCE_POINTS, seed=0)
    return float(points.mean()), float(points.std())


def _draw(kind: PointSet, count: int, seed: int) -> np.ndarray:
    """Points (count, 2), float64, as they come."""
    from sklearn import datasets

    state = seed % 2**32  # scikit-learn takes no larger ones
    rng = np.random.default_rng(seed)
    if kind == "gaussian":
        return rng.standard_normal((count, 2))
    if kind == "shifted_gaussian":
        return rng.standard_normal((count, 2)) + SHIFT
    if kind == "circles":
        return datasets.make_circles(count, factor=0.5, random_state=state)[0] * 4
    if kind == "moons":
        return datasets.make_moons(count, random_state=state)[0]
    if kind == "s_curve":
        return datasets.make_s_curve(count, random_state=state)[0][:, [0, 2]]
    if kind == "swiss_roll":
        return datasets.make_swiss_roll(count, random_state=state, hole=True)[0][:, [0, 2]]
    return _checkerboard(count, rng)


def _checkerboard(count: int, rng: np.random.Generator) -> np.ndarray:
    """Points of [-2 pi, 2 pi]^2 whose sines differ in sign: half of the 4 x 4 cells."""
    points = rng.uniform(-2 * np.pi, 2 * np.pi, (count, 2))
    x, y = points.T
    wrong = np.sin(x) * np.sin(y) > 0
    y[wrong] = (y[wrong] + 3 * np.pi) % (4 * np.pi) - 2 * np.pi  # the next cell, where the sine has the other sign
    return points
