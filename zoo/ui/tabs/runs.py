"""The tab Runs: all runs as a table, one of them, several side by side."""

from __future__ import annotations

import asyncio
from typing import Any

from nicegui import ui

from zoo.runs.run_info import format_age
from zoo.ui.run_files import delete_run
from zoo.ui.run_index import ACTIVE_STATES, RunRow
from zoo.ui.state import PageState, notify_errors
from zoo.ui.tabs.run_details import RunDetails
from zoo.ui.tabs.widgets import (
    STATES,
    CommandReport,
    Heading,
    StatusLine,
    confirm,
    format_best,
    format_bytes,
    format_progress,
)

PAGE_ROWS = 25
MAX_COMPARED = 6
COLUMNS = {"run": "", "recipe": "", "state": "", "step": "steps", "best": "score", "age": "order", "size": "bytes"}
_OPEN = """<q-btn flat dense no-caps align="left" :label="props.row.run"
  @click.stop="() => $parent.$emit('open', props.row.name)"></q-btn>"""
_STATE = """<span :class="'zoo-chip ' + props.row.color">{{ props.row.state }}</span>"""
_SELECT = """<q-checkbox dense v-model="props.selected" :aria-label="'Select ' + props.row.run"></q-checkbox>"""
_CARD = f"""<div class="col-12 q-pa-xs"><div class="zoo-queue"><div class="row items-center">{_SELECT}
  <div class="col">{_OPEN}</div>{_STATE}</div><div class="zoo-small">{{{{ props.row.recipe }}}} · step
  {{{{ props.row.step }}}} · {{{{ props.row.age }}}} · {{{{ props.row.size }}}} {{{{ props.row.best }}}}
  </div></div></div>"""
SLOTS = {
    "body-cell-run": f'<q-td :props="props">{_OPEN}</q-td>',
    "body-cell-state": f'<q-td :props="props">{_STATE}</q-td>',
    "body-selection": _SELECT,
    "header-selection": '<q-checkbox dense v-model="props.selected" aria-label="Select all runs"></q-checkbox>',
    "item": _CARD,  # on a narrow screen
}


