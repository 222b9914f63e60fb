"""`zoo runs` and `zoo compare`."""

from __future__ import annotations

import json as text
import logging
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoo.cli.help_text import align_rows
from zoo.common.reports import markdown_table, print_table, replace_non_finite, subplot_grid, write_report
from zoo.runs import compare_runs as comparing
from zoo.runs import run_folder, run_info
from zoo.runs.run_info import RunInfo, describe_run, format_age, format_duration

if TYPE_CHECKING:
    from matplotlib.figure import Figure

log = logging.getLogger(__name__)

MAX_CELL = 40  # characters of a config's value in a table of the terminal
PANEL_INCHES = (5.0, 3.5)


def runs(*run: str, root: Path = Path("runs"), last: int = 20, json: bool = False) -> int:
    """List runs, the newest first, or tell one: zoo runs [RUN].

    Args:
        *run: a run's folder, the end of its name, or `last`; without it all runs are listed.
        root: the folder that runs lie below.
        last: list so many; 0 lists all.
        json: print JSON.
    """
    if len(run) > 1:
        raise ValueError(f"runs tells one run, found {', '.join(run)}; `zoo compare` takes several")
    if run:
        folder = run_info.find_run(run[0], root)
        if not run_info.is_run(folder):
            raise ValueError(f"{folder} holds no run: no {run_folder.CONFIG_NAME}, {run_folder.CSV_NAME} or checkpoint")
        summary = run_info.read_run(folder, root)
        facts = describe_run(summary)
        warn_of_divergence([summary.name], [folder])
        print(format_json(facts) if json else format_run(summary, facts))
        return 0
    if not root.is_dir():
        raise FileNotFoundError(f"{root}: no such folder; --root names the one that runs lie below")
    newest = run_info.list_runs(root, last if last > 0 else None)
    older = sum(1 for _ in run_info.find_runs(root)) - len(newest)
    rows = [
        (each.recipe, each.folder.name, each.state, format_steps(each),
         "-" if each.best is None else f"{each.monitor} {each.best:.4g}", format_age(each.changed))
        for each in newest
    ]  # fmt: skip
    if json:
        print(format_json([asdict(each) for each in newest]))
    elif not newest:
        print(f"no runs below {root}; `zoo fit --config RECIPE` makes one")
    else:
        print_columns(["recipe", "run", "state", "step", "best", "age"], rows)
        if older:
            print(f"{older} older ones: --last 0 lists all")
    return 0


def compare(*runs: str, root: Path = Path("runs"), metrics: str = "", output: Path | None = None) -> int:
    """Show how runs differ in config, results, curves: compare RUN RUN.

    Args:
        *runs: two or more folders of runs or evaluations, ends of runs' names, or `last`.
        root: the folder that runs lie below.
        metrics: names or patterns separated by commas (`val/*,train/g/mel`); by default what the runs monitor,
            validation and total losses.
        output: folder for compare.md, compare.csv, compare.json and compare.png.
    """
    if len(runs) < 2:
        raise ValueError(f"compare needs two or more runs, found {', '.join(runs) or 'none'}: zoo compare RUN RUN ...")
    comparison = comparing.compare_runs([run_info.find_run(run, root) for run in runs], root)
    monitors = [run.monitor for run in comparison.runs if run.monitor is not None]
    selected = comparing.select_metrics(comparison.shared, metrics, monitors)
    tables = comparison_tables(comparison, selected)
    for title, rows in tables.items():
        short = [[cell if len(cell) <= MAX_CELL else f"{cell[: MAX_CELL - 1]}…" for cell in row] for row in rows]
        print_columns([title, *comparison.names], short or [["none"]])
        print()
    warn_of_divergence(comparison.names, [run.folder for run in comparison.runs])
    if output is not None:
        results = comparing.comparison_rows(comparison)
        records = [
            {"label": name, **asdict(run), "folder": str(run.folder)}
            for name, run in zip(comparison.names, comparison.runs, strict=True)
        ]
        markdown = [markdown_table([title, *comparison.names], rows or [["none"]]) for title, rows in tables.items()]
        files = {
            "compare.md": "\n\n".join(["# Runs compared", *markdown, *(["![curves](compare.png)"] if selected else [])])
            + "\n",
            "compare.csv": (("run", "metric", "best", "last"), results),
            "compare.json": {"runs": records, "config": comparison.config, "results": results},
            "compare.png": plot_curves(comparison, selected) if selected else None,
        }
        write_report(output, files)
        print(f"written to {output}: {', '.join(name for name, content in files.items() if content is not None)}")
    return 0


