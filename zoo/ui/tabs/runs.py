"""The tab Runs: what trains and waits, all runs, one of them, several beside each other."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from nicegui import ui

from zoo.runs.run_info import format_age
from zoo.ui.board import Row
from zoo.ui.jobs.runs import size
from zoo.ui.tabs.compared import Compared
from zoo.ui.tabs.details import Details
from zoo.ui.tabs.pieces import Answer, heading
from zoo.ui.tabs.tables import MISSING, Chip, Text, ask, best, in_units, progress, title, whose
from zoo.ui.visit import Visit, aside, one_line

PAGE = 25  # rows shown at a time
MAX_COMPARED = 6
NOW_SECONDS = 60.0
_LATE = ("queued", "waiting")
_WORKING = ("running", "stopping", "active")
_ANY = "any"
# by what the list is sorted, and whether the largest comes first
SORTS: dict[str, tuple[str, Callable[[Row], Any], bool]] = {
    "age": ("Newest", lambda row: (row.state not in (*_WORKING, *_LATE), -_steady(row)), False),
    "run": ("Name", lambda row: title(row).lower(), False),
    "recipe": ("Recipe", lambda row: row.run.recipe, False),
    "state": ("State", lambda row: row.word, False),
    "step": ("Step", lambda row: row.run.step, True),
    "best": ("Best value", lambda row: _goodness(row), False),
    "size": ("Size", lambda row: row.size or 0, True),
    "owner": ("Owner", lambda row: row.owner or "", False),
}
_COLUMNS = {
    "run": "Run",
    "recipe": "Recipe",
    "state": "State",
    "step": "Step",
    "best": "Best",
    "age": "Age",
    "size": "Size",
    "owner": "Owner",
}


def _steady(row: Row) -> float:
    """When a run changed last; those at work keep their places."""
    return 0.0 if row.state in _WORKING else row.run.changed


def _goodness(row: Row) -> tuple[bool, str, float]:
    """Runs by metric, the best first, those without a value last."""
    value = row.run.best
    if value is None:
        return True, "", 0.0
    return False, row.run.monitor or "", value if row.run.mode == "min" else -value


def filtered(rows: Sequence[Row], text: str, system: str, state: str, tag: str) -> list[Row]:
    """The rows that fit: every word of the text somewhere in name, label, tags, recipe, state or metric.

    Args:
        system: "any", or the first part of a name; so are state and tag.
    """
    words = text.lower().split()

    def fits(row: Row) -> bool:
        said = " ".join((row.name, row.label or "", *row.tags, row.run.recipe, row.word, row.run.monitor or "")).lower()
        return (
            all(word in said for word in words)
            and system in (_ANY, row.name.partition("/")[0])
            and state in (_ANY, row.word)
            and (tag == _ANY or tag in row.tags)
        )

    return [row for row in rows if fits(row)]


class RunsTab:
    """The tab, made in the current slot."""

    def __init__(self, visit: Visit) -> None:
        self.visit = visit
        self.selected: dict[str, None] = {}
        self.sort, self.backwards = "age", False
        self._seen: tuple[int, float] = (-1, 0.0)
        self._lines: dict[str, _Line] = {}
        self._jobs: dict[str, _Job] = {}
        with ui.element().classes("zoo-runs") as self.list:
            self._build()
        self.details = Details(visit, self.show_list, self.delete)
        self.compared = Compared(visit, self.show_list)
        self.show_list()
        visit.on_choice(self._follow)
        visit.every(0.25, "runs", self.refresh)

    def _build(self) -> None:
        heading("Runs").props("tabindex=-1")
        self.empty = Answer()
        with ui.element("section").classes("zoo-queue").props('aria-label="Trainings and queue"') as self.queue:
            self.at_work = Text("h3", "", "zoo-title")
            self.jobs = ui.element("ul")
        with ui.element().classes("zoo-filters").props('role="search" aria-label="Filter runs"') as self.filters:
            dense = "outlined dense"
            change = self._changed
            self.text = ui.input("Search runs", on_change=change).props(f"{dense} clearable debounce=150 type=search")
            self.system = ui.select([_ANY], value=_ANY, label="System", on_change=change).props(dense)
            self.state = ui.select([_ANY], value=_ANY, label="State", on_change=change).props(dense)
            self.tag = ui.select([_ANY], value=_ANY, label="Tag", on_change=change).props(dense)
            names = {key: name for key, (name, _, _) in SORTS.items()}
            self.order = ui.select(names, value="age", label="Sort by", on_change=self._sort_by_choice)
            self.order.props(dense).classes("zoo-narrow")
        with ui.row().classes("zoo-selected").props('role="group" aria-label="Selected runs"') as self.actions:
            self.count = ui.label().props('role="status"')
            self.compare_button = ui.button("Compare", on_click=self.compare).props("outline no-caps dense")
            ui.button("Delete …", on_click=lambda: self.delete(list(self.selected))).props(
                "outline no-caps dense color=negative"
            )
            ui.button("Clear selection", on_click=self.clear).props("flat no-caps dense")
        with ui.element("table").classes("zoo-list") as self.table:
            Text("caption", "Runs", "zoo-unseen")
            with ui.element("thead"), ui.element("tr"):
                with ui.element("th").props("scope=col"):
                    Text("span", "Select", "zoo-unseen")
                self.heads = {key: _Head(key, name, self.sort_by) for key, name in _COLUMNS.items()}
                with ui.element("th").props("scope=col"):
                    Text("span", "Actions", "zoo-unseen")
            self.body = ui.element("tbody")
        with ui.row().classes("zoo-pages"):
            self.shown = ui.label().classes("zoo-small").props('role="status"')
            self.pages = ui.pagination(1, 1, on_change=self._changed).props('max-pages=6 aria-label="Pages of runs"')

    def show_list(self) -> None:
        """Show all runs."""
        self._turn(self.list)

    def open(self, name: str) -> None:
        """Show one run, which all tabs look at then."""
        self.visit.choose(name)
        self.details.show(name)
        self._turn(self.details.place)

    async def compare(self) -> None:
        """Show the selected runs beside each other."""
        if await one_line(self.compared.show(list(self.selected))):
            self._turn(self.compared.place)

    def _turn(self, place: ui.element) -> None:
        for each in (self.list, self.details.place, self.compared.place):
            each.set_visibility(each is place)
        self._seen = (-1, 0.0)

    def _follow(self) -> None:
        if self.details.place.visible and self.visit.run != self.details.run:
            self.details.show(self.visit.run)

    async def delete(self, names: Sequence[str]) -> bool:
        """Delete runs when the user says so once more.

        Returns:
            Whether they are gone.
        """
        shared, rows = self.visit.shared, self.visit.shared.board.rows
        names = [name for name in names if name in rows]
        if not names:
            return False

        def measured() -> int:
            return sum(size(shared.places, name) for name in names)

        together = await one_line(aside(measured))
        if together is None:
            return False
        others = sum(whose(rows[name], self.visit.session) == "another session" for name in names if name in rows)
        called = [f"{title(rows[name])} ({name})" if rows[name].label else name for name in names if name in rows]
        text = f"{', '.join(called)}: {in_units(together)} with all checkpoints. This cannot be undone."
        text += f" {others} of them came from another session." if others else ""
        question = "Delete this run?" if len(names) == 1 else f"Delete {len(names)} runs?"
        with self.list.parent_slot or self.list:
            if not await ask(question, text, "Delete"):
                return False
        gone = []
        for name in names:
            await one_line(aside(shared.exports.delete_run, name))
            gone += [name] if self._is_gone(name) else []
        await aside(shared.board.scan)
        if gone:
            ui.notify(f"Deleted {gone[0] if len(gone) == 1 else f'{len(gone)} runs'}", type="positive")
        return len(gone) == len(names)

    def _is_gone(self, name: str) -> bool:
        try:
            self.visit.shared.places.run(name)
        except ValueError:
            return True
        return False

    def clear(self) -> None:
        """Select none."""
        self.selected.clear()
        self._changed()

    def choose(self, name: str, chosen: bool) -> None:
        """Add a run to the selected ones, or take it out."""
        if chosen:
            self.selected[name] = None
        else:
            self.selected.pop(name, None)
        self._show_selected()

    def sort_by(self, key: str) -> None:
        """Sort by a column; by the same one again the other way round."""
        self.backwards = not self.backwards if key == self.sort else False
        self.sort = key
        self.order.set_value(key)
        self._changed()

    def _sort_by_choice(self) -> None:
        if self.order.value != self.sort:
            self.sort_by(self.order.value)

    def _changed(self) -> None:
        self._seen = (-1, 0.0)
        self.update()

    async def refresh(self) -> None:
        """Show what has changed since the last time."""
        version, now = self.visit.shared.board.version, time.monotonic()
        same = version == self._seen[0] and now < self._seen[1] + 5.0  # ages change by themselves
        if same and not self.details.exports_now():
            return
        self._seen = (version, now)
        if self.details.place.visible:
            await self.details.refresh()
        if self.list.visible:  # also when the run that was shown is gone
            self.update()

    def update(self) -> None:
        """Show the list as it is now."""
        rows = self.visit.shared.board.rows
        self.selected = {name: None for name in self.selected if name in rows}
        for shown in (self.filters, self.table, self.shown):
            shown.set_visibility(bool(rows))
        self.empty.say("calm", "" if rows else "No runs yet. Start a training in Train; it appears here at once.")
        self._offer(list(rows.values()))
        wanted = (self.text.value or "", self.system.value, self.state.value, self.tag.value)
        _, key, largest_first = SORTS[self.sort]
        found = sorted(filtered(list(rows.values()), *wanted), key=key, reverse=largest_first != self.backwards)
        last = max(-(-len(found) // PAGE), 1)
        if self.pages.max != last:
            self.pages.max = last
        page = min(max(int(self.pages.value or 1), 1), last)
        self.pages.set_visibility(last > 1)
        self._show(found[(page - 1) * PAGE : page * PAGE])
        self.shown.set_text(f"{len(found)} of {len(rows)} runs" if len(found) != len(rows) else f"{len(rows)} runs")
        for name, head in self.heads.items():
            head.show(self.sort == name, largest_first != self.backwards)
        self._show_selected()
        self._show_queue(list(rows.values()))

    def _offer(self, rows: Sequence[Row]) -> None:
        for choice, values in (
            (self.system, {row.name.partition("/")[0] for row in rows}),
            (self.state, {row.word for row in rows}),
            (self.tag, {tag for row in rows for tag in row.tags}),
        ):
            options = [_ANY, *sorted(values)]
            if choice.value not in options:  # the last one is gone
                options.append(choice.value)
            if choice.options != options:
                choice.set_options(options)
        self.tag.set_visibility(len(self.tag.options) > 1)

    def _show(self, rows: Sequence[Row]) -> None:
        names = [row.name for row in rows]
        for name in [name for name in self._lines if name not in names]:
            self._lines.pop(name).delete()
        with self.body:
            for row in rows:
                if row.name not in self._lines:
                    self._lines[row.name] = _Line(self, row.name)
        for index, row in enumerate(rows):
            line = self._lines[row.name]
            if self.body.default_slot.children[index] is not line:
                line.move(target_index=index)
            line.show(row)

    def _show_selected(self) -> None:
        count = len(self.selected)
        self.actions.set_visibility(bool(count))
        self.count.set_text("1 run selected" if count == 1 else f"{count} runs selected")
        self.compare_button.set_enabled(2 <= count <= MAX_COMPARED)
        for name, line in self._lines.items():
            line.box.set_value(name in self.selected)

    def _show_queue(self, rows: Sequence[Row]) -> None:
        jobs = [row for row in rows if row.state in (*_WORKING, *_LATE)]
        jobs.sort(key=lambda row: ((*_WORKING, *_LATE).index(row.state) > 2, row.position or 2**31, row.name))
        self.queue.set_visibility(bool(jobs))
        waiting = sum(row.state in _LATE for row in jobs)
        once = self.visit.shared.trainings.queue.at_once
        limit = "1 training at a time" if once == 1 else f"{once} trainings at a time"
        self.at_work.set_text(f"{len(jobs) - waiting} running, {waiting} queued ({limit})")
        names = [row.name for row in jobs]
        for name in [name for name in self._jobs if name not in names]:
            self._jobs.pop(name).delete()
        with self.jobs:
            for index, row in enumerate(jobs):
                if row.name not in self._jobs:
                    self._jobs[row.name] = _Job(self, row.name)
                if self.jobs.default_slot.children[index] is not self._jobs[row.name]:
                    self._jobs[row.name].move(target_index=index)
                self._jobs[row.name].show(row)

    async def act(self, work: Callable[..., Any], *arguments: Any, said: str) -> None:
        """Do something to a run and show what came of it at once."""

        def done() -> bool:
            work(*arguments)
            self.visit.shared.board.scan()
            return True

        if await one_line(aside(done)):
            ui.notify(said, type="positive")
        self._seen = (-1, 0.0)


class _Head(ui.element):
    """A column's name; a button that sorts by it."""

    def __init__(self, key: str, name: str, sort: Callable[[str], None]) -> None:
        super().__init__("th")
        self.props("scope=col")
        with self:
            self.button = ui.button(name, on_click=lambda: sort(key)).props("flat dense no-caps")

    def show(self, sorted_by: bool, falling: bool) -> None:
        direction = ("descending" if falling else "ascending") if sorted_by else "none"
        if self.props.get("aria-sort") != direction:
            self.props(f"aria-sort={direction}")
            icon = {"none": "unfold_more", "ascending": "arrow_upward", "descending": "arrow_downward"}[direction]
            self.button.props(f"icon-right={icon}")


