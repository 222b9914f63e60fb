"""What a table of measurements says: means with confidence intervals, and gains over a baseline."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

RESAMPLES = 2000  # of the bootstrap; the ends of a 95 % interval then rest on 50 of them each
LEVEL = 0.95
_MAX_VALUES = 4_000_000  # sampled at once, which bounds the memory of large sets


class Interval(NamedTuple):
    """A mean and its confidence interval; the ends are NaN for fewer than two values, all three for none."""

    mean: float
    low: float
    high: float


def bootstrap_mean(values: np.ndarray, weights: np.ndarray | None = None, seed: int = 0) -> Interval:
    """Compute the mean of finite values (N,) with a 95 % percentile bootstrap interval over items.

    An item is sampled with its weight (N,) > 0, one by default; equal arguments give equal intervals.

    Source: Efron and Tibshirani, "An introduction to the bootstrap" (1993), section 13.3.
    """
    from scipy.stats import bootstrap

    values = np.asarray(values, dtype=np.float64)
    weights = np.ones_like(values) if weights is None else np.asarray(weights, dtype=np.float64)
    if not len(values):
        return Interval(math.nan, math.nan, math.nan)
    mean = float(_weighted_mean(values, weights))
    if len(values) < 2:
        return Interval(mean, math.nan, math.nan)
    result = bootstrap(
        (values, weights), _weighted_mean, n_resamples=RESAMPLES, batch=max(1, _MAX_VALUES // len(values)), paired=True,
        confidence_level=LEVEL, method="percentile", rng=np.random.default_rng(seed),
    )  # fmt: skip
    return Interval(mean, *map(float, result.confidence_interval))


def _weighted_mean(values: np.ndarray, weights: np.ndarray, axis: int = -1) -> np.ndarray:
    return (values * weights).sum(axis) / weights.sum(axis)
