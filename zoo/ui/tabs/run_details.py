"""One run: what it is and did, its notes, checkpoints and exports."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from nicegui import ui

from zoo.runs.checkpoints import find_checkpoints, is_valid_checkpoint
from zoo.runs.run_folder import CONFIG_NAME
from zoo.runs.run_info import (
    SUMMARY_KEYS,
    flatten_config,
    format_age,
    format_duration,
    path_size,
    read_settings,
    select_loss_metrics,
    trained_seconds,
)
from zoo.ui.processes.command import run_command
from zoo.ui.run_actions import EXPORTS_NAME, check_notes, write_notes
from zoo.ui.run_index import RunRow
from zoo.ui.state import PageState, notify_error, notify_errors
from zoo.ui.tabs.widgets import (
    NEWEST,
    StateChip,
    StatusLine,
    Text,
    code_block,
    fact_list,
    format_best,
    format_bytes,
    format_progress,
    heading,
    text_table,
)

MAX_CONFIG = 2**18  # characters on the page
MAX_CHECKED_BYTES = 512 * 2**20  # a larger checkpoint is not read only to show a word


class RunDetails:
    """The view of one run, made in the current slot; `show_list` returns to the list, `delete` confirms first."""

    def __init__(
        self, page: PageState, show_list: Callable[[], None], delete: Callable[[list[str]], Awaitable[bool]]
    ) -> None:
        self.page, self.app = page, page.app
        self.run = ""
        self._show_list, self._delete_runs = show_list, delete
        self._row: RunRow | None = None
        self._validity: dict[tuple[Path, int], bool] = {}
        with ui.element().classes("zoo-run") as self.box:
            ui.button("All runs", icon="arrow_back", on_click=show_list).props("flat dense no-caps")
            with ui.row().classes("zoo-run-head"):
                self.name = Text("h2", "", "zoo-title").props("tabindex=-1")
                self.state = StateChip()
            self.full_name = ui.label().classes("zoo-small")
            with ui.row().classes("zoo-buttons"):
                _add_button("Watch, stop, resume", lambda: page.choose(self.run, "watch"))
                _add_button("Predict", lambda: page.choose(self.run, "predict"))
                _add_button("Delete …", self._delete).props("color=negative")
            with ui.element().classes("zoo-halves"):
                with ui.element():
                    self._add_facts()
                with ui.element():
                    self._add_checkpoints()
            with ui.expansion("Config", on_value_change=self._show_config).classes("zoo-config") as self.config:
                self.config_box = ui.element()

    def _add_facts(self) -> None:
        heading("Notes", 3)
        with ui.row().classes("zoo-notes"):
            self.label = ui.input("Label").props("outlined dense maxlength=64").on("keydown.enter", self._save_notes)
            self.tags = ui.input("Tags, separated by commas").props("outlined dense maxlength=600")
            self.tags.on("keydown.enter", self._save_notes)
            _add_button("Save notes", self._save_notes)
        heading("Facts", 3)
        self.facts = ui.element()

    def _add_checkpoints(self) -> None:
        heading("Checkpoints", 3)
        self.checkpoints = ui.element()
        with ui.row().classes("zoo-notes"):
            self.checkpoint = ui.select({"": NEWEST}, value="", label="Checkpoint").props("outlined dense")
            self.inspect = _add_button("Inspect", self._inspect)
            self.export = _add_button("Export", self._export)
            self.onnx = ui.checkbox("ONNX as well")
        self.status = StatusLine()
        self.report = ui.element()

    def show(self, run: str) -> None:
        """Show another run; the next refresh reads its files."""
        self.run, self._row = run, None
        self.config.set_value(False)
        for box in (self.facts, self.checkpoints, self.report):
            box.clear()
        self.status.show("calm", "")
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
        if self._row is None or self._row.notes != row.notes:
            self.label.set_value(row.notes.label)
            self.tags.set_value(", ".join(row.notes.tags))
        self._row = row
        self.name.text = row.title
        self.full_name.set_text(row.name)
        self.state.show(row.state)
        content = await notify_errors(asyncio.to_thread(self._read, row))
        if content is None or self.run != row.name:
            return
        facts, checkpoints = content
        names = {"": NEWEST} | {name: name for name, *_ in checkpoints}
        if self.checkpoint.options != names:
            self.checkpoint.set_options(names, value=self.checkpoint.value if self.checkpoint.value in names else "")
        self.facts.clear()
        with self.facts:
            fact_list(facts)
        self.checkpoints.clear()
        with self.checkpoints:
            if checkpoints:
                text_table(("Checkpoint", "Size", "State", "Age"), checkpoints, "Checkpoints")
            else:
                ui.label("None yet: a run writes them as it trains.").classes("zoo-small")

    def _read(self, row: RunRow) -> tuple[dict[str, Any], list[Sequence[str]]]:
        """Read the facts of a run and its checkpoints; runs in a thread."""
        folder, flat = row.info.folder, flatten_config(read_settings(row.info.folder))
        curves, seconds = self.app.metrics.read(folder), trained_seconds(folder)
        facts = {
            "Recipe": row.info.recipe,
            "Step": format_progress(row),
            "Time": "unknown" if seconds is None else format_duration(seconds),
            "Best": format_best(row) + (f" at step {row.info.best_step}" if row.info.best_step else ""),
            "Last change": f"{format_age(row.info.changed)} ago" if row.info.changed else "none",
            **{name.capitalize(): flat[key] for name, key in SUMMARY_KEYS.items() if flat.get(key, "null") != "null"},
            **{f"Last {key}": f"{curves[key][-1][1]:.6g}" for key in select_loss_metrics(list(curves)) if curves[key]},
            "Size": format_bytes(row.size),
            "Exports": ", ".join(path.name for path in sorted((folder / EXPORTS_NAME).glob("[!.]*/"))) or "none",
        }
        return facts, [self._read_checkpoint(path) for path in find_checkpoints(folder)]

    def _read_checkpoint(self, path: Path) -> Sequence[str]:
        changed, size = path.stat().st_mtime_ns, path_size(path)
        if size <= MAX_CHECKED_BYTES and (path, changed) not in self._validity:
            self._validity[path, changed] = is_valid_checkpoint(path)
        states = {True: "valid", False: "CORRUPT", None: "not checked; Inspect reads it"}
        state = states[self._validity.get((path, changed))]
        return path.name, format_bytes(size), state, f"{format_age(changed / 1e9)} ago"

    async def _save_notes(self) -> None:
        try:
            notes = check_notes(self.label.value or "", (self.tags.value or "").split(","))
            await asyncio.to_thread(write_notes, self.app.folders.run(self.run), notes)
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
        await self._run_command("inspect")

    async def _export(self) -> None:
        target = self.app.folders.runs / self.run / EXPORTS_NAME / time.strftime("%Y%m%d-%H%M%S")
        await self._run_command("export", str(target), *(["--onnx=true"] if self.onnx.value else []))

    async def _run_command(self, command: str, *options: str) -> None:
        """Run a command on the chosen checkpoint and show its output and whether it failed, by its exit code."""
        run = self.run
        try:
            path = self.app.folders.checkpoint(run, self.checkpoint.value)
        except ValueError as error:
            notify_error(error)
            return
        for button in (self.inspect, self.export):
            button.disable()
        self.status.show("busy", f"zoo {command} {path.name} ...")
        try:
            code, output = await run_command([command, str(path), *options], self.app.environment)
        finally:
            for button in (self.inspect, self.export):
                button.enable()
        if self.run == run:
            self._row = None
            self.status.show("good" if code == 0 else "bad", f"zoo {command} {'succeeded' if code == 0 else 'failed'}")
            self.report.clear()
            with self.report:
                text = output.replace(f"{self.app.folders.runs}/", "")
                code_block(text, f"Report of {command}").props('aria-live="polite"')

    async def _show_config(self) -> None:
        self.config_box.clear()
        file = self.app.folders.runs / self.run / CONFIG_NAME
        if self.config.value:
            text = file.read_text(encoding="utf-8", errors="replace") if file.is_file() else "no config yet"
            with self.config_box:
                code_block(text[:MAX_CONFIG], CONFIG_NAME)


def _add_button(text: str, handler: Callable[[], Any]) -> ui.button:
    return ui.button(text, on_click=handler).props("outline no-caps")