class _Line(ui.element):
    """A run in the list."""

    def __init__(self, tab: RunsTab, name: str) -> None:
        super().__init__("tr")
        self.tab, self.name = tab, name
        with self:
            with ui.element("td").classes("zoo-cell-box"):
                self.box = ui.checkbox(on_change=lambda event: tab.choose(name, bool(event.value))).props("dense")
            with ui.element("th").props("scope=row").classes("zoo-cell-run"):
                self.opener = ui.button(on_click=lambda: tab.open(name)).props("flat dense no-caps align=left")
                self.tags = ui.row().classes("zoo-tags")
            self.cells = {key: Text("td", "", f"zoo-cell-{key}") for key in ("recipe",)}
            with ui.element("td").classes("zoo-cell-state"):
                self.state = Chip()
            self.cells |= {key: Text("td", "", f"zoo-cell-{key}") for key in ("step", "best", "age", "size", "owner")}
            for key, cell in self.cells.items():
                cell.props(f'data-name="{_COLUMNS[key]}"')
            with ui.element("td").classes("zoo-cell-actions"):
                self.watch = ui.button("Watch", on_click=lambda: tab.visit.choose(name, "watch"))
                self.watch.props("flat dense no-caps")
        self._shown: Any = None

    def show(self, row: Row) -> None:
        current = row.name == self.tab.visit.run
        if self.props.get("aria-current") != str(current).lower():
            self.props(f"aria-current={str(current).lower()}")
        age = time.time() - row.run.changed
        self.cells["age"].text = (
            "now" if age < NOW_SECONDS else format_age(row.run.changed) if row.run.changed else MISSING
        )
        if self._shown is row:
            return
        former, self._shown = self._shown, row
        self.state.show(row.word)
        called = title(row)
        if self.opener.text != called:
            self.opener.set_text(called)
            for control, doing in ((self.box, "Select"), (self.watch, "Watch")):
                control.props["aria-label"] = f"{doing} {called}, {row.run.recipe}"
                control.update()
        if former is None or former.tags != row.tags:
            self.tags.clear()
            with self.tags:
                for tag in row.tags:
                    ui.label(tag).classes("zoo-tag")
        self.cells["recipe"].text = row.run.recipe
        self.cells["step"].text = progress(row)
        self.cells["best"].text = best(row)
        self.cells["size"].text = in_units(row.size)
        self.cells["owner"].text = whose(row, self.tab.visit.session)


