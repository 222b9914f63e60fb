"""What a table of measurements says: means with confidence intervals, gains over a baseline, tables and box plots."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RESAMPLES = 2000  # of the bootstrap; the ends of a 95 % interval then rest on 50 draws each
LEVEL = 0.95
_DRAWN_AT_ONCE = 1_000_000  # bounds the memory of large sets
_PLOT_COLUMNS = 3

Row = dict[str, Any]


class Interval(NamedTuple):
    """A mean and its confidence interval; the ends are NaN for fewer than two values, all three for none.

    Attributes:
        mean: Of the values.
        low: Lower end.
        high: Upper end.
    """

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
        level: Coverage in (0, 1).
        resamples: Number of draws of N items.
        seed: Of the draws, so that the same values give the same interval.

    Returns:
        Mean and interval.

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
    rng = np.random.default_rng(seed)
    means: list[np.ndarray] = []
    step = max(1, _DRAWN_AT_ONCE // count)
    for first in range(0, resamples, step):
        drawn = rng.integers(count, size=(min(step, resamples - first), count))
        means.append((values * weights)[drawn].sum(1) / weights[drawn].sum(1))
    low, high = np.quantile(np.concatenate(means), [(1 - level) / 2, (1 + level) / 2])
    return Interval(mean, float(low), float(high))


def summarise(
    rows: Sequence[Mapping[str, Any]], systems: Sequence[str], measures: Sequence[Measure], baseline: str | None = None
) -> list[Row]:
    """Sum up measurements per system and measure.

    Args:
        rows: One per file and system: `name`, `system`, and values by measure; NaN or a missing key is undefined.
        systems: In the order of the result; rows of others are left out.
        measures: In the order of the result.
        baseline: System over which gains are told, or None.

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
    measure: Measure,
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


def markdown_table(summary: Sequence[Mapping[str, Any]], kind: str = "mean") -> str:
    """Lay out a summary, a row per system and a column per measure.

    Args:
        summary: From `summarise`.
        kind: "mean", or "gain" for the gains over the baseline.

    Returns:
        A markdown table. An arrow tells what is better (of gains positive is); where not every file has a
        value, their number follows.
    """
    low, high = ("low", "high") if kind == "mean" else ("gain_low", "gain_high")
    cells: dict[str, dict[str, str]] = {}
    heads: dict[str, str] = {}
    for row in summary:
        arrow = "" if kind == "gain" else "↑" if row["better"] == "higher" else "↓"
        heads[row["measure"]] = " ".join(filter(None, (row["measure"], row["unit"], arrow)))
        line = cells.setdefault(row["system"], {"files": str(row["files"])})
        line[row["measure"]] = _cell(row[kind], row[low], row[high])
        if kind == "mean" and 0 < row["count"] < row["files"]:
            line[row["measure"]] += f" (n={row['count']})"
    shown = {
        system: line for system, line in cells.items() if kind == "mean" or any(line[name] != "-" for name in heads)
    }
    lines = [["system", "files", *heads.values()], ["---"] * (len(heads) + 2)]
    lines += [[system, line["files"], *(line[name] for name in heads)] for system, line in shown.items()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(value: float, low: float, high: float) -> str:
    if not math.isfinite(value):
        return "-"
    return f"{value:.4g}" if not math.isfinite(low) else f"{value:.4g} [{low:.4g}, {high:.4g}]"


def box_plots(rows: Sequence[Mapping[str, Any]], systems: Sequence[str], measures: Sequence[Measure]) -> Figure:
    """Draw a panel per measure with a box per system (quartiles; whiskers to 1.5 times their distance).

    Args:
        rows: As for `summarise`.
        systems: In the order of the boxes; a system without a value has none.
        measures: In the order of the panels; a measure without any value has none.

    Returns:
        The figure.
    """
    from matplotlib.figure import Figure

    panels = []
    for measure in measures:
        boxes = {
            system: [row[measure.name] for row in rows if row["system"] == system and measure.name in row]
            for system in systems
        }
        boxes = {system: [value for value in box if math.isfinite(value)] for system, box in boxes.items()}
        if any(boxes.values()):
            panels.append((measure, {system: box for system, box in boxes.items() if box}))
    columns = max(1, min(_PLOT_COLUMNS, len(panels)))
    height = max(1, math.ceil(len(panels) / columns))
    figure = Figure(figsize=(4 * columns, 3 * height), dpi=100, layout="constrained")
    grid = figure.subplots(height, columns, squeeze=False).flat
    for (measure, boxes), axes in zip(panels, grid, strict=False):
        axes.boxplot(list(boxes.values()), tick_labels=list(boxes))
        better = "higher" if measure.higher_is_better else "lower"
        axes.set(title=f"{measure.name} ({better} is better)", ylabel=measure.unit)
        axes.grid(axis="y", alpha=0.3)
    for axes in grid:  # those beyond the panels, which zip() has taken
        axes.set_visible(False)
    return figure


class Measure(NamedTuple):
    """A column of the evaluation.

    Attributes:
        name: Of the column.
        higher_is_better: The direction of improvement.
        unit: For the tables, "" where there is none.
        weight: Name of the column that weighs the files in a mean, "" for equal weights: a word error rate weighed by
            the reference's words is the error rate of the whole set.
    """

    name: str
    higher_is_better: bool
    unit: str = ""
    weight: str = ""
