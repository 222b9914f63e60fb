"""Several runs beside each other: facts, results, differences of their configs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from nicegui import ui

from zoo.runs.compare_runs import RunComparison, compare_runs, result_table, select_metrics
from zoo.runs.run_info import format_duration, trained_seconds
from zoo.ui.board import Row
from zoo.ui.tabs.pieces import heading
from zoo.ui.tabs.tables import MISSING, Text, best, in_units, progress, table, title
from zoo.ui.visit import Visit, aside

_LONGEST = 80  # characters of a config's value
_FIRST = 60  # keys shown before one asks for more


class Compared:
    """The view of several runs.

    Args:
        back: shows the list.
    """

    def __init__(self, visit: Visit, back: Callable[[], None]) -> None:
        self.visit = visit
        self.runs: list[str] = []
        with ui.element().classes("zoo-compared") as self.place:
            ui.button("All runs", icon="arrow_back", on_click=back).props("flat dense no-caps")
            self.title = Text("h2", "", "zoo-title").props("tabindex=-1")
            with ui.row().classes("zoo-buttons"):
                ui.button("Curves in Watch", on_click=self._watch).props("outline no-caps")
            self.content = ui.element()

    async def show(self, runs: Sequence[str]) -> bool:
        """Read and show runs.

        Raises:
            ValueError: one of them was deleted, or is no run.
            OSError: a file cannot be read.
        """
        rows = self.visit.shared.board.rows
        found = [rows[run] for run in runs if run in rows]
        if len(found) < 2:
            raise ValueError("two runs or more are compared; others of these were deleted")
        comparison, seconds = await aside(self._read, found)
        self.runs = [row.name for row in found]
        self.title.text = f"{len(found)} runs compared"
        self.content.clear()
        with self.content:
            self._show(comparison, found, seconds)
        self.title.run_method("focus")
        return True

    def _read(self, rows: Sequence[Row]) -> tuple[RunComparison, list[float | None]]:
        folders = [self.visit.shared.places.run(row.name) for row in rows]
        comparison = compare_runs(folders, self.visit.shared.places.runs)
        return comparison, [trained_seconds(folder) for folder in folders]

    def _show(self, comparison: RunComparison, rows: Sequence[Row], seconds: Sequence[float | None]) -> None:
        heads = ["", *(f"{row.label} ({name})" if row.label else name for row, name in _named(comparison, rows))]
        heading("Facts", 3)
        facts = [
            ["recipe", *(row.run.recipe for row in rows)],
            ["state", *(row.word for row in rows)],
            ["step", *map(progress, rows)],
            ["best", *map(best, rows)],
            ["time", *(MISSING if each is None else format_duration(each) for each in seconds)],
            ["size", *(in_units(row.size) for row in rows)],
            ["tags", *(", ".join(row.tags) for row in rows)],
        ]
        table(heads, facts, "Facts")
        heading("Results: best (last)", 3)
        monitors = [run.monitor for run in comparison.runs if run.monitor is not None]
        results = result_table(comparison, select_metrics(comparison.shared, "", monitors)) if comparison.shared else {}
        if results:
            table(heads, [[metric, *values] for metric, values in results.items()], "Results")
        else:
            ui.label("No metric that all of them have.")
        heading("Config", 3)
        differences = [[key, *map(_short, values)] for key, values in comparison.config.items()]
        if not differences:
            ui.label("No key differs.")
            return
        place = ui.element()
        with place:
            table(heads, differences[:_FIRST], "Differences of the configs")
            if len(differences) > _FIRST:
                more = ui.button(f"Show all {len(differences)} keys").props("flat no-caps")
                more.on_click(lambda: self._show_all(place, heads, differences))

    def _show_all(self, place: ui.element, heads: Sequence[str], differences: Sequence[Sequence[Any]]) -> None:
        place.clear()
        with place:
            table(heads, differences, "Differences of the configs")

    def _watch(self) -> None:
        self.visit.choose(self.runs[0], "watch", beside=self.runs[1:])


def _named(comparison: RunComparison, rows: Sequence[Row]) -> list[tuple[Row, str]]:
    """Rows with the shortest names that tell them apart; the title where that is one."""
    titles = [title(row) for row in rows]
    if len(set(titles)) == len(titles):
        return [(row, row.name.rpartition("/")[2]) for row in rows]
    return list(zip(rows, comparison.names, strict=True))


def _short(value: Any) -> str:
    text = MISSING if value is None else str(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