class _Job(ui.element):
    """A training that runs or waits."""

    def __init__(self, tab: RunsTab, name: str) -> None:
        super().__init__("li")
        self.tab, self.name = tab, name
        trainings, session = tab.visit.shared.trainings, tab.visit.session
        with self:
            self.opener = ui.button(on_click=lambda: tab.open(name)).props("flat dense no-caps")
            self.state = Chip()
            self.said = ui.label().classes("zoo-small")
            with ui.row().classes("zoo-buttons"):
                self.watch = self._button("Watch", lambda: tab.visit.choose(name, "watch"))
                self.stop = self._button("Stop", lambda: tab.act(trainings.stop, name, said=f"{name} saves and stops"))
                self.adopt = self._button(
                    "Queue again", lambda: tab.act(trainings.adopt, name, session, said=f"{name} is queued")
                )
                self.cancel = self._button("Cancel", self._cancel)

    def _button(self, text: str, handler: Callable[[], Any]) -> ui.button:
        return ui.button(text, on_click=handler).props("flat dense no-caps")

    async def _cancel(self) -> None:
        row = self.tab.visit.shared.board.rows.get(self.name)
        if row and whose(row, self.tab.visit.session) == "another session":
            with self.tab.list.parent_slot or self.tab.list:
                if not await ask("Cancel this training?", f"{self.name} was queued by another session.", "Cancel it"):
                    return
        await self.tab.act(self.tab.visit.shared.trainings.cancel, self.name, said=f"{self.name} is cancelled")

    def show(self, row: Row) -> None:
        called = f"{title(row)}, {row.run.recipe}"
        if self.opener.text != called:
            self.opener.set_text(called)
            for button in (self.watch, self.stop, self.adopt, self.cancel):
                button.props["aria-label"] = f"{button.text} {called}"
                button.update()
        self.state.show(row.state)
        owner = whose(row, self.tab.visit.session)
        if row.state in _LATE:
            place = f"number {row.position} in the queue" if row.position else "in another server's queue"
            self.said.set_text(f"{place if row.state == 'queued' else 'starts when it is queued again'} · {owner}")
        else:
            self.said.set_text(f"step {progress(row)} · {owner}")
        self.watch.set_visibility(row.state in _WORKING)
        self.stop.set_visibility(row.state == "running")
        self.adopt.set_visibility(row.state == "waiting")
        self.cancel.set_visibility(row.state in _LATE)
