"""The tab Watch: how far a training is, its curves, samples and log; stopping and resuming it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from nicegui import ui

from zoo.runs.checkpoints import best_checkpoint, find_checkpoints
from zoo.runs.run_info import RunInfo, read_settings
from zoo.ui.processes.training_queue import read_record
from zoo.ui.run_files import failure_reason, read_log, training_speed
from zoo.ui.run_index import ACTIVE_STATES, RunRow
from zoo.ui.state import PageState, notify_error, notify_errors
from zoo.ui.tabs.charts import Charts, RunCurves, arrange_panels
from zoo.ui.tabs.samples import Samples
from zoo.ui.tabs.widgets import STATES, Heading, StatusLine, confirm, format_progress


class WatchTab:
    """The tab, made in the current slot."""

    def __init__(self, page: PageState) -> None:
        self.page, self.app = page, page.app
        self._offered: Any = None
        self._shown: str | None = None  # the run
        Heading("Watch")
        self.run = ui.select({}, label="Run", with_input=True, on_change=self._choose)
        self.run.classes("zoo-wide").props("dense outlined")
        self.empty = StatusLine()
        with ui.element().classes("zoo-watch") as self.body:
            self._add_status()
            self._add_view()
            Samples(page)
            with ui.expansion("Log").classes("zoo-wide zoo-fold") as self.log_panel:
                with ui.element().classes("zoo-log").props('tabindex=0 role=region aria-label="Log"'):
                    self.log = ui.label()
        page.refresh_every(0.5, "watch", self.refresh)

    def _add_status(self) -> None:
        with ui.row().classes("zoo-status"):
            self.state = StatusLine("zoo-chip")
            self.facts = ui.label().classes("zoo-small")
            with ui.row().classes("zoo-buttons"):
                self.stop = ui.button("Stop", on_click=self._stop).props("no-caps dense outline color=negative")
                self.resume = ui.button("Resume", on_click=self._resume).props("no-caps dense outline")
        self.bar = ui.linear_progress(0.0, show_value=False, size="10px").props('rounded aria-label="Progress"')
        with ui.row().classes("zoo-progress"):
            self.progress, self.left, self.best = ui.label(), ui.label(), ui.label()
        self.folder = ui.label().classes("zoo-small zoo-path")
        self.reason = StatusLine()

    def _add_view(self) -> None:
        with ui.row().classes("zoo-view"):
            with ui.element().classes("zoo-smoothing"):
                ui.label("Smoothing").classes("zoo-small")
                self.smoothing = ui.slider(min=0, max=0.99, step=0.01, value=0)
                self.smoothing.props("dense label aria-label=Smoothing")
            self.log_scale = ui.switch("Log scale")
            self.others = ui.select({}, label="Other runs", multiple=True, on_change=self._set_compared)
            self.others.props("dense outlined use-chips").classes("zoo-beside")
        self.no_values = ui.label("No values yet: the first ones come after some batches.").classes("zoo-small")
        self.charts = Charts()

    async def _act(self, action: Callable[..., None], *arguments: Any) -> None:
        """Stop, cancel or resume the run, and show its new state."""
        try:
            action(self.page.run, *arguments)
        except (ValueError, OSError) as error:
            notify_error(error)
        await asyncio.to_thread(self.app.index.scan)
        await self.refresh()

    async def _stop(self) -> None:
        queue = self.app.queue
        record = read_record(self.app.folders.runs / self.page.run)
        text = "What it has trained since its last checkpoint is lost."
        if record and record.stopping and record.is_running() and not await confirm("Kill it?", text, "Kill"):
            return
        await self._act(queue.cancel if self.page.run in queue.waiting else queue.stop)

    async def _resume(self) -> None:
        row = self.app.index.rows[self.page.run]
        options = await request_limit(row.info) if row.state == "finished" else []
        if options is not None:
            await self._act(self.app.queue.resume, options)

    def _choose(self) -> None:
        if self.run.value and self.run.value != self.page.run:
            self.page.choose(self.run.value)

    def _set_compared(self) -> None:
        self.page.compared_runs = list(self.others.value)

    def _show_choice(self) -> None:
        """Show another run; nothing of the former one stays."""
        compared, self._offered, self._shown = self.page.compared_runs, None, self.page.run
        self._offer_runs()
        self.others.set_value([name for name in compared if name in self.others.options])
        self.body.set_visibility(False)
        self.log.set_text("")
        self.charts.show({})

    def _offer_runs(self) -> None:
        """Offer the runs, the newest first; an open list stays as it is."""
        run, rows = self.page.run, self.app.index.rows
        names = {name: " · ".join(filter(None, (name, row.label, row.state))) for name, row in rows.items()}
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
        if run != self._shown:
            self._show_choice()
        self._offer_runs()
        row = rows.get(run)
        self.body.set_visibility(row is not None)
        if row is None:
            missing = f"{run} does not exist any more, or begins at this moment." if run else "Choose a run above."
            self.empty.show("calm", missing if rows else "No run yet: start one in the tab Train.")
            return
        self.empty.show("calm", "")
        smoothing = round(float(self.smoothing.value or 0), 2)
        content = await notify_errors(asyncio.to_thread(self._read, row, smoothing, self.log_panel.value))
        if content is None or run != self.page.run:
            return
        curves, checkpoints, best, speed, reason, log = content
        self._show_status(row, checkpoints, best)
        self.left.set_text(speed)
        self.reason.show("bad", reason)
        self.log.set_text(log)
        metrics = list(dict.fromkeys(metric for each in curves.values() for metric in each))
        self.no_values.set_visibility(not metrics)
        self.charts.show(arrange_panels(metrics, row.info.monitor))
        self.charts.draw(curves, bool(self.log_scale.value))

    def _read(self, row: RunRow, smoothing: float, with_log: bool) -> tuple[RunCurves, int, str, str, str, str]:
        """Read curves, number and best of the checkpoints, speed, error and log of a run; runs in a thread."""
        rows, folder = self.app.index.rows, row.info.folder
        names = [name for name in (row.name, *self.page.compared_runs) if name in rows]
        titles = [rows[name].title for name in names] if len(names) > 1 else [""]
        folders = {
            title if titles.count(title) == 1 else name: rows[name].info.folder
            for title, name in zip(titles, names, strict=True)
        }
        best = best_checkpoint(folder, row.info.mode) if row.info.best is not None else None
        failed = row.state in ("failed", "killed", "corrupt")
        return (
            {name: self.app.metrics.read(each, smoothing) for name, each in folders.items()},
            len(find_checkpoints(folder)),
            best.name if best else "",
            training_speed(folder) if row.state in ("running", "active") else "",
            self.app.queue.launch_errors.get(row.name)
            or (failure_reason(folder) if failed else self.app.metrics.describe_divergence(folder)),
            read_log(folder, failed) if with_log else self.log.text,
        )

    def _show_status(self, row: RunRow, checkpoints: int, best_checkpoint: str) -> None:
        info = row.info
        self.state.show(*STATES[row.state])
        place = f"place {row.position} in the queue · " if row.position else ""
        self.facts.set_text(f"{place}checkpoints: {checkpoints}")
        self.stop.set_enabled(row.state in ("running", "stopping", "queued"))
        self.stop.set_text({"stopping": "Kill", "queued": "Cancel"}.get(row.state, "Stop"))
        self.resume.set_enabled(row.state not in ACTIVE_STATES and checkpoints > 0)
        share = finished_share(info)
        self.bar.set_visibility(share is not None)
        self.bar.set_value(round(share or 0.0, 3))
        self.progress.set_text(
            f"step {format_progress(row)}{'' if share in (None, 1.0) else f' · {100 * share:.0f} %'}"
        )
        step = "" if info.best_step is None else f" at step {info.best_step:,}"
        checkpoint = f" ({best_checkpoint})" if best_checkpoint else ""
        self.best.set_text("" if info.best is None else f"best {info.monitor} {info.best:.5g}{step}{checkpoint}")
        self.folder.set_text(self.app.folders.relative(info.folder))


async def request_limit(info: RunInfo) -> list[str] | None:
    """Request the new limit of a finished run; returns the option of `zoo fit`, None when the user cancels."""
    epochs = (read_settings(info.folder).get("trainer") or {}).get("max_epochs")
    key, unit, limit = "max_steps", "step", info.total
    if not limit or (isinstance(epochs, int) and epochs > 0 and info.step < limit):
        key, unit, limit = "max_epochs", "epoch", epochs
    if not limit:
        return []

    def submit() -> None:
        if number.value and number.value > limit:
            dialog.submit(int(number.value))
        else:
            number.error = f"expected a number above {limit}"

    with ui.dialog() as dialog, ui.card().classes("zoo-ask"):
        Heading("Train further")
        ui.label(f"The run has finished at step {info.step} in epoch {info.epoch}; its limit is {unit} {limit}.")
        number = ui.number(f"Train up to {unit}", value=2 * limit, precision=0).props("outlined dense")
        with ui.row().classes("zoo-buttons"):
            ui.button("Cancel", on_click=lambda: dialog.submit(None)).props("outline no-caps")
            ui.button("Resume", on_click=submit).props("no-caps")
    dialog.props["aria-label"] = "Train further"
    value = await dialog
    dialog.delete()
    return [f"--trainer.{key}={value}"] if value else None


def finished_share(info: RunInfo) -> float | None:
    """Return the finished share of a run, 0 to 1; None when neither steps nor epochs limit it."""
    if info.state == "finished":
        return 1.0
    if info.total:
        return min(info.step / info.total, 1.0)
    return min(max(info.epoch - 1, 0) / info.epochs, 1.0) if info.epochs else None
