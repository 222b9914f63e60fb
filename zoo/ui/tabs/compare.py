"""Several runs side by side: facts, results, differences of their configs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from nicegui import ui

from zoo.runs.compare_runs import compare_runs, format_value, result_table, select_metrics
from zoo.runs.run_info import format_duration, trained_seconds
from zoo.ui.run_index import RunRow
from zoo.ui.state import PageState
from zoo.ui.tabs.widgets import Text, format_best, format_bytes, format_progress, heading, text_table

MAX_TEXT = 80  # characters of a config's value


class ComparisonTable:
    """The view of several runs, made in the current slot; `show_list` returns to the list."""

    def __init__(self, page: PageState, show_list: Callable[[], None]) -> None:
        self.page = page
        self.runs: list[str] = []
        with ui.element().classes("zoo-compared") as self.box:
            ui.button("All runs", icon="arrow_back", on_click=show_list).props("flat dense no-caps")
            self.title = Text("h2", "", "zoo-title").props("tabindex=-1")
            with ui.row().classes("zoo-buttons"):
                ui.button("Curves in Watch", on_click=self._watch).props("outline no-caps")
            self.content = ui.element()

    async def show(self, rows: Sequence[RunRow]) -> bool:
        """Read and show runs; ValueError when one has neither config nor results."""
        folders = [row.info.folder for row in rows]
        comparison = await asyncio.to_thread(compare_runs, folders, self.page.app.folders.runs)
        seconds = [await asyncio.to_thread(trained_seconds, folder) for folder in folders]
        self.runs = [row.name for row in rows]
        self.title.text = f"{len(rows)} runs compared"
        facts = [
            ["recipe", *(row.info.recipe for row in rows)],
            ["state", *(row.state for row in rows)],
            ["step", *map(format_progress, rows)],
            ["best", *map(format_best, rows)],
            ["time", *("unknown" if each is None else format_duration(each) for each in seconds)],
            ["size", *(format_bytes(row.size) for row in rows)],
            ["tags", *(", ".join(row.notes.tags) for row in rows)],
        ]
        monitors = [row.info.monitor for row in rows if row.info.monitor is not None]
        metrics = select_metrics(comparison.shared, "", monitors) if comparison.shared else []
        results = [[metric, *values] for metric, values in result_table(comparison, metrics).items()]
        keys = [[key, *(format_value(value)[:MAX_TEXT] for value in each)] for key, each in comparison.config.items()]
        labels = zip(rows, comparison.names, strict=True)
        heads = ["", *(f"{row.notes.label} ({name})" if row.notes.label else name for row, name in labels)]
        self.content.clear()
        with self.content:
            for title, cells in (
                ("Facts", facts),
                ("Results: best (last)", results),
                ("Differences of the configs", keys),
            ):
                heading(title, 3)
                if cells:
                    text_table(heads, cells, title)
                else:
                    ui.label("None.")
        self.title.run_method("focus")
        return True

    def _watch(self) -> None:
        self.page.choose(self.runs[0], "watch", compared_runs=self.runs[1:])
