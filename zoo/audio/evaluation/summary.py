"""Summarise an evaluation: means with intervals and gains over a baseline by system and measure, and tables."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from zoo import __version__
from zoo.common.reports import Row, markdown_table, write_report
from zoo.common.statistics import LEVEL, bootstrap_mean

_MAX_FAILURES = 20  # named in a report
_TEXTS = ("name", "system", "status", "reason")  # columns of a row before its numbers


class MetricColumn(NamedTuple):
    """A column of the evaluation."""

    name: str
    higher_is_better: bool  # otherwise lower is
    unit: str = ""
    weight: str = ""  # column that weighs the files in a mean: word error rates are weighed by the reference's words


def summarize(
    rows: Sequence[Mapping[str, Any]],
    systems: Sequence[str],
    measures: Sequence[MetricColumn],
    baseline: str | None = None,
) -> list[Row]:
    """Sum up measurements per system and measure, in their order.

    Args:
        rows: one per file and system: `name`, `system`, and values by measure; NaN or a missing key is undefined.
        baseline: system that gains are relative to.

    Returns:
        Rows with mean, 95 % interval (low, high), std and median of the defined values, and gain, gain_low, gain_high:
        the mean paired improvement over the baseline on the files defined in both, positive is better.
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


def failed_rows(rows: Sequence[Row]) -> list[Row]:
    """Return the rows without measurements."""
    return [row for row in rows if row["status"] == "failed"]


def write_tables(
    output: Path, name: str, numbers: Sequence[str], rows: Sequence[Row], summary: Sequence[Row], report: Sequence[str],
    facts: Mapping[str, Any],
) -> None:  # fmt: skip
    """Write an evaluation: rows with columns of numbers as `name`, summary.csv, summary.json with facts, report.md.

    The lines of the report are followed by the first rows that failed.
    """
    failed = failed_rows(rows)
    if failed:
        report = [*report, "", f"{len(failed)} of {len(rows)} rows failed:", ""]
        report += [f"- {row['system']}/{row['name']}: {row['reason']}" for row in failed[:_MAX_FAILURES]]
        report += [f"- ... all in {name}"] if len(failed) > _MAX_FAILURES else []
    content = {
        "version": __version__,
        "confidence": LEVEL,
        **facts,
        "failed": [{key: row[key] for key in ("system", "name", "reason")} for row in failed],
        "summary": summary,
    }
    tables = {
        name: ([*_TEXTS, *numbers], [dict.fromkeys(numbers, math.nan) | row for row in rows]),
        "summary.csv": (list(summary[0]), summary),
        "summary.json": content,
        "report.md": "\n".join([*report, ""]),
    }
    write_report(output, tables)


def summary_table(summary: Sequence[Mapping[str, Any]], kind: str = "mean") -> str:
    """Format a summary in markdown, a row per system and a column per measure; `kind` is "mean" or "gain"."""
    low, high = ("low", "high") if kind == "mean" else ("gain_low", "gain_high")
    lines: dict[str, list[str]] = {}
    heads: dict[str, str] = {}
    for row in summary:
        arrow = "" if kind == "gain" else "↑" if row["better"] == "higher" else "↓"
        heads[row["measure"]] = " ".join(filter(None, (row["measure"], row["unit"], arrow)))
        cell = f"{row[kind]:.4g}" if math.isfinite(row[kind]) else "-"
        cell += f" [{row[low]:.4g}, {row[high]:.4g}]" if math.isfinite(row[low]) else ""
        cell += f" (n={row['count']})" if kind == "mean" and 0 < row["count"] < row["files"] else ""
        lines.setdefault(row["system"], [row["system"], str(row["files"])]).append(cell)
    rows = [line for line in lines.values() if kind == "mean" or any(cell != "-" for cell in line[2:])]
    return markdown_table(["system", "files", *heads.values()], rows)
