"""What an evaluation of an agent leaves behind: tables on the screen, the result, evaluation.json, .csv and .png."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from torch import Tensor

from zoo.atomic import write_atomic
from zoo.audio.table import csv_lines, header_line
from zoo.compressed_ad import plots
from zoo.compressed_ad.summary import last_episodes

NAME = "evaluation"
RESULT_NAME, RETURNS_NAME = "eval_result.npy", "returns.npy"
COLUMNS = ("task", "mean", "first", "last", "last_std", "random", "oracle", "regret")
SHOWN_TASKS = 20  # on the screen; evaluation.csv has all


def show(facts: Mapping[str, Any], console: Console | None = None) -> None:
    """Print the summary, and the tasks where they are few."""
    console = console or Console()
    summary = facts["summary"]
    table = Table(title=f"{facts['run']}: {len(facts['tasks'])} tasks ({facts['split_from']})", title_justify="left")
    for column in ("figure", "mean", "95 % interval"):
        table.add_column(column)
    for key in ("first", "last", "mean", "regret"):
        row = summary[key]
        ends = "" if row["low"] is None else f"{row['low']:.3f} to {row['high']:.3f}"
        table.add_row(
            f"{key} ({summary['last_episodes']} episodes)" if key == "last" else key, f"{row['mean']:.3f}", ends
        )
    for key in ("random", "oracle"):
        table.add_row(key, f"{summary[key]:.3f}", "")
    for share, episode in summary["episodes_to_reach"].items():
        table.add_row(f"episodes to {share} of the last", "never" if episode is None else str(episode), "")
    if facts["gap"] is not None:
        for key in ("before", "after"):
            value = facts["gap"][key]
            table.add_row(f"{key} the gap", "-" if value is None else f"{value:.3f}", f"{facts['gap']['count']} pairs")
    console.print(table)
    if len(facts["tasks"]) <= SHOWN_TASKS:
        rows = Table()
        for column in COLUMNS:
            rows.add_column(column, justify="right")
        for task in facts["tasks"]:
            rows.add_row(*(f"{task[key]:.3f}" if isinstance(task[key], float) else str(task[key]) for key in COLUMNS))
        console.print(rows)


def write_report(output: Path, facts: Mapping[str, Any], returns: np.ndarray) -> None:
    """Write eval_result.npy, returns.npy, evaluation.csv, .png and, last, .json.

    Args:
        output: folder; older files are replaced.
        facts: what `evaluate` returns.
        returns: (tasks, seeds, episodes) float32.

    Raises:
        OSError: when a file cannot be written; the old one is untouched.
    """
    result = returns.mean(1)
    text = json.dumps(facts, indent=1, ensure_ascii=False, allow_nan=False)
    lines = header_line(COLUMNS) + csv_lines(facts["tasks"], COLUMNS)
    write_atomic(output / RETURNS_NAME, lambda file: np.save(file, returns))
    write_atomic(output / RESULT_NAME, lambda file: np.save(file, result))
    write_atomic(output / f"{NAME}.csv", lambda file: file.write(lines))
    plots.save(plots.curves({"agent": facts}), output / f"{NAME}.png")
    write_atomic(output / f"{NAME}.json", lambda file: file.write(text.encode()))


def task_rows(tasks: Tensor, returns: np.ndarray, random: np.ndarray, oracle: np.ndarray) -> list[dict[str, Any]]:
    """A row per task, see `COLUMNS`.

    Args:
        tasks: (n, F).
        returns: (n, seeds, episodes).
        random: expected return of random actions (n,).
        oracle: return of who knows the task (n,).

    Returns:
        Rows; `last_std` is the spread over seeds.
    """
    last = returns[:, :, returns.shape[2] - last_episodes(returns.shape[2]) :].mean(2, dtype=np.float64)
    mean = returns.mean((1, 2), dtype=np.float64)
    return [
        {
            "task": " ".join(map(str, task)),
            "mean": float(mean[row]),
            "first": float(returns[row, :, 0].mean(dtype=np.float64)),
            "last": float(last[row].mean()),
            "last_std": float(last[row].std()),
            "random": float(random[row]),
            "oracle": float(oracle[row]),
            "regret": float(oracle[row] - mean[row]),
        }
        for row, task in enumerate(tasks.tolist())
    ]
