"""Small elements that the tabs share: headings, states, status lines, tables, commands, questions."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from nicegui import ui
from nicegui.elements.mixins.text_element import TextElement

from zoo.ui.processes.command import last_error, run_command
from zoo.ui.run_index import RunRow
from zoo.ui.state import AppState

NEWEST = "the newest valid one"
STATES = {  # kind and text of a run's state
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


class Heading(TextElement):
    """A heading; the header has the first level."""

    def __init__(self, text: str = "", level: int = 2) -> None:
        super().__init__(tag=f"h{level}", text=text)
        self.classes("zoo-title")


class StatusLine(ui.label):
    """A coloured text that a screen reader announces when it changes."""

    def __init__(self, classes: str = "zoo-said") -> None:
        super().__init__()
        self.classes(classes).props('role="status" aria-live="polite"')
        self.set_visibility(False)

    def show(self, kind: str, text: str) -> None:
        """Show a text of a kind, "good", "busy", "calm" or "bad"; hide the line for ""."""
        if self.text != text:
            self.classes(remove="good busy calm bad").classes(kind)
            self.set_text(text)
            self.set_visibility(bool(text))


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


def code_block(text: str, name: str) -> ui.label:
    """Add a text as it is, which scrolls."""
    block = ui.label(text).classes("zoo-block")
    block.props["aria-label"] = name
    return block.props('tabindex=0 role="region"')


class CommandReport:
    """Runs a command at a time and shows its state and output, in the current slot."""

    def __init__(self, app: AppState) -> None:
        self.app = app
        self._running = ""
        self._revision = 0
        self.status = StatusLine()
        self.output = ui.element()

    def clear(self) -> None:
        """Show nothing, also when a command that runs has ended."""
        self._revision += 1
        self.status.show("calm", "")
        self.output.clear()

    async def run(self, command: str, *arguments: str) -> None:
        """Run a command and show whether it failed, by its exit code; ValueError while another one runs."""
        if self._running:
            raise ValueError(f"zoo {self._running} has not ended yet")
        self.clear()
        self.status.show("busy", f"zoo {command} ...")
        self._running, revision = command, self._revision
        try:
            code, output = await run_command([command, *arguments], self.app.environment)
        finally:
            self._running = ""
        if revision == self._revision and not self.output.is_deleted:
            failed = f"zoo {command} failed: {last_error(output)}"
            self.status.show("bad" if code else "good", failed if code else f"zoo {command} succeeded")
            with self.output:
                text = output.replace(f"{self.app.folders.runs}/", "")
                code_block(text, f"Report of {command}").props('aria-live="polite"')


async def confirm(question: str, text: str, action: str) -> bool:
    """Ask before something is done that cannot be undone."""
    with ui.dialog() as dialog, ui.card().classes("zoo-ask"):
        Heading(question)
        ui.label(text)
        with ui.row().classes("zoo-buttons"):
            ui.button("Keep", on_click=lambda: dialog.submit(False)).props("outline no-caps autofocus")
            ui.button(action, on_click=lambda: dialog.submit(True)).props("no-caps color=negative")
    dialog.props["aria-label"] = question
    is_confirmed = bool(await dialog)
    dialog.delete()
    return is_confirmed


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
    return "" if row.info.best is None else f"{row.info.monitor} {row.info.best:.4g}"
