"""One run: what it is and did, its label, checkpoints and exports."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import Any

from nicegui import ui

from zoo.runs.checkpoints import find_checkpoints
from zoo.runs.run_folder import CONFIG_NAME
from zoo.runs.run_info import path_size
from zoo.ui.run_files import EXPORTS_NAME, MAX_LABEL, write_label
from zoo.ui.run_index import RunRow
from zoo.ui.state import PageState, notify_error, notify_errors
from zoo.ui.tabs.widgets import (
    NEWEST,
    STATES,
    CommandReport,
    Heading,
    StatusLine,
    code_block,
    format_best,
    format_bytes,
    format_progress,
    text_table,
)


class RunDetails:
    """The view of one run, made in the current slot; `show_list` returns to the list, `delete` confirms first."""

    def __init__(
        self, page: PageState, show_list: Callable[[], None], delete: Callable[[list[str]], Awaitable[bool]]
    ) -> None:
        self.page, self.app = page, page.app
        self.run = ""
        self._show_list, self._delete_runs = show_list, delete
        self._row: RunRow | None = None
        with ui.element().classes("zoo-run") as self.box:
            ui.button("All runs", icon="arrow_back", on_click=show_list).props("flat dense no-caps")
            with ui.row().classes("zoo-run-head"):
                self.name = Heading().props("tabindex=-1")
                self.state = StatusLine("zoo-chip")
            self.facts = ui.label().classes("zoo-small")
            with ui.row().classes("zoo-notes"):
                self.label = ui.input("Label").props(f"outlined dense maxlength={MAX_LABEL}")
                self.label.on("keydown.enter", self._save_label)
                _add_button("Save label", self._save_label)
                _add_button("Watch, stop, resume", lambda: page.choose(self.run, "watch"))
                _add_button("Predict", lambda: page.choose(self.run, "predict"))
                _add_button("Delete …", self._delete).props("color=negative")
            Heading("Checkpoints", 3)
            self.checkpoints = ui.element()
            with ui.row().classes("zoo-notes"):
                self.checkpoint = ui.select({"": NEWEST}, value="", label="Checkpoint").props("outlined dense")
                _add_button("Inspect", self._inspect)
                _add_button("Export", self._export)
                self.onnx = ui.checkbox("ONNX as well")
            self.report = CommandReport(self.app)
            with ui.expansion("Config", on_value_change=self._show_config).classes("zoo-config") as self.config:
                self.config_box = ui.element()

    def show(self, run: str) -> None:
        """Show another run; the next refresh reads its files."""
        self.run, self._row = run, None
        self.config.set_value(False)
        self.checkpoints.clear()
        self.report.clear()
        row = self.app.index.rows.get(run)
        self.label.set_value("" if row is None else row.label)  # later changes would overwrite what is typed
        self.name.run_method("focus")

    async def refresh(self) -> None:
        """Show what has changed."""
        row = self.app.index.rows.get(self.run)
        if row is None:
            self._show_list()
            if self.run:
                ui.notify(f"{self.run} was deleted", type="warning")
            return
        if self._row == row:
            return
        self._row = row
        self.name.text = row.title
        facts = [row.name, row.info.recipe, f"step {format_progress(row)}", format_best(row), format_bytes(row.size)]
        self.facts.set_text(" · ".join(filter(None, facts)))
        self.state.show(*STATES[row.state])
        checkpoints = []
        for path in find_checkpoints(row.info.folder):
            with contextlib.suppress(FileNotFoundError):  # a run keeps a few and deletes the others
                written = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(path.stat().st_mtime))
                checkpoints.append((path.name, format_bytes(path_size(path)), written))
        names = {"": NEWEST} | {name: name for name, *_ in checkpoints}
        if self.checkpoint.options != names:
            self.checkpoint.set_options(names, value=self.checkpoint.value if self.checkpoint.value in names else "")
        self.checkpoints.clear()
        with self.checkpoints:
            if checkpoints:
                text_table(("Checkpoint", "Size", "Written"), checkpoints, "Checkpoints")
            else:
                ui.label("None yet: a run writes them as it trains.").classes("zoo-small")

    async def _save_label(self) -> None:
        try:
            write_label(self.app.folders.run(self.run), self.label.value or "")
        except (ValueError, OSError) as error:
            notify_error(error)
            return
        await asyncio.to_thread(self.app.index.scan)
        await self.refresh()

    async def _delete(self) -> None:
        run = self.run
        if await self._delete_runs([run]) and self.run == run:
            self._show_list()

    async def _inspect(self) -> None:
        await notify_errors(self._run_command("inspect"))

    async def _export(self) -> None:
        run = self.run
        if run in self.app.exporting:
            notify_error(ValueError(f"{run} is being exported: wait for it"))
            return
        target = self.app.folders.runs / run / EXPORTS_NAME / time.strftime("%Y%m%d-%H%M%S")
        self.app.exporting.add(run)
        try:
            await notify_errors(self._run_command("export", str(target), f"--onnx={self.onnx.value}".lower()))
        finally:
            self.app.exporting.discard(run)

    async def _run_command(self, command: str, *options: str) -> None:
        path = self.app.folders.checkpoint(self.run, self.checkpoint.value)
        await self.report.run(command, str(path), *options)

    async def _show_config(self) -> None:
        self.config_box.clear()
        file = self.app.folders.runs / self.run / CONFIG_NAME
        if self.config.value:
            text = file.read_text(encoding="utf-8", errors="replace") if file.is_file() else "no config yet"
            with self.config_box:
                code_block(text, CONFIG_NAME)


def _add_button(text: str, handler: Callable[[], Any]) -> ui.button:
    return ui.button(text, on_click=handler).props("outline no-caps")
