"""`zoo runs` and `zoo compare`."""

from __future__ import annotations

import json as text
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoo.common.reports import (
    markdown_table,
    print_table,
    replace_non_finite,
    subplot_grid,
    terminal_table,
    write_report,
)
from zoo.runs import compare_runs as comparing
from zoo.runs import run_folder, run_info
from zoo.runs.run_info import describe_run, format_age, format_duration, run_to_dict

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_CELL = 40  # characters of a config's value in a table of the terminal
PANEL_INCHES = (5.0, 3.5)


def runs(*run: str, root: Path = Path("runs"), last: int = 20, json: bool = False) -> int:
    """List runs, the newest first, or tell one: zoo runs [RUN].

    Args:
        *run: a run's folder, the end of its name, or `last`; without it all runs are listed.
        root: the folder that runs lie below.
        last: list so many; 0 lists all.
        json: print JSON.

    Returns:
        0.

    Raises:
        ValueError: there is no such run, or more than one is named.
        FileNotFoundError: there is no folder `root`.
    """
    if len(run) > 1:
        raise ValueError(f"runs tells one run, found {', '.join(run)}; `zoo compare` takes several")
    if run:
        folder = run_info.find_run(run[0], root)
        if not run_info.is_run(folder):
            raise ValueError(f"{folder} holds no run: no {run_folder.CONFIG_NAME}, {run_folder.CSV_NAME} or checkpoint")
        facts = describe_run(run_info.read_run(folder, root))
        print(text.dumps(replace_non_finite(facts), indent=1, ensure_ascii=False) if json else format_run(facts))
        return 0
    if not root.is_dir():
        raise FileNotFoundError(f"{root}: no such folder; --root names the one that runs lie below")
    found = run_info.list_runs(root)
    newest = found[:last] if last > 0 else found
    if json:
        print(text.dumps(replace_non_finite([run_to_dict(each) for each in newest]), indent=1, ensure_ascii=False))
    elif not found:
        print(f"no runs below {root}; `zoo fit --config RECIPE` makes one")
    else:
        rows = [
            (each.recipe, each.short_name, each.state, format_steps(each),
             "-" if each.best is None else f"{each.monitor} {each.best:.4g}", format_age(each.changed))
            for each in newest
        ]  # fmt: skip
        print_columns(["recipe", "run", "state", "step", "best", "age"], rows, whole=("run", "state", "step", "age"))
        if len(newest) < len(found):
            print(f"{len(found) - len(newest)} older ones: --last 0 lists all")
    return 0


