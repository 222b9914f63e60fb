"""The outputs of a prediction, by their kinds: players, pictures, tables, charts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

from nicegui import ui

from zoo.runs.inference.forms import FILE_OUTPUTS, Output
from zoo.ui.tabs.charts import COLORS, Line, Plot, echart_options

PAGE_ROWS = 10  # of a table
MAX_CELL = 500  # characters
Address = Callable[[str], str]  # of a file by its name, "" for one that does not exist


class Compare(ui.element, component="../static/compare.js"):
    """A player of several recordings, title and address each; changing between them keeps the position."""

    def __init__(self, title: str, sources: Sequence[tuple[str, str]]) -> None:
        super().__init__()
        self.props["title"] = title
        self.props["sources"] = [{"title": name, "url": url} for name, url in sources]


def show_outputs(outputs: Sequence[Output], address: Address) -> None:
    """Show outputs in the current slot, neighbours of a group side by side."""
    for group, members in groupby(outputs, lambda output: output.group):
        if group:
            _show_group(list(members), address)
        else:
            for output in members:
                _show_output(output, address)


def _show_group(outputs: Sequence[Output], address: Address) -> None:
    """Show recordings in one player, the rest in columns below it."""
    recordings = [output for output in outputs if output.kind == "audio" and address(output.name)]
    if len(recordings) > 1:
        sources = [(output.title, address(output.name)) for output in recordings]
        Compare(" and ".join(title for title, _ in sources), sources)
        with ui.element().classes("zoo-downloads"):
            for output in recordings:
                _add_download(output, address)
        outputs = [output for output in outputs if output not in recordings]
    if outputs:
        with ui.element().classes("zoo-beside"):
            for output in outputs:
                _show_output(output, address)


def _show_output(output: Output, address: Address) -> None:
    if output.kind in FILE_OUTPUTS and not address(output.name):
        ui.label(f"{output.title}: the file does not exist any more").classes("zoo-small")
        return
    is_picture = output.kind in ("image", "animation")
    with ui.element("figure").classes("zoo-part picture" if is_picture else "zoo-part"):
        with ui.element("figcaption"):
            ui.label(output.title)
            if output.kind in FILE_OUTPUTS:
                _add_download(output, address)
        if is_picture:
            picture = ui.element("img").classes("zoo-picture")
            picture.props["src"], picture.props["alt"] = address(output.name), output.title
        elif output.kind == "audio":
            Compare(output.title, [(output.title, address(output.name))])
        elif output.kind == "text":
            ui.label(str(output.data).strip() or "(no text)").classes("zoo-text")
        elif output.kind == "table":
            _show_table(output)
        elif output.kind == "chart":
            _show_chart(output)


def _add_download(output: Output, address: Address) -> None:
    ui.link(f"Download {output.name}", address(output.name)).props["download"] = output.name


def _show_table(output: Output) -> None:
    labels = [str(label) for label in output.data["columns"]]
    columns: list[dict[str, Any]] = [
        {"name": f"c{index}", "label": label, "field": f"c{index}", "align": "left", "sortable": bool(label)}
        for index, label in enumerate(labels)
    ]
    rows = [
        {"id": number, **{f"c{index}": _cell_value(value) for index, value in enumerate(row[: len(labels)])}}
        for number, row in enumerate(output.data["rows"])
    ]
    table = ui.table(columns=columns, rows=rows, row_key="id", pagination=PAGE_ROWS if len(rows) > PAGE_ROWS else None)
    table.props("flat dense wrap-cells").props["aria-label"] = output.title
    table.props.set_bool("hide-header", not any(labels))


def _cell_value(value: Any) -> Any:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number else "" if value is None else str(value)[:MAX_CELL]


def _show_chart(output: Output) -> None:
    curves = {str(name): tuple((float(x), float(y)) for x, y in curve) for name, curve in output.data["curves"].items()}
    lines = [Line(name, curve, COLORS[index % len(COLORS)]) for index, (name, curve) in enumerate(curves.items())]
    chart = Plot(echart_options(lines, x_name=str(output.data.get("x", ""))))
    chart.classes("zoo-curve").props("role=img").props["aria-label"] = f"{output.title}: {', '.join(curves)}"