def warn_of_divergence(names: Sequence[str], folders: Sequence[Path]) -> None:
    """Warn of metrics that have become NaN, of which tables show the last finite value."""
    for name, folder in zip(names, folders, strict=True):
        if divergence := run_info.describe_divergence(folder / run_folder.CSV_NAME):
            log.warning("%s: %s", name, divergence)


def comparison_tables(comparison: comparing.RunComparison, metrics: Sequence[str]) -> dict[str, list[list[str]]]:
    """Make the tables of a comparison by their titles: a name and a cell for each run in each row."""
    seconds = [run_info.trained_seconds(run.folder) for run in comparison.runs]
    results = comparing.result_table(comparison, metrics)
    config = comparison.config.items()
    return {
        "run": [
            ["recipe", *(run.recipe for run in comparison.runs)],
            ["state", *(run.state for run in comparison.runs)],
            ["step", *map(format_steps, comparison.runs)],
            ["time", *("-" if each is None else format_duration(each) for each in seconds)],
        ],
        "config": [[key, *("-" if value is None else str(value) for value in row)] for key, row in config],
        "lowest ↓ or highest ↑ (last)": [[metric, *values] for metric, values in results.items()],
    }


def print_columns(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table without lines; only its longest kinds of cells, recipes and values, are broken."""
    unbroken = ("run", "state", "step", "age")
    print_table(columns, rows, left=columns, no_wrap=unbroken, box=None, pad_edge=False)


def format_json(value: Any) -> str:
    """Format plain values and paths as JSON."""
    return text.dumps(replace_non_finite(value), indent=1, ensure_ascii=False, default=str)


def format_steps(run: RunInfo) -> str:
    """Format how far a run has come: `120/2600`, or by epochs `120 (epoch 3/10)`."""
    if run.total is not None:
        return f"{run.step}/{run.total}"
    return f"{run.step}" + (f" (epoch {run.epoch}/{run.epochs})" if run.epochs else "")


def format_run(run: RunInfo, facts: dict[str, Any]) -> str:
    """Lay out one run in lines; facts as of `describe_run`."""
    samples = facts["samples"]
    summary = {
        "recipe": run.recipe,
        "state": f"{run.state}, last update {format_age(run.changed)} ago",
        "step": format_steps(run),
        "time": format_duration(facts["seconds"]) if facts["seconds"] is not None else "unknown",
        "best": "none" if run.best is None else f"{run.monitor} {run.best:.6g} at step {run.best_step}",
        **facts["config"],
    }
    sections: dict[str, list[tuple[str, str]]] = {
        "checkpoints": [
            (each["name"], f"{each['bytes'] / 2**20:.1f} MiB  {'valid' if each['valid'] else 'CORRUPT'}")
            for each in facts["checkpoints"]
        ],
        "last values": [(key, f"{value:.6g}") for key, value in facts["last"].items()],
        "samples": [(str(samples[0].parent), ", ".join(path.name for path in samples))] if samples else [],
    }
    lines = [str(run.folder), *(f"  {key:<12}{value}" for key, value in summary.items())]
    for title, rows in sections.items():
        lines.append(f"  {title}:" + ("" if rows else " none"))
        lines += [f"  {line}" for line in align_rows(rows)]
    return "\n".join(lines)


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
