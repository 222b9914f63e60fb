"""What comparing leaves behind: tables for machines and for readers, values, pictures, and tables on the terminal."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from zoo.common.atomic_files import write_atomic
from zoo.common.statistics import MetricColumn

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import ArrayLike
    from rich.table import Table
    from torch import Tensor

DPI = 100
HOLD_SECONDS = 1.5  # the last image of an animation is what one wants to look at
PALETTE_FRAMES = 8  # that a GIF's common palette is made of
_PANELS_BESIDE = 3
_BOX_PANEL = (4.0, 3.0)  # inches

Row = dict[str, Any]


def write_report(output: Path, files: Mapping[str, Any], indent: int = 1) -> None:
    """Write the files of a report one after the other, each whole or not at all; older ones are replaced.

    Args:
        output: folder, made when missing.
        files: contents by file name. The ending says what they are: `.csv` columns and rows, see `csv_lines`; `.json`
            values, in which NaN and infinities become null; `.jsonl` rows; `.md` text; `.npy` an array; `.png` a
            figure of matplotlib. None leaves a file out.
        indent: spaces per level in JSON.

    Raises:
        OSError: when a file cannot be written; the old one is untouched.
    """
    for name, content in files.items():
        if content is None:
            continue
        if name.endswith(".png"):
            write_figure(output / name, content)
        else:
            data = _FORMATS[Path(name).suffix](content, indent)
            write_atomic(output / name, partial(_write, data))


def _write(data: bytes, file: BinaryIO) -> None:
    file.write(data)


def _npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


_FORMATS: dict[str, Callable[[Any, int], bytes]] = {
    ".csv": lambda table, _: csv_table(*table),
    ".json": lambda value, indent: json.dumps(
        replace_non_finite(value), indent=indent, ensure_ascii=False, allow_nan=False
    ).encode(),
    ".jsonl": lambda rows, _: "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode(),
    ".md": lambda text, _: text.encode(),
    ".npy": lambda array, _: _npy(array),
}


def write_figure(path: Path, figure: Figure) -> None:
    """Write a figure as PNG, whole or not at all."""
    write_atomic(path, lambda file: figure.savefig(file, format="png"))


def encode_gif(images: np.ndarray, fps: float) -> bytes:
    """An animation that repeats and rests on its last image.

    Args:
        images: (N, H, W) or (N, H, W, C) with C of 1 or 3, uint8.
        fps: images per second; GIF counts in steps of 10 ms, 30 becomes 33.
    """
    from PIL import Image

    images = images[..., 0] if images.shape[-1] == 1 and images.ndim == 4 else images
    stills = [Image.fromarray(each) for each in images]
    if images.ndim == 4:
        # one palette for all: palettes of their own would make still parts flicker
        chosen = np.linspace(0, len(images) - 1, min(PALETTE_FRAMES, len(images))).round().astype(int)
        palette = Image.fromarray(np.concatenate(list(images[chosen]))).quantize(256)
        stills = [each.quantize(palette=palette, dither=Image.Dither.NONE) for each in stills]
    milliseconds = max(2, round(100 / fps)) * 10
    durations = [milliseconds] * (len(stills) - 1) + [round(1000 * HOLD_SECONDS)]
    file = io.BytesIO()
    stills[0].save(file, "GIF", save_all=True, append_images=stills[1:], duration=durations, loop=0)
    return file.getvalue()


def csv_lines(rows: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> bytes:
    """Rows as lines of a CSV file without header; numbers with 7 digits, None as nothing."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    for row in rows:
        values = [row[name] for name in columns]
        writer.writerow([f"{value:.7g}" if isinstance(value, float) else value for value in values])
    return buffer.getvalue().encode()


