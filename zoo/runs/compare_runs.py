"""How runs differ: keys of their configs, results, curves; reads files only, without torch or Lightning."""

from __future__ import annotations

import csv
import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zoo.common.foreign_files import load_json
from zoo.runs import run_info
from zoo.runs.run_folder import CONFIG_NAME, CSV_NAME
from zoo.runs.run_info import Points, RunInfo

METRIC_FILES = (CSV_NAME, "test.csv", "validate.csv")
SUMMARY_NAME = "summary.csv"  # of an evaluation of audio, by system and measure
_DEFAULT_METRICS = 8


@dataclass(frozen=True)
class RunComparison:
    """Several runs next to each other."""

    runs: list[RunInfo]
    names: list[str]
    config: dict[str, list[Any]]  # per key that differs, a value for each run; None where a run has no such key
    curves: list[dict[str, Points]]  # per run, (step, value) by metric
    highest: frozenset[str]  # metrics of which a run's config says that more is better; of others less is
    shared: list[str]  # metrics that all runs have

    def values(self, metric: str) -> list[tuple[float, float]]:
        """Return the lowest, or the highest, and the last value of each run."""
        choose = max if metric in self.highest else min
        values = [[value for _, value in curves[metric]] for curves in self.curves]
        return [(choose(each), each[-1]) for each in values]


def compare_runs(folders: Sequence[Path], root: Path) -> RunComparison:
    """Compare runs, or folders with the results of evaluations; ValueError where a folder holds neither."""
    runs = [run_info.read_run(folder, root) for folder in folders]
    curves = [_read_results(folder) for folder in folders]
    configs = [run_info.flatten_config(run_info.read_settings(folder)) for folder in folders]
    for folder, results, config in zip(folders, curves, configs, strict=True):
        if not results and not config.keys() - {""}:
            files = ", ".join((*METRIC_FILES, CONFIG_NAME))
            raise ValueError(f"{folder}: neither a run ({files}) nor an evaluation's results")
    keys = dict.fromkeys(key for config in configs for key in config if key)
    values = {key: [config.get(key) for config in configs] for key in keys}
    return RunComparison(
        runs=runs,
        names=_names(runs),
        config={key: each for key, each in values.items() if any(value != each[0] for value in each)},
        curves=curves,
        highest=frozenset(run.monitor for run in runs if run.monitor is not None and run.mode == "max"),
        shared=[key for key in curves[0] if key != "epoch" and all(key in results for results in curves)],
    )


def _names(runs: Sequence[RunInfo]) -> list[str]:
    """Name runs by the last part of their paths, or below the root where that does not tell them apart."""
    names = [run.folder.name for run in runs]
    return names if len(set(names)) == len(names) else [run.name for run in runs]


def _read_results(folder: Path) -> dict[str, Points]:
    curves: dict[str, Points] = {}
    for name in METRIC_FILES:
        curves = {**run_info.read_curves(folder / name), **curves}
    if curves or (folder / CONFIG_NAME).is_file():
        return curves
    return {key: [(0.0, value)] for key, value in _read_evaluation(folder).items()}


def _read_evaluation(folder: Path) -> dict[str, float]:
    """Read the numbers of an evaluation's folder by dotted key."""
    values: dict[str, Any] = {}
    if (folder / SUMMARY_NAME).is_file():
        with (folder / SUMMARY_NAME).open(newline="", encoding="utf-8", errors="replace") as file:
            rows = list(csv.DictReader(file))
        values = {f"{row.get('system')}/{row.get('measure')}": run_info.parse_finite(row.get("mean")) for row in rows}
    else:
        for path in sorted(folder.glob("*.json")):
            try:
                content = load_json(path.read_text(encoding="utf-8", errors="replace"))
            except (OSError, ValueError):
                continue
            values |= run_info.flatten_config(content)
    return {
        key: float(each) for key, each in values.items() if isinstance(each, int | float) and not isinstance(each, bool)
    }


def select_metrics(shared: Sequence[str], requested: str, monitors: Sequence[str] = ()) -> list[str]:
    """Select the metrics to show, of those that all runs have; ValueError where a pattern fits none.

    Args:
        requested: names or patterns (`val/*`), separated by commas; empty for what the runs monitor, then validation,
            then total losses.
    """
    patterns = [pattern.strip() for pattern in requested.strip("[]").split(",") if pattern.strip()]
    for pattern in patterns:
        if not fnmatch.filter(shared, pattern):
            available = ", ".join(shared) or "none"
            raise ValueError(f"--metrics {pattern}: no metric that all runs have; they are {available}")
    if patterns:
        return list(dict.fromkeys(key for pattern in patterns for key in fnmatch.filter(shared, pattern)))
    monitored = [key for key in monitors if key in shared]
    evaluated = [key for key in shared if key.startswith(("val/", "test/"))]
    selected = list(dict.fromkeys([*monitored, *evaluated, *run_info.select_loss_metrics(shared)]))
    return (selected or list(shared))[:_DEFAULT_METRICS]


def comparison_rows(comparison: RunComparison) -> list[dict[str, Any]]:
    """Return a row per run and shared metric, for compare.csv."""
    return [
        {"run": name, "metric": metric, "best": best, "last": last}
        for metric in comparison.shared
        for name, (best, last) in zip(comparison.names, comparison.values(metric), strict=True)
    ]


def result_table(comparison: RunComparison, metrics: Sequence[str]) -> Mapping[str, list[str]]:
    """Format best and last value of each run by metric with an arrow for the better direction, or its only value."""
    table = {}
    for metric in metrics:
        if all(len(curves[metric]) == 1 for curves in comparison.curves):  # as an evaluation has them
            table[metric] = [f"{curves[metric][0][1]:.4g}" for curves in comparison.curves]
            continue
        arrow = "↑" if metric in comparison.highest else "↓"
        table[f"{metric} {arrow}"] = [f"{best:.4g} ({last:.4g})" for best, last in comparison.values(metric)]
    return table