def compare(*runs: str, root: Path = Path("runs"), metrics: str = "", output: Path | None = None) -> int:
    """Show how runs differ in config, results, curves: compare RUN RUN.

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
    comparison = comparing.compare_runs([run_info.find_run(run, root) for run in runs], root)
    monitors = [run.monitor for run in comparison.runs if run.monitor is not None]
    selected = comparing.select_metrics(comparison.shared, metrics, monitors)
    seconds = [run_info.trained_seconds(run.folder) for run in comparison.runs]
    facts = [
        ["recipe", *(run.recipe for run in comparison.runs)],
        ["state", *(run.state for run in comparison.runs)],
        ["step", *map(format_steps, comparison.runs)],
        ["time", *("-" if each is None else format_duration(each) for each in seconds)],
    ]
    config = [[key, *map(comparing.format_value, values)] for key, values in comparison.config.items()]
    short = [[key if len(key) <= MAX_CELL else f"{key[: MAX_CELL - 1]}…" for key in row[1:]] for row in config]
    results = [[metric, *values] for metric, values in comparing.result_table(comparison, selected).items()]
    print_columns(["", *comparison.names], facts)
    print()
    rows = [[key, *row] for (key, *_), row in zip(config, short, strict=True)]
    print_columns(["config", *comparison.names], rows or [["no key differs"]])
    print()
    head = "lowest ↓ or highest ↑ (last)"
    print_columns([head, *comparison.names], results or [["no metric that all have"]], left=[head])
    width = shutil.get_terminal_size().columns - max(map(len, comparison.names)) - 5
    lines = comparing.plot_lines(comparison, selected, min(max(width, 20), 60))
    print("\n".join(["", *lines] if lines else []))
    if output is not None:
        write_report(output, comparison_files(comparison, selected, facts, config, results))
        print(f"written to {output}: compare.md, compare.csv, compare.json, compare.png")
    return 0


def print_columns(
    columns: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[str] | None = None, whole: Sequence[str] = ()
) -> None:
    """Print a table without lines; all columns are on the left unless `left` names those that are."""
    print_table(
        terminal_table(columns, rows, left=columns if left is None else left, whole=whole, box=None, pad_edge=False)
    )


def format_steps(run: run_info.RunInfo) -> str:
    """Describe how far a run has come: `120/2600`, or by epochs `120 (epoch 3/10)`."""
    if run.total is not None:
        return f"{run.step}/{run.total}"
    return f"{run.step}" + (f" (epoch {run.epoch}/{run.epochs})" if run.epochs else "")


def format_run(facts: dict[str, Any]) -> str:
    """Lay out the facts of one run in lines."""
    best, media = facts["best"], facts["media"]
    summary = {
        "recipe": facts["recipe"],
        "state": f"{facts['state']}, last sign of life {format_age(facts['changed'])} ago",
        "step": facts["progress"],
        "time": format_duration(facts["seconds"]) if facts["seconds"] is not None else "unknown",
        "best": "none" if best is None else f"{facts['monitor']} {best['value']:.6g} at step {best['step']}",
        **facts["config"],
    }
    checkpoints = [
        (each["name"], f"{each['bytes'] / 2**20:.1f} MiB", "valid" if each["valid"] else "CORRUPT")
        for each in facts["checkpoints"]
    ]
    sections: dict[str, Sequence[Sequence[str]]] = {
        "checkpoints": checkpoints,
        "last values": [(key, f"{value:.6g}") for key, value in facts["last"].items()],
        "samples": [(media["folder"], ", ".join(media["files"]))] if media else [],
        "next": [(command,) for command in facts["next"]],
    }
    lines = [facts["folder"], *(f"  {key:<12}{value}" for key, value in summary.items())]
    for title, rows in sections.items():
        width = max((len(row[0]) for row in rows), default=0)
        lines.append(f"  {title}:" + ("" if rows else " none"))
        lines += [f"    {row[0]:<{width}}  {'  '.join(row[1:])}".rstrip() for row in rows]
    return "\n".join(lines)


def comparison_files(
    comparison: comparing.RunComparison, metrics: Sequence[str], facts: list[list[str]], config: list[list[str]],
    results: list[list[str]],
) -> dict[str, Any]:  # fmt: skip
    """Make the files of `zoo compare --output`."""
    paragraphs = [
        "# Runs compared",
        markdown_table(["", *comparison.names], facts),
        "## Config",
        markdown_table(["key", *comparison.names], config) if config else "No key differs.",
        "## Results",
        "The lowest value (↓), or the highest (↑) where a run monitors it so, and the last in brackets.",
        markdown_table(["metric", *comparison.names], results) if results else "No metric that all have.",
        *(["![curves](compare.png)"] if metrics else []),
    ]
    rows = comparing.comparison_rows(comparison)
    records = [{"label": name, **run_to_dict(run)} for name, run in zip(comparison.names, comparison.runs, strict=True)]
    return {
        "compare.md": "\n\n".join(paragraphs) + "\n",
        "compare.csv": (("run", "metric", "best", "last"), rows),
        "compare.json": {"runs": records, "config": comparison.config, "results": rows},
        "compare.png": plot_curves(comparison, metrics) if metrics else None,
    }


def plot_curves(comparison: comparing.RunComparison, metrics: Sequence[str]) -> Figure:
    """Plot each metric of all runs over the steps."""
    figure, grid = subplot_grid(len(metrics), *PANEL_INCHES)
    for metric, axes in zip(metrics, grid, strict=True):
        for name, curves in zip(comparison.names, comparison.curves, strict=True):
            steps, values = zip(*curves[metric], strict=True)
            axes.plot(steps, values, marker="o" if len(steps) < 10 else "", label=name)
        axes.set(title=metric, xlabel="step")
        axes.grid(alpha=0.3)
    grid[0].legend(fontsize="small")
    return figure
