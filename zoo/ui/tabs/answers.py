"""Showing the parts of an answer, by their kinds alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any
from urllib.parse import quote

from nicegui import ui

from zoo.runs.inference.forms import FILE_OUTPUTS, Output

ROWS = 10  # of a table at a time
_CELL = 500  # characters that are shown of one
_PICTURES = ("image", "animation")
Address = Callable[[str], str]


class Compare(ui.element, component="../static/compare.js"):
    """Sounds of which one plays at a time; changing between them keeps the position.

    Args:
        sources: title and address of each.
    """

    def __init__(self, title: str, sources: Sequence[tuple[str, str]]) -> None:
        super().__init__()
        self.props["title"] = title
        self.props["sources"] = [{"title": name, "url": url} for name, url in sources]


def addresses(job: str, names: Sequence[str]) -> Address:
    """Where the page finds the files of a job.

    Args:
        names: of the files that the store gives out.

    Returns:
        A function from a file's name to its address; "" where the store gives out none of that name.
    """
    return lambda name: f"/_zoo/results/{quote(job)}/{quote(name)}" if name in names else ""


def show(parts: Sequence[Output], address: Address, conversation: bool = False) -> None:
    """Show an answer in the current slot; neighbours with the same `beside` stand side by side.

    Args:
        conversation: show texts as what somebody says.
    """
    for word, members in groupby(parts, lambda part: part.group):
        if word:
            _show_group(list(members), address, conversation)
        else:
            for part in members:
                _show_one(part, address, conversation)


def _show_group(parts: Sequence[Output], address: Address, conversation: bool) -> None:
    """Sounds in one player, the rest in columns below it."""
    sounds = [part for part in parts if part.kind == "audio" and address(part.name)]
    if len(sounds) > 1:
        Compare(" and ".join(part.title for part in sounds), [(part.title, address(part.name)) for part in sounds])
        with ui.element().classes("zoo-downloads"):
            for part in sounds:
                _download(part, address)
    rest = parts if len(sounds) < 2 else [part for part in parts if part not in sounds]
    if rest:
        with ui.element().classes("zoo-beside"):
            for part in rest:
                with ui.element().classes("zoo-beside-one"):
                    _show_one(part, address, conversation)


def _show_one(part: Output, address: Address, conversation: bool) -> None:
    if part.kind in FILE_OUTPUTS and not address(part.name):
        ui.label(f"{part.title}: the file is there no more").classes("zoo-small")
        return
    try:
        if part.kind == "text" and conversation:
            ui.chat_message(str(part.data).strip() or "(no text)", name=part.title).classes("zoo-chat").props(
                "bg-color=grey-3 text-color=dark"
            )
        else:
            with ui.element("figure").classes("zoo-part picture" if part.kind in _PICTURES else "zoo-part"):
                with ui.element("figcaption"):
                    ui.label(part.title)
                    if part.kind in FILE_OUTPUTS:
                        _download(part, address)
                _SHOWN[part.kind](part, address)
    except (KeyError, TypeError, ValueError, AttributeError):
        ui.label(f"{part.title}: this cannot be shown").classes("zoo-small")


def _download(part: Output, address: Address) -> None:
    ui.link(f"Download {part.name}", address(part.name)).props["download"] = part.name


def _audio(part: Output, address: Address) -> None:
    Compare(part.title, [(part.title, address(part.name))])


def _image(part: Output, address: Address) -> None:
    with ui.element("img").classes("zoo-picture") as shown:
        shown.props["src"] = address(part.name)
        shown.props["alt"] = part.title


def _animation(part: Output, address: Address) -> None:
    """A moving picture, that can be hidden: what moves must be possible to stop."""
    _image(part, address)
    shown = ui.context.slot.children[-1]
    toggle = ui.button("Hide", on_click=lambda: turn()).props("flat dense no-caps size=sm")
    toggle.props["aria-label"] = f"Hide or show {part.title}"

    def turn() -> None:
        shown.set_visibility(not shown.visible)
        toggle.set_text("Hide" if shown.visible else "Play")


def _text(part: Output, address: Address) -> None:
    ui.label(str(part.data)).classes("zoo-text")


def _table(part: Output, address: Address) -> None:
    labels = [str(label) for label in part.data["columns"]]
    columns: list[dict[str, Any]] = [
        {"name": f"c{index}", "label": label, "field": f"c{index}", "align": "left", "sortable": bool(label)}
        for index, label in enumerate(labels)
    ]
    rows = [
        {"id": number, **{f"c{index}": _cell(value) for index, value in enumerate(row[: len(labels)])}}
        for number, row in enumerate(part.data["rows"])
    ]
    table = ui.table(columns=columns, rows=rows, row_key="id", pagination=ROWS if len(rows) > ROWS else None)
    table.props("flat dense wrap-cells").props["aria-label"] = part.title
    table.props.set_bool("hide-header", not any(labels))


def _cell(value: Any) -> Any:
    if isinstance(value, bool) or value is None or isinstance(value, list | tuple | dict):
        value = "" if value is None else str(value)
    return value[:_CELL] if isinstance(value, str) else value


def _chart(part: Output, address: Address) -> None:
    """Lines; a point alone is seen, too."""
    curves = {str(name): [[float(x), float(y)] for x, y in points] for name, points in part.data["curves"].items()}
    told = f"{part.title}: {', '.join(curves)}"
    axis = {"type": "value", "scale": True, "nameLocation": "middle"}
    chart = ui.echart(
        {
            "animation": False,
            "aria": {"enabled": True, "label": {"description": told}},
            "grid": {"left": 56, "right": 16, "top": 36, "bottom": 44},
            "tooltip": {"trigger": "axis", "renderMode": "richText"},
            "legend": {
                "show": len(curves) > 1,
                "type": "scroll",
                "top": 0,
                "data": [{"name": name} for name in curves],
            },
            "xAxis": {**axis, "name": str(part.data.get("x", "")), "nameGap": 26},
            "yAxis": {**axis, "name": str(part.data.get("y", "")), "nameGap": 42},
            "series": [
                {"type": "line", "name": name, "data": points, "showSymbol": len(points) < 60, "symbolSize": 5}
                for name, points in curves.items()
            ],
        }
    )
    chart.classes("zoo-curve").props["role"] = "img"
    chart.props["aria-label"] = told


def _file(part: Output, address: Address) -> None:
    """Its link stands in the caption."""


_SHOWN: dict[str, Callable[[Output, Address], None]] = {
    "audio": _audio,
    "image": _image,
    "animation": _animation,
    "text": _text,
    "table": _table,
    "chart": _chart,
    "file": _file,
}
