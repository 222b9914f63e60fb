"""How runs differ: keys of their configs, results, curves; reads files only, without torch or Lightning."""

from __future__ import annotations

import csv
import fnmatch
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zoo.common.configs import load_json
from zoo.runs import run_folder, run_info
from zoo.runs.run_info import Points, RunInfo

RECORDS = (run_folder.CSV_NAME, "test.csv", "validate.csv")
SUMMARY_NAME = "summary.csv"  # of an evaluation of audio, by system and measure
MISSING = "-"
_BLOCKS = "▁▂▃▄▅▆▇█"
_DEFAULT_METRICS = 8


@dataclass(frozen=True)
class RunComparison:
    """Several runs beside each other.

    Args:
        names: of the runs, all different.
        config: per key that differs, a value for each run; None where a run has no such key.
        curves: per run, (step, value) by metric.
        highest: metrics of which more is better, as a run's config says that monitors them; of others less is.
        shared: metrics that all runs have.
    """

    runs: list[RunInfo]
    names: list[str]
    config: dict[str, list[Any]]
    curves: list[dict[str, Points]]
    highest: frozenset[str]
    shared: list[str]

    def best(self, metric: str) -> list[float]:
        """The lowest value of each run, or the highest."""
        choose = max if metric in self.highest else min
        return [choose(value for _, value in curves[metric]) for curves in self.curves]

    def last(self, metric: str) -> list[float]:
        """The last value of each run."""
        return [curves[metric][-1][1] for curves in self.curves]


def compare_runs(folders: Sequence[Path], root: Path) -> RunComparison:
    """Read runs, or folders with the results of evaluations, and lay them beside each other.

    Raises:
        ValueError: a folder holds neither a run nor results.
    """
    runs = [run_info.read_run(folder, root) for folder in folders]
    curves = [_results(folder) for folder in folders]
    flat = [run_info.flatten_config(run_info.read_settings(folder)) for folder in folders]
    for folder, found, settings in zip(folders, curves, flat, strict=True):
        if not found and not settings.keys() - {""}:
            raise ValueError(f"{folder}: neither a run ({', '.join(RECORDS)}, config.yaml) nor an evaluation's results")
    keys = [key for key in dict.fromkeys(key for settings in flat for key in settings) if key]
    config = {key: [settings.get(key) for settings in flat] for key in keys}
    return RunComparison(
        runs=runs,
        names=_names(runs),
        config={key: values for key, values in config.items() if any(value != values[0] for value in values)},
        curves=curves,
        highest=frozenset(run.monitor for run in runs if run.monitor is not None and run.mode == "max"),
        shared=[key for key in curves[0] if key != "epoch" and all(key in found for found in curves)],
    )


def _names(runs: Sequence[RunInfo]) -> list[str]:
    """The last parts of each path, as many as it takes to tell runs apart, and a number where one comes twice."""
    parts = [run.folder.absolute().parts for run in runs]
    distinct = set(parts)
    lengths = range(1, max(map(len, parts)) + 1)
    count = next(count for count in lengths if len({each[-count:] for each in distinct}) == len(distinct))
    names = [Path(*each[-count:]).as_posix() for each in parts]
    times = Counter(names)
    return [f"{name} ({number})" if times[name] > 1 else name for number, name in enumerate(names, 1)]


def _results(folder: Path) -> dict[str, Points]:
    curves: dict[str, Points] = {}
    for name in RECORDS:
        curves = {**run_info.read_curves(folder / name), **curves}
    if curves or (folder / run_folder.CONFIG_NAME).is_file():
        return curves
    return {key: [(0.0, value)] for key, value in _evaluated(folder).items()}