def csv_table(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> bytes:
    """A CSV file: header and rows."""
    return csv_lines([{name: name for name in columns}, *rows], columns)


def replace_non_finite(value: Any) -> Any:
    """The same for JSON, which has neither NaN nor infinities: they become None."""
    if isinstance(value, Mapping):
        return {key: replace_non_finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [replace_non_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def to_numpy(values: ArrayLike | Tensor) -> np.ndarray:
    """Copy values to the CPU as an array; bfloat16 becomes float32."""
    from torch import Tensor

    if isinstance(values, Tensor):
        values = values.detach().cpu()
        values = values.float() if values.is_floating_point() else values  # NumPy has no bfloat16
    return np.asarray(values)


def markdown_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in markdown, without a line break at its end."""
    return "\n".join(f"| {' | '.join(line)} |" for line in (heads, ["---"] * len(heads), *rows))


def terminal_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    title: str | None = None,
    left: Collection[str] = (),
    whole: Collection[str] = (),
    **options: Any,
) -> Table:
    """A table for a rich console.

    Args:
        title: above the table, on the left.
        left: columns aligned on the left; the others are on the right.
        whole: columns whose cells are not broken into lines.
        **options: of `rich.table.Table`.
    """
    from rich.table import Table

    table = Table(title=title, title_justify="left", **options)
    for name in columns:
        table.add_column(name, justify="left" if name in left else "right", no_wrap=name in whole)
    for row in rows:
        table.add_row(*row)
    return table


def print_table(table: Any) -> None:
    """Print a table as wide as the terminal; wider where none cuts it."""
    from rich.console import Console

    wide = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    Console(width=200 if wide else None, highlight=False).print(table)


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of so many inches; matplotlib is imported only now."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=DPI, layout="constrained")


def subplot_grid(count: int, width: float, height: float) -> tuple[Figure, list[Axes]]:
    """A figure with so many panels, at most three beside each other, each of that size in inches."""
    columns = max(1, min(_PANELS_BESIDE, count))
    lines = max(1, math.ceil(count / columns))
    figure = new_figure(width * columns, height * lines)
    grid = list(figure.subplots(lines, columns, squeeze=False).flat)
    for axes in grid[count:]:
        axes.set_visible(False)
    return figure, grid[:count]


def summary_table(summary: Sequence[Mapping[str, Any]], kind: str = "mean") -> str:
    """Lay out a summary in markdown, a row per system and a column per measure.

    Args:
        summary: from `zoo.common.statistics.summarize`.
        kind: "mean", or "gain" for the gains over the baseline.

    Returns:
        The table. An arrow tells what is better (of gains positive is); where not every file has a value, their number
        follows.
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
    lines = [[system, line["files"], *(line[name] for name in heads)] for system, line in shown.items()]
    return markdown_table(["system", "files", *heads.values()], lines)


def _cell(value: float, low: float, high: float) -> str:
    if not math.isfinite(value):
        return "-"
    return f"{value:.4g}" if not math.isfinite(low) else f"{value:.4g} [{low:.4g}, {high:.4g}]"


def failure_lines(failed: Sequence[Mapping[str, Any]], total: int, shown: int = 20, rest: str = "") -> list[str]:
    """The first rows that failed as a list in markdown; nothing where none did.

    Args:
        failed: rows with `system`, `name` and `reason`.
        total: rows in all.
        shown: of those that failed.
        rest: file that holds the others, for a last line.
    """
    if not failed:
        return []
    lines = [f"{len(failed)} of {total} rows failed:", ""]
    lines += [f"- {row['system']}/{row['name']}: {row['reason']}" for row in failed[:shown]]
    return lines + ([f"- ... all in {rest}"] if rest and len(failed) > shown else [])


def plot_boxes(rows: Sequence[Mapping[str, Any]], systems: Sequence[str], measures: Sequence[MetricColumn]) -> Figure:
    """Draw a panel per measure with a box per system (quartiles; whiskers to 1.5 times their distance).

    Args:
        rows: as for `zoo.common.statistics.summarize`.
        systems: in the order of the boxes; a system without a value has none.
        measures: in the order of the panels; a measure without any value has none.
    """
    drawn = []
    for measure in measures:
        boxes = {
            system: [row[measure.name] for row in rows if row["system"] == system and measure.name in row]
            for system in systems
        }
        boxes = {system: [value for value in box if math.isfinite(value)] for system, box in boxes.items()}
        if any(boxes.values()):
            drawn.append((measure, {system: box for system, box in boxes.items() if box}))
    figure, grid = subplot_grid(len(drawn), *_BOX_PANEL)
    for (measure, boxes), axes in zip(drawn, grid, strict=True):
        axes.boxplot(list(boxes.values()), tick_labels=list(boxes))
        better = "higher" if measure.higher_is_better else "lower"
        axes.set(title=f"{measure.name} ({better} is better)", ylabel=measure.unit)
        axes.grid(axis="y", alpha=0.3)
    return figure
