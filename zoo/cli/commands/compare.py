"""`zoo compare`."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoo.cli.commands.runs import steps
from zoo.common.report import markdown_table, panels, show_table, terminal_table, write_report
from zoo.runs.comparison import Comparison, choose, compare, plots, rows_of, shown, values_of
from zoo.runs.details import duration, record
from zoo.runs.listing import find_run, trained_seconds

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "compare"
_LONGEST = 40  # characters of a config's value in a table of the terminal
_PANEL = (5.0, 3.5)  # inches


def main(*runs: str, root: Path = Path("runs"), metrics: str = "", output: Path | None = None) -> int:
    """Show how runs differ in config, results and curves: zoo compare RUN RUN ...

    Args:
        *runs: two or more folders of runs or evaluations, ends of runs' names, or `last`.
        root: the folder that runs lie below.
        metrics: names or patterns separated by commas (`val/*,train/g/mel`); by default what the runs monitor,
            validation and total losses.
        output: folder for compare.md, compare.csv, compare.json and compare.png.

    Returns:
        0.

    Raises:
        ValueError: fewer than two runs, one that is not there, or a metric that not all have.
    """
    if len(runs) < 2:
        raise ValueError(f"compare needs two or more runs, found {', '.join(runs) or 'none'}: zoo compare RUN RUN ...")
    comparison = compare([find_run(run, root) for run in runs], root)
    chosen = choose(comparison.shared, metrics, [run.monitor for run in comparison.runs if run.monitor is not None])
    facts, results = _facts(comparison), values_of(comparison, chosen)
    heads = ["", *comparison.names]
    show_table(terminal_table(heads, facts, left=heads, box=None, pad_edge=False))
    print()
    config = [[key, *(_short(shown(value)) for value in values)] for key, values in comparison.config.items()]
    heads[0] = "config"
    show_table(terminal_table(heads, config or [["no key differs"]], left=heads, box=None, pad_edge=False))
    print()
    heads[0] = "lowest ↓ or highest ↑ (last)"
    rows = [[metric, *values] for metric, values in results.items()]
    show_table(terminal_table(heads, rows or [["no metric that all have"]], left=heads[:1], box=None, pad_edge=False))
    room = shutil.get_terminal_size().columns - max(map(len, comparison.names)) - 5
    lines = plots(comparison, chosen, min(max(room, 20), 60))
    print("\n".join(["", *lines] if lines else []))
    if output is not None:
        write_report(output, _files(comparison, chosen, facts, rows))
        print(f"written to {output}: {NAME}.md, {NAME}.csv, {NAME}.json, {NAME}.png")
    return 0


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _facts(comparison: Comparison) -> list[list[str]]:
    seconds = [trained_seconds(run.folder) for run in comparison.runs]
    return [
        ["recipe", *(run.recipe for run in comparison.runs)],
        ["state", *(run.state for run in comparison.runs)],
        ["step", *map(steps, comparison.runs)],
        ["time", *("-" if each is None else duration(each) for each in seconds)],
    ]


def _files(
    comparison: Comparison, chosen: Sequence[str], facts: list[list[str]], results: list[list[str]]
) -> dict[str, Any]:
    heads = ["", *comparison.names]
    config = [[key, *map(shown, values)] for key, values in comparison.config.items()]
    best = "The lowest value (↓), or the highest (↑) where a run monitors it so, and the last in brackets."
    text = [
        "# Runs compared",
        markdown_table(heads, facts),
        "## Config",
        markdown_table(["key", *comparison.names], config) if config else "No key differs.",
        "## Results",
        best,
        markdown_table(["metric", *comparison.names], results) if results else "No metric that all have.",
        *([f"![curves]({NAME}.png)"] if chosen else []),
    ]
    values = {
        "runs": [{"label": name, **record(run)} for name, run in zip(comparison.names, comparison.runs, strict=True)],
        "config": comparison.config,
        "results": rows_of(comparison),
    }
    return {
        f"{NAME}.md": "\n\n".join(text) + "\n",
        f"{NAME}.csv": (("run", "metric", "best", "last"), rows_of(comparison)),
        f"{NAME}.json": values,
        f"{NAME}.png": _figure(comparison, chosen) if chosen else None,
    }


def _figure(comparison: Comparison, metrics: Sequence[str]) -> Figure:
    figure, grid = panels(len(metrics), *_PANEL)
    for metric, axes in zip(metrics, grid, strict=True):
        for name, curves in zip(comparison.names, comparison.curves, strict=True):
            points = curves[metric]
            marker = "o" if len(points) < 10 else ""
            axes.plot([step for step, _ in points], [value for _, value in points], marker=marker, label=name)
        axes.set(title=metric, xlabel="step")
        axes.grid(alpha=0.3)
    grid[0].legend(fontsize="small")
    return figure
