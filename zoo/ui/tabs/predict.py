"""The tab Predict: a run or checkpoint is loaded, its form is filled in, and the results are shown."""

from __future__ import annotations

import asyncio
import time
from typing import Any
from urllib.parse import quote

from nicegui import ui

from zoo.runs.checkpoints import find_checkpoints
from zoo.runs.inference.forms import InputField
from zoo.ui.predictions import PredictionJob
from zoo.ui.state import PageState, notify_errors
from zoo.ui.tabs.predict_form import PredictForm
from zoo.ui.tabs.results import show_outputs
from zoo.ui.tabs.widgets import NEWEST, Heading, StatusLine

Source = tuple[str, str, str]  # a run, the name of a checkpoint ("" for the newest valid one), and a device
KINDS = {"waiting": "busy", "computing": "busy", "done": "good", "failed": "bad", "cancelled": "calm"}


class PredictTab:
    """The tab, made in the current slot."""

    def __init__(self, page: PageState) -> None:
        self.page, self.app = page, page.app
        self.form: PredictForm | None = None
        self._chosen: Source = (page.run, "", "auto")  # what form and status are for
        self._cards: dict[PredictionJob, JobCard] = {}
        Heading("Predict")
        with ui.element().classes("zoo-choose"):
            self.run = ui.select([], label="Run", with_input=True).classes("zoo-choose-run")
            self.checkpoint = ui.select({"": NEWEST}, value="", label="Checkpoint").classes("zoo-choose-checkpoint")
            devices = ["auto", "cpu", *(f"cuda:{number}" for number, _ in enumerate(self.app.loads[1:]))]
            self.device = ui.select(devices, value="auto", label="Device").classes("zoo-choose-device")
            self.open = ui.button("Open", on_click=self._load).props("no-caps unelevated")
        for select, change in ((self.run, self._choose), (self.checkpoint, self._update), (self.device, self._update)):
            select.props("outlined dense").on_value_change(change)
        self.status = StatusLine()
        with ui.element().classes("zoo-predict"):
            self.left = ui.element("section").classes("zoo-ask").props('aria-label="What to predict"')
            self.history = ui.element("section").classes("zoo-history").props("aria-label=Results")
        self._clear()
        page.refresh_every(1.0, "predict", self._refresh_runs)
        page.refresh_every(0.3, "predict", self._refresh_jobs)

    def _choose(self) -> None:
        if self.run.value and self.run.value != self.page.run:
            self.page.choose(self.run.value)
            self._update()

    def _clear(self, missing: str = "") -> None:
        """Remove the form and the status; `missing` is why nothing can be opened."""
        self.form = None
        self._missing = missing
        self.status.show("calm", missing)
        self.left.clear()
        with self.left:
            ui.label("Choose a run and open it: its form appears here.").classes("zoo-small")

    def _update(self) -> None:
        """Note what is chosen; the form and status of another run, checkpoint or device go."""
        if self._chosen[0] != self.page.run:
            self.checkpoint.set_value("")
        chosen = (self.page.run, self.checkpoint.value or "", self.device.value)
        if chosen != self._chosen:
            self._chosen = chosen
            self._clear()

    async def _refresh_runs(self) -> None:
        """Show runs and checkpoints as they are now."""
        run, rows = self.page.run, self.app.index.rows
        self._update()
        if rows.keys() != set(self.run.options):  # their order changes while they are written
            self.run.set_options(list(rows), value=run if run in rows else None)
        elif self.run.value != run and run in rows:
            self.run.set_value(run)
        paths = await asyncio.to_thread(find_checkpoints, rows[run].info.folder) if run in rows else []
        if run != self.page.run:
            return
        options = {"": NEWEST} | {path.name: path.name for path in paths}
        if options != self.checkpoint.options:
            value = self.checkpoint.value
            self.checkpoint.set_options(options, value=value if value in options else "")
        self.open.set_enabled(bool(paths))
        missing = "Choose a run." if rows else "No trained system yet: start one in the tab Train."
        if run in rows:
            missing = "" if paths else "This run has no checkpoint yet: train first."
        if missing != self._missing:
            self._clear(missing)

    async def _load(self) -> None:
        """Load what is chosen, and make its form."""
        run, checkpoint, _ = source = self._chosen
        self.open.disable()
        self.status.show("busy", f"Loading {run} ...")
        fields = await notify_errors(self._load_fields(source))
        if self.left.is_deleted or source != self._chosen:
            return
        self.open.enable()
        if fields is None:
            self.status.show("bad", f"{run} is not open.")
            return
        self.left.clear()
        with self.left:
            self.form = PredictForm(fields, self.app.folders, self.page.uploads)
            ui.button("Predict", on_click=self._submit).props("no-caps unelevated").classes("zoo-go")
            if any(field.name == "input" for field in fields):
                path = self.app.folders.relative(self.app.folders.checkpoint(run, checkpoint))
                command = f"zoo predict --ckpt_path {path} --input FOLDER --output OUTPUT"
                ui.label(f"All files of a folder: {command}").classes("zoo-small zoo-path")
        self.status.show("good", f"{run} is ready.")

    async def _load_fields(self, source: Source) -> tuple[InputField, ...]:
        run, checkpoint, device = source
        return await self.app.predictions.model.load(self.app.folders.checkpoint(run, checkpoint), device)

    async def _submit(self) -> None:
        """Submit the form, a job for each of several files."""
        if self.form is None:
            return
        run, checkpoint, device = self._chosen
        try:
            forms = self.form.read()
            path = self.app.folders.checkpoint(run, checkpoint)
            for values in forms:
                name = f"{run} {checkpoint}".strip()
                self.app.predictions.submit(path, device, values, name, self.form.title(values))
        except (ValueError, OSError) as error:
            self.status.show("bad", str(error))
            return
        self.status.show("calm", "")
        await self._refresh_jobs()

    async def _refresh_jobs(self) -> None:
        """Show a card for each job, the newest first."""
        jobs = self.app.predictions.jobs
        for job in [job for job in self._cards if job not in jobs]:
            self._cards.pop(job).root.delete()
        for job in jobs:
            if job not in self._cards:
                with self.history:
                    self._cards[job] = JobCard(self, job)
                self._cards[job].root.move(target_index=0)
        for card in list(self._cards.values()):
            card.refresh()