class RunsTab:
    """The tab, made in the current slot."""

    def __init__(self, page: PageState) -> None:
        self.page, self.app = page, page.app
        with ui.element().classes("zoo-runs") as self.list:
            Heading("Runs").props("tabindex=-1")
            self.status = StatusLine()
            with ui.row().classes("zoo-selected") as self.actions:
                self.count = ui.label().props("role=status")
                self.compare = ui.button("Compare", on_click=self._compare).props("no-caps dense unelevated")
                ui.button("Curves in Watch", on_click=self._watch_selected).props("no-caps dense outline")
                ui.button("Delete …", on_click=self._delete_selected).props("no-caps dense outline color=negative")
            self.search = ui.input("Filter the table").props("outlined dense clearable")
            columns = [
                {"name": name, "label": name.capitalize(), "field": field or name, "sortable": True, "align": "left"}
                | ({":format": f"(value, row) => row.{name}"} if field else {})
                for name, field in COLUMNS.items()
            ]
            sorting = {"rowsPerPage": PAGE_ROWS, "sortBy": "age", "descending": False}
            self.table = ui.table(
                columns=columns, rows=[], row_key="name", selection="multiple", pagination=sorting,
                on_select=self._show_selection,
            )  # fmt: skip
            self.table.props('flat bordered :grid="Quasar.Screen.lt.md" aria-label="Runs"').classes("zoo-wide")
            for slot, template in SLOTS.items():
                self.table.add_slot(slot, template)
            self.table.on("open", lambda event: self.open(str(event.args)))
            self.table.bind_filter_from(self.search, "value")
            self.report = CommandReport(self.app)
        self.details = RunDetails(page, self.show_list, self.delete)
        self.show_list()
        page.refresh_every(0.5, "runs", self.refresh)

    def show_list(self) -> None:
        """Show all runs."""
        self.list.set_visibility(True)
        self.details.box.set_visibility(False)

    def open(self, name: str) -> None:
        """Show one run, in all tabs."""
        self.page.choose(name)
        self.details.show(name)
        self.list.set_visibility(False)
        self.details.box.set_visibility(True)

    def _selected(self) -> list[RunRow]:
        rows = self.app.index.rows
        return [rows[entry["name"]] for entry in self.table.selected if entry["name"] in rows]

    def _show_selection(self) -> None:
        count = len(self._selected())
        self.actions.set_visibility(bool(count))
        self.count.set_text("1 run selected" if count == 1 else f"{count} runs selected")
        self.compare.set_enabled(2 <= count <= MAX_COMPARED)

    async def _compare(self) -> None:
        folders = [str(row.info.folder) for row in self._selected()]
        await notify_errors(self.report.run("compare", *folders, f"--root={self.app.folders.runs}"))

    def _watch_selected(self) -> None:
        first, *others = [row.name for row in self._selected()]
        self.page.choose(first, "watch", compared_runs=others)

    async def _delete_selected(self) -> None:
        await self.delete([row.name for row in self._selected()])

    async def delete(self, names: list[str]) -> bool:
        """Delete runs when the user confirms it; returns whether they are gone."""
        rows = [self.app.index.rows[name] for name in names if name in self.app.index.rows]
        titles = [f"{row.title} ({row.name})" if row.label else row.name for row in rows]
        text = f"{', '.join(titles)}: {format_bytes(sum(row.size for row in rows))}. This cannot be undone."
        question = "Delete this run?" if len(rows) == 1 else f"Delete {len(rows)} runs?"
        with self.list.parent_slot or self.list:
            if not rows or not await confirm(question, text, "Delete"):
                return False
            for row in rows:
                await notify_errors(self._delete(row.name))
        await asyncio.to_thread(self.app.index.scan)
        await self.refresh()
        return not any(row.name in self.app.index.rows for row in rows)

    async def _delete(self, run: str) -> None:
        if self.app.queue.is_busy(run):
            raise ValueError(f"{run} is running or queued: stop or cancel it first")
        if run in self.app.exporting:
            raise ValueError(f"{run} is being exported: wait for it")
        if self.app.queue.launch_errors.pop(run, None) is None or (self.app.folders.runs / run).exists():
            await asyncio.to_thread(delete_run, self.app.folders, run)

    async def refresh(self) -> None:
        """Show what has changed."""
        if self.details.box.visible:
            if self.page.run != self.details.run:
                self.details.show(self.page.run)
            await self.details.refresh()
        if not self.list.visible:
            return
        rows = list(self.app.index.rows.values())
        for element in (self.search, self.table):
            element.set_visibility(bool(rows))
        waiting = sum(row.state == "queued" for row in rows)
        working = sum(row.state in ACTIVE_STATES for row in rows) - waiting
        text = f"{working} running, {waiting} queued ({self.app.queue.at_once} at a time)" if working or waiting else ""
        self.status.show("calm", text if rows else "No runs yet: start a training in the tab Train.")
        cells = [row_cells(row, order) for order, row in enumerate(rows)]
        if cells != self.table.rows:
            self.table.rows = cells
        self._show_selection()


def row_cells(row: RunRow, order: int) -> dict[str, Any]:
    """Return the cells of a run and what its columns are sorted by; `order` is its place among the newest."""
    color, state = STATES[row.state]
    best = row.info.best
    return {
        "name": row.name,
        "run": row.title,
        "recipe": row.info.recipe,
        "color": color,
        "state": f"{state}, place {row.position}" if row.position else state,
        "step": format_progress(row),
        "steps": row.info.step,
        "best": format_best(row),
        "score": best if best is None or row.info.mode == "min" else -best,
        "age": format_age(row.info.changed) if row.info.changed else "now",
        "order": order,
        "size": format_bytes(row.size),
        "bytes": row.size,
    }
