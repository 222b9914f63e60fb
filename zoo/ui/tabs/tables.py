"""Tables, facts and questions of the tab Runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from nicegui import ui
from nicegui.elements.mixins.text_element import TextElement

from zoo.ui.board import Row
from zoo.ui.tabs.pieces import STATE_WORDS

MISSING = "-"


class Text(TextElement):
    """A text in an HTML element of its own kind, `td` and the like."""

    def __init__(self, tag: str, text: str = "", classes: str = "") -> None:
        super().__init__(tag=tag, text=text)
        self.classes(classes)


class Chip(ui.label):
    """A run's state in a colour."""

    def __init__(self) -> None:
        super().__init__()
        self.classes("zoo-chip")

    def show(self, word: str) -> None:
        """Show a state, see `Row.word`."""
        kind, text = STATE_WORDS.get(word, ("calm", word))
        if self.text != text:
            self.classes(remove="good busy calm bad").classes(kind)
            self.set_text(text)


def table(heads: Sequence[str], rows: Sequence[Sequence[Any]], name: str) -> ui.html:
    """A table of texts that scrolls sideways by itself; the first column names the rows.

    Args:
        name: what it is a table of, for those who do not see it.
    """
    head = "".join(f'<th scope="col">{escape(each)}</th>' for each in heads)
    body = ""
    for first, *others in rows:
        cells = "".join(f"<td>{escape(str(value))}</td>" for value in others)
        body += f'<tr><th scope="row">{escape(str(first))}</th>{cells}</tr>'
    content = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    made = ui.html(content, sanitize=False).classes("zoo-table")
    made.props["aria-label"] = name
    return made.props('tabindex=0 role="region"')


def facts(values: Mapping[str, Any]) -> ui.html:
    """Names and values."""
    content = "".join(f"<dt>{escape(key)}</dt><dd>{escape(str(value))}</dd>" for key, value in values.items())
    return ui.html(content, sanitize=False, tag="dl").classes("zoo-facts")


def text_block(text: str, name: str) -> ui.label:
    """A text as it is, which scrolls."""
    shown = ui.label(text).classes("zoo-block")
    shown.props["aria-label"] = name
    return shown.props('tabindex=0 role="region"')


async def ask(question: str, text: str, yes: str) -> bool:
    """Ask before something is done that cannot be undone."""
    with ui.dialog() as dialog, ui.card().classes("zoo-ask"):
        Text("h2", question, "zoo-title")
        ui.label(text)
        with ui.row().classes("zoo-buttons"):
            ui.button("Keep", on_click=lambda: dialog.submit(False)).props("outline no-caps autofocus")
            ui.button(yes, on_click=lambda: dialog.submit(True)).props("no-caps color=negative")
    dialog.props["aria-label"] = question
    try:
        return bool(await dialog)
    finally:
        dialog.delete()


def title(row: Row) -> str:
    """What a run is called: its label, or when it began."""
    return row.label or row.name.rpartition("/")[2]


def whose(row: Row, session: str) -> str:
    """Who started a run, as a session sees it."""
    return "command line" if row.owner is None else "you" if row.owner == session else "another session"


def in_units(size: int | None) -> str:
    """Bytes in a unit that fits."""
    if size is None:
        return "…"
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= scale:
            return f"{size / scale:.1f} {unit}"
    return f"{size} B"


def progress(row: Row) -> str:
    """How far a run has come."""
    run = row.run
    if run.total is not None:
        return f"{run.step} of {run.total}"
    return f"{run.step}" + (f", epoch {run.epoch} of {run.epochs}" if run.epochs else "")


def best(row: Row) -> str:
    """The best value of what a run monitors."""
    return MISSING if row.run.best is None else f"{row.run.monitor} {row.run.best:.4g}"
