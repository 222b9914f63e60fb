"""What an evaluation leaves behind: tables on the screen, evaluation.json, .csv and .png."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from zoo.atomic import write_atomic
from zoo.audio.table import csv_lines, header_line

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# which way is better; shares of the real images' figure are best at 1
BETTER = {
    "frechet": "↓",
    "accuracy": "↑",
    "std_ratio": "→ 1",
    "nearest": "",
    "nearest_ratio": "→ 1",
    "kid": "↓",
    "kid_std": "",
    "precision": "↑",
    "recall": "↑",
    "density": "↑",
    "coverage": "↑",
    "sliced_wasserstein": "↓",
}
COLUMNS = ("system", "figure", "value", "low", "high", "samples", "reference")
NAME = "evaluation"
SCATTERED = 2000  # points of each set


def show(report: Mapping[str, Any], console: Console | None = None) -> None:
    """Print the figures, a column per system, and the table of classes."""
    console = console or Console()
    rows = report["rows"]
    counts = {row["system"]: f"{row['samples']}/{row['reference']}" for row in reversed(rows)}
    table = Table(
        title=f"{report['extractor']}, {report['dims']} dimensions",
        title_justify="left",
        caption="Under each name: images/real images. Below a value: 95 % interval of the first.",
        caption_justify="left",
    )
    table.add_column("figure", no_wrap=True)
    systems = list(dict.fromkeys(row["system"] for row in rows))
    for system in systems:
        table.add_column(f"{system}\n{counts[system]}", justify="right", no_wrap=system == systems[0])
    cells = {(row["figure"], row["system"]): _cell(row, row["system"] == systems[0]) for row in rows}
    for figure in dict.fromkeys(row["figure"] for row in rows):
        table.add_row(f"{figure} {BETTER[figure]}", *(cells.get((figure, system), "") for system in systems))
    console.print(table)
    if report["classes"]:
        console.print(_class_table(report["classes"]))
    for note in report["notes"]:
        console.print(note)


def _class_table(classes: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(title="classes", title_justify="left")
    for column in classes[0]:
        heading = column.replace("_", "\n")
        table.add_column(heading, justify="left" if column == "class" else "right", no_wrap=True)
    for row in classes:
        table.add_row(*(f"{value:.4g}" if isinstance(value, float) else str(value) for value in row.values()))
    return table


def _cell(row: Mapping[str, Any], with_interval: bool) -> str:
    value = f"{row['value']:{'.4g' if with_interval else '.3g'}}"
    shown = with_interval and row["low"] is not None
    return f"{value}\n{row['low']:.3g} to {row['high']:.3g}" if shown else value


def write_report(output: Path, report: Mapping[str, Any], real: Tensor, fake: Tensor) -> None:
    """Write evaluation.json, evaluation.csv, classes.csv (where there are classes) and evaluation.png.

    Args:
        output: folder, made when missing; older files are replaced.
        report: what `evaluate` returns.
        real: features of the reference (N, D).
        fake: features of the generated images (M, D).

    Raises:
        OSError: when a file cannot be written; the old one is untouched.
    """
    text = json.dumps(_plain(report), indent=1, ensure_ascii=False, allow_nan=False)
    lines = [{key: "" if row[key] is None else row[key] for key in COLUMNS} for row in report["rows"]]
    drawing = figure(report, real, fake)
    write_atomic(output / f"{NAME}.json", lambda file: file.write(text.encode()))
    write_atomic(output / f"{NAME}.csv", lambda file: file.write(header_line(COLUMNS) + csv_lines(lines, COLUMNS)))
    if report["classes"]:
        names = list(report["classes"][0])
        write_atomic(
            output / "classes.csv", lambda file: file.write(header_line(names) + csv_lines(report["classes"], names))
        )
    write_atomic(output / f"{NAME}.png", lambda file: drawing.savefig(file, format="png"))


def _plain(value: Any) -> Any:
    """The same for JSON, which has no NaN."""
    if isinstance(value, Mapping):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_plain(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def figure(report: Mapping[str, Any], real: Tensor, fake: Tensor) -> Figure:
    """Draw both sets in the plane of most variance of the real one, and the figures of the classes as bars.

    Args:
        report: what `evaluate` returns.
        real: features (N, D).
        fake: features (M, D).

    Returns:
        The figure.
    """
    from matplotlib.figure import Figure

    bars = [key for key in ("accuracy", "std_ratio") if report["classes"] and key in report["classes"][0]]
    drawing = Figure(figsize=(5 + 4 * bool(bars), 4.5), dpi=100, layout="constrained")
    panels = drawing.subplots(1, 1 + bool(bars), squeeze=False)[0]
    for name, points, colour in zip(("real", "generated"), plane(real, fake), ("0.6", "C1"), strict=True):
        panels[0].scatter(*points[:SCATTERED].T.numpy(), s=4, c=colour, linewidths=0, label=name)
    panels[0].set(title="features, first two directions of the real", xticks=[], yticks=[])
    panels[0].legend()
    for number, key in enumerate(bars):
        places = [place + 0.4 * number - 0.2 for place in range(len(report["classes"]))]
        panels[1].bar(places, [row[key] for row in report["classes"]], width=0.4, label=key)
    if bars:
        panels[1].axhline(1, color="0.5", linewidth=0.8)
        panels[1].set_xticks(range(len(report["classes"])), [row["class"] for row in report["classes"]])
        panels[1].set(title="classes")
        panels[1].legend(loc="lower right")
    return drawing


def plane(real: Tensor, fake: Tensor) -> tuple[Tensor, Tensor]:
    """Project features (N, D), (M, D) onto the two directions of most variance of the first: (N, 2), (M, 2)."""
    centre = real.mean(dim=0)
    _, _, directions = torch.linalg.svd(real - centre, full_matrices=False)
    found = [(features - centre) @ directions[:2].T for features in (real, fake)]
    # features of a single dimension lie on a line
    padded = [torch.nn.functional.pad(points, (0, 2 - points.shape[1])) for points in found]
    return padded[0], padded[1]
