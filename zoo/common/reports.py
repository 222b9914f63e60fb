"""Write tables, values and figures of a comparison; print tables on the terminal."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from zoo.common.atomic_files import write_atomic

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import ArrayLike
    from rich.table import Table
    from torch import Tensor

DPI = 100
HOLD_SECONDS = 1.5  # of the last image of an animation
PALETTE_FRAMES = 8  # that a GIF's common palette is made of
GRID_COLUMNS = 3

Row = dict[str, Any]


def write_report(output: Path, files: Mapping[str, Any]) -> None:
    """Write the files of a report below a folder, each atomically.

    The suffix of a name tells what its content is: `.csv` columns and rows, see `csv_table`; `.json` values, in which
    NaN and infinities become null; `.jsonl` rows; `.md` text; `.npy` an array; `.png` a figure. None leaves a file out.
    """
    for name, content in files.items():
        if content is not None and name.endswith(".png"):
            write_figure(output / name, content)
        elif content is not None:
            data = _encode(Path(name).suffix, content)
            write_atomic(output / name, lambda file, data=data: file.write(data))  # type: ignore[misc]


def _encode(suffix: str, content: Any) -> bytes:
    if suffix == ".csv":
        return csv_table(*content)
    if suffix == ".json":
        values = replace_non_finite(content)
        return json.dumps(values, indent=1, ensure_ascii=False, allow_nan=False).encode()
    if suffix == ".jsonl":
        return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in content).encode()
    if suffix == ".npy":
        buffer = io.BytesIO()
        np.save(buffer, content)
        return buffer.getvalue()
    return str(content).encode()


def write_figure(path: Path, figure: Figure) -> None:
    """Write a figure as PNG, atomically."""
    write_atomic(path, lambda file: figure.savefig(file, format="png"))


def encode_gif(images: np.ndarray, fps: float) -> bytes:
    """Encode images, (N, H, W) or (N, H, W, C) with C of 1 or 3, uint8, as an animation that rests on the last one.

    GIF counts in steps of 10 ms: 30 images per second become 33.
    """
    from PIL import Image

    images = images[..., 0] if images.shape[-1] == 1 and images.ndim == 4 else images
    frames = [Image.fromarray(each) for each in images]
    if images.ndim == 4:  # one palette for all: palettes of their own would make still parts flicker
        chosen = np.linspace(0, len(images) - 1, min(PALETTE_FRAMES, len(images))).round().astype(int)
        palette = Image.fromarray(np.concatenate(list(images[chosen]))).quantize(256)
        frames = [each.quantize(palette=palette, dither=Image.Dither.NONE) for each in frames]
    durations = [max(2, round(100 / fps)) * 10] * (len(frames) - 1) + [round(1000 * HOLD_SECONDS)]  # milliseconds
    buffer = io.BytesIO()
    frames[0].save(buffer, "GIF", save_all=True, append_images=frames[1:], duration=durations, loop=0)
    return buffer.getvalue()


def csv_table(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> bytes:
    """Format a CSV file with a header; floats with 7 digits, None as nothing."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow([f"{row[name]:.7g}" if isinstance(row[name], float) else row[name] for name in columns])
    return buffer.getvalue().encode()


def replace_non_finite(value: Any) -> Any:
    """Replace NaN and infinities in nested values by None: JSON has neither."""
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


def markdown_table(heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Format a table in markdown, without a line break at its end; `|` and line breaks of cells do not break it."""
    lines = (heads, ["---"] * len(heads), *rows)
    texts = [[str(cell).replace("|", "\\|").replace("\n", " ") for cell in line] for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in texts)


def terminal_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    title: str | None = None,
    left: Collection[str] = (),
    no_wrap: Collection[str] = (),
    **options: Any,
) -> Table:
    """Make a table for a rich console; columns in `left` are aligned there, cells of `no_wrap` stay in one line."""
    from rich.table import Table

    table = Table(title=title, title_justify="left", **options)
    for name in columns:
        table.add_column(name, justify="left" if name in left else "right", no_wrap=name in no_wrap)
    for row in rows:
        table.add_row(*row)
    return table


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], **options: Any) -> None:
    """Print a table, see `terminal_table`, as wide as the terminal; wider where none cuts it."""
    from rich.console import Console

    is_file = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    Console(width=200 if is_file else None, highlight=False, markup=False, emoji=False).print(
        terminal_table(columns, rows, **options)
    )


def new_figure(width: float, height: float) -> Figure:
    """Make an empty figure of so many inches; matplotlib is imported only now."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=DPI, layout="constrained")


def subplot_grid(count: int, width: float, height: float) -> tuple[Figure, list[Axes]]:
    """Make a figure with so many subplots, at most three in a row, each of that size in inches."""
    columns = max(1, min(GRID_COLUMNS, count))
    lines = max(1, math.ceil(count / columns))
    figure = new_figure(width * columns, height * lines)
    grid = list(figure.subplots(lines, columns, squeeze=False).flat)
    for axes in grid[count:]:
        axes.set_visible(False)
    return figure, grid[:count]
