"""What a table of measurements says: means with confidence intervals, and gains over a baseline."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

RESAMPLES = 2000  # of the bootstrap; the ends of a 95 % interval then rest on 50 of them each
LEVEL = 0.95
_MAX_VALUES = 4_000_000  # sampled at once, which bounds the memory of large sets

Row = dict[str, Any]


class MetricColumn(NamedTuple):
    """A column of the evaluation.

    Attributes:
        name: of the column.
        higher_is_better: otherwise lower is.
        unit: for the tables, "" where there is none.
        weight: name of the column that weighs the files in a mean, "" for equal weights: a word error rate weighed by
            the reference's words is the error rate of the whole set.
    """

    name: str
    higher_is_better: bool
    unit: str = ""
    weight: str = ""


class Interval(NamedTuple):
    """A mean and its confidence interval; the ends are NaN for fewer than two values, all three for none."""

    mean: float
    low: float
    high: float


def bootstrap_mean(
    values: np.ndarray,
    weights: np.ndarray | None = None,
    level: float = LEVEL,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Interval:
    """Compute a mean with a percentile bootstrap interval over items.

    Args:
        values: (N,) float, finite.
        weights: (N,) float > 0, or None for equal ones; an item is sampled with its weight.
        level: coverage in (0, 1).
        resamples: number of samples of N items.
        seed: the same values give the same interval.

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
        (values, weights), _weighted_mean, n_resamples=resamples, batch=max(1, _MAX_VALUES // len(values)), paired=True,
        confidence_level=level, method="percentile", rng=np.random.default_rng(seed),
    )  # fmt: skip
    return Interval(mean, *map(float, result.confidence_interval))


def _weighted_mean(values: np.ndarray, weights: np.ndarray, axis: int = -1) -> np.ndarray:
    return (values * weights).sum(axis) / weights.sum(axis)


def summarize(
    rows: Sequence[Mapping[str, Any]],
    systems: Sequence[str],
    measures: Sequence[MetricColumn],
    baseline: str | None = None,
) -> list[Row]:
    """Sum up measurements per system and measure.

    Args:
        rows: one per file and system: `name`, `system`, and values by measure; NaN or a missing key is undefined.
        systems: in the order of the result; rows of others are left out.
        measures: in the order of the result.
        baseline: system that gains are relative to, or None.

    Returns:
        Rows with system, measure, unit, better ("higher" or "lower"), files (of the system), count (defined values),
        mean, low, high (95 % interval), std, median, and gain, gain_low, gain_high: the mean paired improvement over
        the baseline on the files defined in both, positive is better.
    """
    summary: list[Row] = []
    for system in systems:
        files = sum(row["system"] == system for row in rows)
        for measure in measures:
            pairs = _defined_values(rows, system, measure)
            base = _defined_values(rows, baseline, measure) if baseline != system else {}
            numbers, weights = np.array(list(pairs.values())).reshape(-1, 2).T
            sign = 1 if measure.higher_is_better else -1
            gains = [(sign * (pairs[name][0] - base[name][0]), pairs[name][1]) for name in pairs if name in base]
            gain = bootstrap_mean(*np.array(gains).reshape(-1, 2).T)
            summary.append(
                {
                    "system": system,
                    "measure": measure.name,
                    "unit": measure.unit,
                    "better": "higher" if measure.higher_is_better else "lower",
                    "files": files,
                    "count": len(numbers),
                    **bootstrap_mean(numbers, weights)._asdict(),
                    "std": float(numbers.std(ddof=1)) if len(numbers) > 1 else math.nan,
                    "median": float(np.median(numbers)) if len(numbers) else math.nan,
                    **{"gain": gain.mean, "gain_low": gain.low, "gain_high": gain.high},
                }
            )
    return summary


def _defined_values(
    rows: Sequence[Mapping[str, Any]], system: str | None, measure: MetricColumn
) -> dict[str, tuple[float, float]]:
    """Collect value and weight of each file of a system that has both."""
    pairs = {}
    for row in rows:
        value = float(row.get(measure.name, math.nan))
        weight = float(row.get(measure.weight, math.nan)) if measure.weight else 1.0
        if row["system"] == system and math.isfinite(value) and weight > 0:
            pairs[row["name"]] = value, weight
    return pairs
