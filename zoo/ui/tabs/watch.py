"""The tab Watch: how far a training is, its curves, samples and log; stopping and resuming it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import quote

from nicegui import ui

from zoo.runs.checkpoints import best_checkpoint, find_checkpoints
from zoo.runs.run_info import RunInfo
from zoo.ui.run_files import TrainingSpeed, failure_reason, read_log, training_speed
from zoo.ui.run_index import ACTIVE_STATES, RunRow
from zoo.ui.state import PageState, notify_error, notify_errors
from zoo.ui.tabs.charts import Charts, RunCurves, arrange_panels
from zoo.ui.tabs.meters import Meters
from zoo.ui.tabs.samples import Samples
from zoo.ui.tabs.widgets import StateChip, StatusLine, Text, format_progress, heading

REFRESH_SECONDS = 0.5
FAILED_STATES = ("failed", "killed", "corrupt")


class RunContent(NamedTuple):
    """What the files of a run hold at this moment."""

    curves: RunCurves
    checkpoints: int
    best_checkpoint: str
    speed: TrainingSpeed
    reason: str
    log: str


class WatchTab:
    """The tab, made in the current slot."""

    def __init__(self, page: PageState) -> None:
        self.page, self.app = page, page.app
        self._offered: Any = None
        heading("Watch")
        self.run = ui.select({}, label="Run", with_input=True, on_change=self._choose)
        self.run.classes("zoo-wide").props("dense outlined")
        self.empty = ui.label().classes("zoo-said calm").props("role=status")
        with ui.element().classes("zoo-watch") as self.body:
            self._add_status()
            self._add_view()
            Samples(page)
            with ui.expansion("Log").classes("zoo-wide zoo-fold") as self.log_panel:
                with ui.element().classes("zoo-log").props('tabindex=0 role=region aria-label="Log"'):
                    self.log = ui.label()
        with ui.expansion("Machine", value=True).classes("zoo-wide zoo-fold"):
            Meters(page, "watch")
        page.on_choice(self._show_choice)
        self._show_choice()
        page.refresh_every(REFRESH_SECONDS, "watch", self.refresh)

    def _add_status(self) -> None:
        with ui.row().classes("zoo-status"):
            self.state = StateChip().props("role=status")
            self.facts = ui.label().classes("zoo-small")
            with ui.row().classes("zoo-buttons"):
                self.stop = self._add_button("Stop", self.app.queue.stop, "outline color=negative")
                self.resume = ui.button("Resume", on_click=self._resume).props("no-caps dense outline")
                self.cancel = self._add_button("Cancel", self.app.queue.cancel, "outline color=negative")
        self.bar = ui.linear_progress(0.0, show_value=False, size="10px").props('rounded aria-label="Progress"')
        with ui.row().classes("zoo-progress"):
            self.progress, self.left, self.best = ui.label(), ui.label(), ui.label()
        self.folder = ui.label().classes("zoo-small zoo-path")
        self.reason = StatusLine()

    def _add_view(self) -> None:
        with ui.row().classes("zoo-view"):
            self.filter = ui.input("Filter metrics", on_change=self._filter).props("dense outlined clearable")
            with ui.element().classes("zoo-smoothing"):
                ui.label("Smoothing").classes("zoo-small")
                self.smoothing = ui.slider(min=0, max=0.99, step=0.01, value=0)
                self.smoothing.props("dense label aria-label=Smoothing")
            self.log_scale = ui.switch("Log scale")
            self.others = ui.select({}, label="Other runs", multiple=True, on_change=self._set_compared)
            self.others.props("dense outlined use-chips").classes("zoo-beside")
        self.no_values = ui.label("No values yet: the first ones come after some batches.").classes("zoo-small")
        self.charts = Charts()

    def _add_button(self, name: str, action: Callable[[str], None], props: str) -> ui.button:
        async def act() -> None:
            try:
                action(self.page.run)
            except (ValueError, OSError) as error:
                notify_error(error)
            await asyncio.to_thread(self.app.index.scan)
            await self.refresh()

        return ui.button(name, on_click=act).props(f"no-caps dense {props}")

    async def _resume(self) -> None:
        row = self.app.index.rows[self.page.run]
        options = await request_more_steps(row.info) if row.state == "finished" else ()
        if options is not None:
            try:
                self.app.queue.resume(row.name, options)
            except (ValueError, OSError) as error:
                notify_error(error)
            await asyncio.to_thread(self.app.index.scan)
            await self.refresh()

    def _choose(self) -> None:
        if self.run.value and self.run.value != self.page.run:
            self.page.choose(self.run.value)

    def _filter(self) -> None:
        self.charts.filter(self.filter.value or "")

    def _set_compared(self) -> None:
        self.page.compared_runs = list(self.others.value)

    def _show_choice(self) -> None:
        """Show another run; nothing of the former one stays."""
        compared, self._offered = self.page.compared_runs, None
        self._offer_runs()
        self.others.set_value([name for name in compared if name in self.others.options])
        self.body.set_visibility(False)
        self.log.set_text("")
        self.charts.show({}, "")

    def _offer_runs(self) -> None:
        """Offer the runs, the newest first; an open list stays as it is."""
        run, rows = self.page.run, self.app.index.rows
        names = {name: " · ".join(filter(None, (name, row.notes.label, row.state))) for name, row in rows.items()}
        offered = (run, names)
        if offered == self._offered or self.run.is_showing_popup or self.others.is_showing_popup:
            return
        self._offered = offered
        self.run.set_options({run: run, **names} if run else names, value=run or None)
        others = {name: name for name in rows if name != run}
        self.others.set_options(others, value=[name for name in self.others.value if name in others])

    async def refresh(self) -> None:
        """Show the run as it is; what has not changed is not sent again."""
        run, rows = self.page.run, self.app.index.rows
        self._offer_runs()
        row = rows.get(run)
        self.body.set_visibility(row is not None)
        self.empty.set_visibility(row is None)
        if row is None:
            missing = f"{run} does not exist any more, or begins at this moment." if run else "Choose a run above."
            self.empty.set_text(missing if rows else "No run yet: start one in the tab Train.")
            return
        smoothing = round(float(self.smoothing.value or 0), 2)
        content = await notify_errors(asyncio.to_thread(self._read, row, smoothing, self.log_panel.value))
        if content is None or run != self.page.run:
            return
        self._show_status(row, content)
        self.log.set_text(content.log)
        metrics = list(dict.fromkeys(metric for curves, _ in content.curves.values() for metric in curves))
        self.no_values.set_visibility(not metrics)
        self.charts.show(arrange_panels(metrics, row.info.monitor), f"/_zoo/curves/{quote(run)}")
        self._filter()
        self.charts.draw(content.curves, bool(self.log_scale.value))

    def _read(self, row: RunRow, smoothing: float, with_log: bool) -> RunContent:
        """Read what is shown; runs in a thread."""
        rows, read, folder = self.app.index.rows, self.app.metrics.display_curves, row.info.folder
        names = [name for name in (row.name, *self.page.compared_runs) if name in rows]
        folders = {name if len(names) > 1 else "": rows[name].info.folder for name in names}
        best = best_checkpoint(folder, row.info.mode) if row.info.best is not None else None
        failed = row.state in FAILED_STATES
        return RunContent(
            {name: (read(each, smoothing), read(each) if smoothing else {}) for name, each in folders.items()},
            len(find_checkpoints(folder)),
            best.name if best else "",
            training_speed(folder) if row.state in ("running", "active") else TrainingSpeed(),
            failure_reason(folder) if failed else "",
            read_log(folder, failed) if with_log else self.log.text,
        )

    def _show_status(self, row: RunRow, content: RunContent) -> None:
        info = row.info
        self.state.show(row.state)
        place = f"place {row.position} in the queue · " if row.position else ""
        self.facts.set_text(f"{place}{content.checkpoints} checkpoints")
        self.stop.set_enabled(row.state in ("running", "stopping"))
        self.stop.set_text("Kill" if row.state == "stopping" else "Stop")
        self.resume.set_enabled(row.state not in ACTIVE_STATES and content.checkpoints > 0)
        self.cancel.set_visibility(row.state == "queued")
        share = finished_share(info)
        self.bar.set_visibility(share is not None)
        self.bar.set_value(round(share or 0.0, 3))
        self.progress.set_text(f"step {format_progress(row)}{'' if share is None else f' · {int(100 * share)} %'}")
        rate, left = content.speed
        self.left.set_text(f"{rate} · {left} left" if left else rate)
        step = "" if info.best_step is None else f" at step {info.best_step:,}"
        checkpoint = f" ({content.best_checkpoint})" if content.best_checkpoint else ""
        self.best.set_text("" if info.best is None else f"best {info.monitor} {info.best:.5g}{step}{checkpoint}")
        work = self.app.folders.work
        self.folder.set_text(str(info.folder.relative_to(work) if info.folder.is_relative_to(work) else info.folder))
        if self.reason.text != content.reason:
            self.reason.show("bad", content.reason)


async def request_more_steps(info: RunInfo) -> list[str] | None:
    """Request how much longer a finished run trains; returns the option of `zoo fit`, None when the user cancels."""
    key, unit, done = ("max_steps", "steps", info.total or info.step)
    if info.epochs and not info.total:
        key, unit, done = ("max_epochs", "epochs", info.epochs)
    with ui.dialog() as dialog, ui.card().classes("zoo-ask"):
        Text("h2", "Train further", "zoo-title")
        ui.label(f"The run has finished its {done} {unit}.")
        number = ui.number(f"Further {unit}", value=done, min=1, precision=0).props("outlined dense")
        with ui.row().classes("zoo-buttons"):
            ui.button("Cancel", on_click=lambda: dialog.submit(0)).props("outline no-caps")
            ui.button("Resume", on_click=lambda: dialog.submit(int(number.value or 0))).props("no-caps")
    dialog.props["aria-label"] = "Train further"
    more = await dialog
    dialog.delete()
    return [f"--trainer.{key}={done + more}"] if more else None


def finished_share(info: RunInfo) -> float | None:
    """Return the finished share of a run, 0 to 1; None when neither steps nor epochs limit it."""
    if info.total:
        return min(info.step / info.total, 1.0)
    if info.state == "finished":
        return 1.0
    return min(max(info.epoch - 1, 0) / info.epochs, 1.0) if info.epochs else None
