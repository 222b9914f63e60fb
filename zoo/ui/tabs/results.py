"""The outputs of a prediction, by their kinds: players, pictures, tables, charts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

from nicegui import ui

from zoo.runs.inference.forms import FILE_OUTPUTS, Output

PAGE_ROWS = 10  # of a table
MAX_CELL = 500  # characters
Address = Callable[[str], str]  # of a file by its name, "" for one that does not exist


class Compare(ui.element, component="../static/compare.js"):
    """A player of several recordings, title and address each; changing between them keeps the position."""

    def __init__(self, title: str, sources: Sequence[tuple[str, str]]) -> None:
        super().__init__()
        self.props["title"] = title
        self.props["sources"] = [{"title": name, "url": url} for name, url in sources]


def show_outputs(outputs: Sequence[Output], address: Address, conversation: bool = False) -> None:
    """Show outputs in the current slot, neighbours of a group side by side, texts of a conversation as messages."""
    for group, members in groupby(outputs, lambda output: output.group):
        if group:
            _show_group(list(members), address, conversation)
        else:
            for output in members:
                _show_output(output, address, conversation)


def _show_group(outputs: Sequence[Output], address: Address, conversation: bool) -> None:
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
                with ui.element().classes("zoo-beside-one"):
                    _show_output(output, address, conversation)


def _show_output(output: Output, address: Address, conversation: bool) -> None:
    if output.kind in FILE_OUTPUTS and not address(output.name):
        ui.label(f"{output.title}: the file does not exist any more").classes("zoo-small")
    elif output.kind == "text" and conversation:
        message = ui.chat_message(str(output.data).strip() or "(no text)", name=output.title).classes("zoo-chat")
        message.props("bg-color=grey-3 text-color=dark")
    else:
        is_picture = output.kind in ("image", "animation")
        with ui.element("figure").classes("zoo-part picture" if is_picture else "zoo-part"):
            with ui.element("figcaption"):
                ui.label(output.title)
                if output.kind in FILE_OUTPUTS:
                    _add_download(output, address)
            if output.kind in _SHOW:
                _SHOW[output.kind](output, address)


def _add_download(output: Output, address: Address) -> None:
    ui.link(f"Download {output.name}", address(output.name)).props["download"] = output.name


def _show_audio(output: Output, address: Address) -> None:
    Compare(output.title, [(output.title, address(output.name))])


def _show_image(output: Output, address: Address) -> None:
    with ui.element("img").classes("zoo-picture") as picture:
        picture.props["src"] = address(output.name)
        picture.props["alt"] = output.title


def _show_animation(output: Output, address: Address) -> None:
    """Show an animation with a button that hides it."""
    _show_image(output, address)
    picture = ui.context.slot.children[-1]
    toggle = ui.button("Hide", on_click=lambda: hide_or_show()).props("flat dense no-caps size=sm")
    toggle.props["aria-label"] = f"Hide or show {output.title}"

    def hide_or_show() -> None:
        picture.set_visibility(not picture.visible)
        toggle.set_text("Hide" if picture.visible else "Play")


def _show_text(output: Output, address: Address) -> None:
    ui.label(str(output.data)).classes("zoo-text")


def _show_table(output: Output, address: Address) -> None:
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
    if isinstance(value, bool) or value is None or isinstance(value, list | tuple | dict):
        value = "" if value is None else str(value)
    return value[:MAX_CELL] if isinstance(value, str) else value


def _show_chart(output: Output, address: Address) -> None:
    """Show curves; few points are drawn as dots, too."""
    curves = {str(name): [[float(x), float(y)] for x, y in points] for name, points in output.data["curves"].items()}
    description = f"{output.title}: {', '.join(curves)}"
    axis = {"type": "value", "scale": True, "nameLocation": "middle"}
    series = [
        {"type": "line", "name": name, "data": points, "showSymbol": len(points) < 60, "symbolSize": 5}
        for name, points in curves.items()
    ]
    options = {
        "animation": False,
        "aria": {"enabled": True, "label": {"description": description}},
        "grid": {"left": 56, "right": 16, "top": 36, "bottom": 44},
        "tooltip": {"trigger": "axis", "renderMode": "richText"},
        "legend": {"show": len(curves) > 1, "type": "scroll", "top": 0, "data": [{"name": name} for name in curves]},
        "xAxis": {**axis, "name": str(output.data.get("x", "")), "nameGap": 26},
        "yAxis": {**axis, "name": str(output.data.get("y", "")), "nameGap": 42},
        "series": series,
    }
    ui.echart(options).classes("zoo-curve").props("role=img").props["aria-label"] = description


_SHOW: dict[str, Callable[[Output, Address], None]] = {  # a file has its link alone
    "audio": _show_audio,
    "image": _show_image,
    "animation": _show_animation,
    "text": _show_text,
    "table": _show_table,
    "chart": _show_chart,
}
