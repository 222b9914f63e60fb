"""Small elements that the tabs share: headings, states, status lines, tables, questions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from nicegui import ui
from nicegui.elements.mixins.text_element import TextElement

from zoo.ui.run_index import RunRow

MISSING = "-"
NEWEST = "the newest valid one"
STATES = {  # colour and text of a run's state
    "running": ("good", "running"),
    "stopping": ("busy", "stopping"),
    "active": ("good", "running elsewhere"),
    "queued": ("busy", "queued"),
    "finished": ("calm", "finished"),
    "stopped": ("calm", "stopped"),
    "failed": ("bad", "failed"),
    "killed": ("bad", "killed"),
    "corrupt": ("bad", "newest checkpoint corrupt"),
    "empty": ("calm", "nothing trained"),
}


def heading(text: str, level: int = 2) -> ui.html:
    """Add a heading; the header has the first level."""
    return ui.html(text, sanitize=False, tag=f"h{level}").classes("zoo-title")


class Text(TextElement):
    """A text in an HTML element of a given kind."""

    def __init__(self, tag: str, text: str = "", classes: str = "") -> None:
        super().__init__(tag=tag, text=text)
        self.classes(classes)


class StatusLine(ui.label):
    """A coloured line that a screen reader announces when it changes."""

    def __init__(self) -> None:
        super().__init__()
        self.classes("zoo-said").props('role="status" aria-live="polite"')
        self.set_visibility(False)

    def show(self, kind: str, text: str) -> None:
        """Show a text of a kind, "good", "busy", "calm" or "bad"; hide the line for ""."""
        self.classes(remove="good busy calm bad").classes(kind)
        self.set_text(text)
        self.set_visibility(bool(text))


class StateChip(ui.label):
    """A run's state in a colour."""

    def __init__(self) -> None:
        super().__init__()
        self.classes("zoo-chip")

    def show(self, state: str) -> None:
        """Show a state of `RunRow`."""
        kind, text = STATES.get(state, ("calm", state))
        if self.text != text:
            self.classes(remove="good busy calm bad").classes(kind)
            self.set_text(text)


def text_table(heads: Sequence[str], rows: Sequence[Sequence[Any]], name: str) -> ui.html:
    """Add a table of texts; the first column names the rows, and `name` is read to those who do not see it."""
    head = "".join(f'<th scope="col">{escape(each)}</th>' for each in heads)
    body = ""
    for first, *others in rows:
        cells = "".join(f"<td>{escape(str(value))}</td>" for value in others)
        body += f'<tr><th scope="row">{escape(str(first))}</th>{cells}</tr>'
    content = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    table = ui.html(content, sanitize=False).classes("zoo-table")
    table.props["aria-label"] = name
    return table.props('tabindex=0 role="region"')


def fact_list(facts: Mapping[str, Any]) -> ui.html:
    """Add a list of names and values."""
    content = "".join(f"<dt>{escape(key)}</dt><dd>{escape(str(value))}</dd>" for key, value in facts.items())
    return ui.html(content, sanitize=False, tag="dl").classes("zoo-facts")


def code_block(text: str, name: str) -> ui.label:
    """Add a text as it is, which scrolls."""
    block = ui.label(text).classes("zoo-block")
    block.props["aria-label"] = name
    return block.props('tabindex=0 role="region"')


async def confirm(question: str, text: str, action: str) -> bool:
    """Ask before something is done that cannot be undone."""
    with ui.dialog() as dialog, ui.card().classes("zoo-ask"):
        Text("h2", question, "zoo-title")
        ui.label(text)
        with ui.row().classes("zoo-buttons"):
            ui.button("Keep", on_click=lambda: dialog.submit(False)).props("outline no-caps autofocus")
            ui.button(action, on_click=lambda: dialog.submit(True)).props("no-caps color=negative")
    dialog.props["aria-label"] = question
    try:
        return bool(await dialog)
    finally:
        dialog.delete()


def format_bytes(size: int) -> str:
    """Write a size in a unit that fits."""
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= scale:
            return f"{size / scale:.1f} {unit}"
    return f"{size} B"


def format_progress(row: RunRow) -> str:
    """Write how far a run has come."""
    info = row.info
    if info.total is not None:
        return f"{info.step} of {info.total}"
    return f"{info.step}" + (f", epoch {info.epoch} of {info.epochs}" if info.epochs else "")


def format_best(row: RunRow) -> str:
    """Write the best value of the monitored metric."""
    return MISSING if row.info.best is None else f"{row.info.monitor} {row.info.best:.4g}"