def _evaluated(folder: Path) -> dict[str, float]:
    """The numbers of an evaluation's folder by dotted key."""
    if (folder / SUMMARY_NAME).is_file():
        with (folder / SUMMARY_NAME).open(newline="", encoding="utf-8", errors="replace") as file:
            rows = [row for row in csv.DictReader(file) if row.get("mean")]
        return {
            f"{row.get('system')}/{row.get('measure')}": float(row["mean"]) for row in rows if _is_number(row["mean"])
        }
    found: dict[str, float] = {}
    for path in sorted(folder.glob("*.json")):
        try:
            values = run_info.flatten_config(load_json(path.read_text(encoding="utf-8", errors="replace")))
        except (OSError, ValueError):
            continue
        found |= {key: float(v) for key, v in values.items() if isinstance(v, int | float) and not isinstance(v, bool)}
    return found


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def select_metrics(shared: Sequence[str], wished: str, monitors: Sequence[str] = ()) -> list[str]:
    """The metrics to show.

    Args:
        shared: by all runs.
        wished: names or patterns (`val/*`), separated by commas; empty for what the runs monitor, then validation, then
            total losses.

    Raises:
        ValueError: a wish fits no shared metric.
    """
    patterns = [part.strip() for part in wished.strip("[]").split(",") if part.strip()]
    for pattern in patterns:
        if not fnmatch.filter(shared, pattern):
            raise ValueError(
                f"--metrics {pattern}: no metric that all runs have; they are {', '.join(shared) or 'none'}"
            )
    if patterns:
        return list(dict.fromkeys(key for pattern in patterns for key in fnmatch.filter(shared, pattern)))
    first = [*(key for key in monitors if key in shared), *(key for key in shared if key.startswith(("val/", "test/")))]
    kept = list(dict.fromkeys([*first, *run_info.select_loss_metrics(shared)]))
    return (kept or list(shared))[:_DEFAULT_METRICS]


def sparkline(points: Points, steps: tuple[float, float], values: tuple[float, float], width: int = 40) -> str:
    """A curve as a line of blocks.

    Args:
        steps: at the left and the right end.
        values: at the lowest and the highest block.
        width: characters of the whole axis; a curve that ends earlier is shorter.
    """
    span, reach = max(steps[1] - steps[0], 1e-12), max(values[1] - values[0], 1e-12)
    cells: dict[int, float] = {}
    for step, value in points:
        cells[round((step - steps[0]) / span * (width - 1))] = value  # the last of each cell
    line, block = "", " "
    for cell in range(max(cells, default=-1) + 1):
        if cell in cells:
            block = _BLOCKS[round((cells[cell] - values[0]) / reach * (len(_BLOCKS) - 1))]
        line += block
    return line


def plot_lines(comparison: RunComparison, metrics: Sequence[str], width: int = 40) -> list[str]:
    """Small plots for a terminal: one scale for all runs of a metric."""
    lines = []
    size = max(map(len, comparison.names))
    for metric in metrics:
        drawn = [curves[metric] for curves in comparison.curves]
        steps, values = _range([s for points in drawn for s, _ in points]), _range([v for p in drawn for _, v in p])
        if max(map(len, drawn)) < 2:
            continue
        lines.append(f"{metric}  {values[0]:.4g} to {values[1]:.4g}, steps {steps[0]:.0f} to {steps[1]:.0f}")
        for name, points in zip(comparison.names, drawn, strict=True):
            lines.append(f"  {name:<{size}}  {sparkline(points, steps, values, width)}")
    return lines


def _range(values: Sequence[float]) -> tuple[float, float]:
    return min(values), max(values)


def comparison_rows(comparison: RunComparison) -> list[dict[str, Any]]:
    """A row per run and shared metric, for compare.csv."""
    return [
        {"run": name, "metric": metric, "best": best, "last": last}
        for metric in comparison.shared
        for name, best, last in zip(comparison.names, comparison.best(metric), comparison.last(metric), strict=True)
    ]


def format_value(value: Any) -> str:
    """A config's value in a table."""
    return MISSING if value is None else str(value).replace("|", "\\|")


def result_table(comparison: RunComparison, metrics: Sequence[str]) -> Mapping[str, list[str]]:
    """Best and last value of each run, as text, by metric with an arrow for the better direction."""
    table = {}
    for metric in metrics:
        pairs = zip(comparison.best(metric), comparison.last(metric), strict=True)
        arrow = "↑" if metric in comparison.highest else "↓"
        table[f"{metric} {arrow}"] = [f"{best:.4g} ({last:.4g})" for best, last in pairs]
    return table