class JobCard:
    """One job: what was entered, the progress, and the results."""

    def __init__(self, tab: PredictTab, job: PredictionJob) -> None:
        self.job = job
        self._state: tuple[Any, ...] = ()
        caption = f"{job.run} · {time.strftime('%H:%M:%S', time.localtime(job.submitted))}"
        self.root = ui.expansion(job.title or "Prediction", caption=caption, value=True).classes("zoo-card")
        with self.root:
            self.status = StatusLine()
            self.bar = ui.linear_progress(show_value=False, size="6px")
            self.stop = ui.button("Cancel", on_click=lambda: tab.app.predictions.cancel(job))
            self.stop.props("no-caps outline dense")
            for element in (self.bar, self.stop):
                element.props["aria-label"] = f"{'Cancel' if element is self.stop else 'Progress of'} {job.title}"
            self.results = ui.element().classes("zoo-answer")

    def refresh(self) -> None:
        """Show what has changed."""
        job = self.job
        state = (job.state, job.text, round(job.fraction, 3))
        if state == self._state:
            return
        self._state = state
        seconds = f" in {job.seconds:.2f} s" if job.state == "done" else ""
        share = f", {100 * job.fraction:.0f} %" if job.is_active and job.fraction else ""
        text = "" if job.text in ("", job.state) else f": {job.text}"
        self.status.show(KINDS[job.state], f"{job.state}{seconds}{share}{text}")
        for element in (self.bar, self.stop):
            element.set_visibility(job.is_active)
        self.bar.set_value(job.fraction)
        self.bar.props.set_bool("indeterminate", not job.fraction)
        with self.results:
            show_outputs(job.outputs, self._address)

    def _address(self, name: str) -> str:
        return f"/_zoo/results/{quote(self.job.name)}/{quote(name)}" if (self.job.folder / name).is_file() else ""
