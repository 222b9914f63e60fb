"""What a table of measurements says: means with confidence intervals, and gains over a baseline."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

RESAMPLES = 2000  # of the bootstrap; the ends of a 95 % interval then rest on 50 draws each
LEVEL = 0.95
_DRAWN_AT_ONCE, _WEIGHTS_AT_ONCE = 1_000_000, 4_000_000  # values, which bound the memory of large sets

Row = dict[str, Any]


class MetricColumn(NamedTuple):
    """A column of the evaluation.

    Attributes:
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
    """Mean with percentile bootstrap interval over items drawn with replacement.

    Args:
        values: (N,) float, finite.
        weights: (N,) float > 0, or None for equal ones; an item is drawn with its weight.
        level: coverage in (0, 1).
        resamples: number of draws of N items.
        seed: of the draws, so that the same values give the same interval.

    Source: Efron and Tibshirani, "An introduction to the bootstrap" (1993), section 13.3.
    """
    values = np.asarray(values, dtype=np.float64)
    weights = np.ones_like(values) if weights is None else np.asarray(weights, dtype=np.float64)
    count = len(values)
    if not count:
        return Interval(math.nan, math.nan, math.nan)
    mean = float((values * weights).sum() / weights.sum())
    if count < 2:
        return Interval(mean, math.nan, math.nan)

    def draw(rng: np.random.Generator, times: int) -> np.ndarray:
        drawn = rng.integers(count, size=(times, count))
        return (values * weights)[drawn].sum(1) / weights[drawn].sum(1)

    low, high = _percentiles(draw, max(1, _DRAWN_AT_ONCE // count), level, resamples, seed)
    return Interval(mean, float(low), float(high))


def bootstrap_groups(values: np.ndarray, resamples: int = RESAMPLES, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Percentile intervals of a mean over groups and their members: groups are resampled, and in each its members.

    Args:
        values: (groups, members, N) float, finite.
        resamples: number of draws.

    Returns:
        Lower and upper ends (N,) of the 95 % intervals; NaN for a single value.

    Source: Davison and Hinkley, "Bootstrap methods and their application" (1997), section 3.8.
    """
    groups, members, count = values.shape
    if groups * members < 2:
        return np.full(count, math.nan), np.full(count, math.nan)
    flat = values.reshape(groups * members, count).astype(np.float64)

    def draw(rng: np.random.Generator, times: int) -> np.ndarray:
        drawn = rng.multinomial(groups, [1 / groups] * groups, size=times)
        weights = rng.multinomial(drawn * members, [1 / members] * members)
        return weights.reshape(times, -1) @ flat / (groups * members)

    low, high = _percentiles(draw, max(1, _WEIGHTS_AT_ONCE // len(flat)), LEVEL, resamples, seed)
    return low, high


def _percentiles(
    draw: Callable[[np.random.Generator, int], np.ndarray], at_once: int, level: float, resamples: int, seed: int
) -> np.ndarray:
    """Ends of the interval that holds a share of the means that `draw(generator, how many)` gives."""
    rng = np.random.default_rng(seed)
    means = [draw(rng, min(at_once, resamples - first)) for first in range(0, resamples, at_once)]
    return np.quantile(np.concatenate(means), [(1 - level) / 2, (1 + level) / 2], axis=0)


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
    values: dict[tuple[str, str], dict[str, tuple[float, float]]] = {}
    files = dict.fromkeys(systems, 0)
    for row in (row for row in rows if row["system"] in files):
        files[row["system"]] += 1
        for measure in measures:
            value = float(row.get(measure.name, math.nan))
            weight = float(row.get(measure.weight, math.nan)) if measure.weight else 1.0
            if math.isfinite(value) and weight > 0:
                values.setdefault((row["system"], measure.name), {})[row["name"]] = value, weight
    summary = []
    for system in systems:
        for measure in measures:
            own = values.get((system, measure.name), {})
            base = values.get((baseline, measure.name), {}) if baseline not in (None, system) else {}
            summary.append(_summary_row(system, measure, files[system], own, base))
    return summary


def _summary_row(
    system: str,
    measure: MetricColumn,
    files: int,
    own: Mapping[str, tuple[float, float]],
    base: Mapping[str, tuple[float, float]],
) -> Row:
    numbers, weights = np.array(list(own.values())).reshape(-1, 2).T
    sign = 1 if measure.higher_is_better else -1
    gains = np.array([(sign * (own[name][0] - base[name][0]), own[name][1]) for name in own if name in base])
    gain = bootstrap_mean(*gains.reshape(-1, 2).T)
    return {
        "system": system,
        "measure": measure.name,
        "unit": measure.unit,
        "better": "higher" if measure.higher_is_better else "lower",
        "files": files,
        "count": len(numbers),
        **bootstrap_mean(numbers, weights)._asdict(),
        "std": float(numbers.std(ddof=1)) if len(numbers) > 1 else math.nan,
        "median": float(np.median(numbers)) if len(numbers) else math.nan,
        "gain": gain.mean,
        "gain_low": gain.low,
        "gain_high": gain.high,
    }
