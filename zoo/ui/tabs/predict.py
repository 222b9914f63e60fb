"""The tab Predict: a trained system is loaded, asked by its own form, and its answers are shown."""

from __future__ import annotations

import time
from typing import Any

from nicegui import ui

from zoo.ui.forms.asking import Form
from zoo.ui.tabs import answers
from zoo.ui.tabs.pieces import Answer, heading
from zoo.ui.visit import Visit, aside, one_line
from zoo.ui.warm.asked import Job
from zoo.ui.warm.pool import NEWEST, Warm

LOOK_SECONDS = 1.0
JOBS_SECONDS = 0.3
_WORDS = {
    "waiting": ("busy", "waiting"),
    "working": ("busy", "computing"),
    "done": ("good", "done"),
    "failed": ("bad", "failed"),
    "cancelled": ("calm", "cancelled"),
}


class PredictTab:
    """The tab, made in the current slot."""

    def __init__(self, visit: Visit) -> None:
        self.visit = visit
        self.shared = visit.shared
        self.asked = visit.shared.asked
        self.form: Form | None = None
        self.cards: dict[str, Card] = {}
        self._open: tuple[str, str] = ("", "")  # run and checkpoint of the form
        self._run = visit.run
        self._opening = False
        self._lines: list[str] = []
        heading("Predict")
        with ui.element().classes("zoo-choose"):
            self.run = ui.select([], label="Run", with_input=True).props("outlined dense").classes("zoo-choose-run")
            self.checkpoint = ui.select({NEWEST: "the newest sound one"}, value=NEWEST, label="Checkpoint")
            self.checkpoint.props("outlined dense").classes("zoo-choose-checkpoint")
            self.open = ui.button("Open", on_click=self._load).props("no-caps unelevated")
        self.advice = Answer()
        self.to_train = ui.button("Go to Train", on_click=lambda: visit.tabs.set_value("train"))
        self.to_train.props("no-caps outline").set_visibility(False)
        self.loaded = ui.element("ul").classes("zoo-loaded zoo-small")
        self.loaded.props["aria-label"] = "Loaded systems"
        with ui.element().classes("zoo-predict") as self.body:
            self.left = ui.element("section").classes("zoo-ask")
            with ui.element("section").classes("zoo-answers"):
                self.said = Answer()
                self.history = ui.element().classes("zoo-history")
                self.below = ui.element().classes("zoo-ask zoo-say")
        self.left.props["aria-label"] = "What to predict"
        self._empty()
        self.run.on_value_change(lambda event: self._choose(event.value))
        self.checkpoint.on_value_change(lambda: self._changed())
        visit.on_choice(self._changed)
        visit.every(LOOK_SECONDS, "predict", self._look)
        visit.every(JOBS_SECONDS, "predict", self._show_jobs)

    def _empty(self) -> None:
        self.form = None
        self.left.clear()
        self.below.clear()
        self.body.classes(remove="zoo-talk")
        with self.left:
            ui.label("Choose a run and open it: the form for what it can do appears here.").classes("zoo-small")

    def _choose(self, run: str | None) -> None:
        if run and run != self.visit.run:
            self.visit.choose(run)

    def _changed(self) -> None:
        """The form belongs to one run and checkpoint; with another choice it goes."""
        run = self.visit.run
        if run != self._run:
            self._run = run
            self.checkpoint.set_value(NEWEST)
            if run in self.run.options:
                self.run.set_value(run)
        if self.form is not None and self._open != self._chosen():
            self._empty()

    def _chosen(self) -> tuple[str, str]:
        return self.visit.run, self.checkpoint.value or NEWEST

    async def _look(self) -> None:
        """Runs, checkpoints and loaded systems as they are now."""
        run, rows = self.visit.run, self.shared.board.rows
        if rows.keys() != set(self.run.options):  # their order changes while they are written
            self.run.set_options(list(rows), value=run if run in rows else None)
        elif self.run.value != run and run in rows:
            self.run.set_value(run)
        found = await aside(self._checkpoints, run)
        if run != self.visit.run:  # chosen meanwhile
            return
        options = {NEWEST: "the newest sound one", **{name: name for name in found}}
        if options != self.checkpoint.options:
            kept = self.checkpoint.value
            self.checkpoint.set_options(options, value=kept if kept in options else NEWEST)
        advice = ""
        if not rows:
            advice = "There is no trained system yet: train one first, then come back."
        elif run not in rows:
            advice = "This run is there no more; choose another." if run else "Choose a run."
        elif not found:
            training = rows[run].state in ("running", "active", "queued")
            advice = "This run has no checkpoint yet: " + (
                "it will appear here once the training has written one." if training else "train first."
            )
        if advice != self.advice.text:
            self.advice.say("calm", advice)
        self.to_train.set_visibility(not rows or (run in rows and not found))
        self.open.set_enabled(bool(found) and not self._opening)
        if not found and self.form is not None:
            self._empty()
        self._show_loaded(await aside(self.asked.workers.list))

    def _checkpoints(self, run: str) -> list[str]:
        try:
            return self.shared.places.checkpoints(run)
        except ValueError:  # deleted, or none at all
            return []

    def _show_loaded(self, workers: tuple[Warm, ...]) -> None:
        lines = [self._line(worker) for worker in workers]
        if lines == self._lines:
            return
        self._lines = lines
        self.loaded.clear()
        with self.loaded:
            for line in lines:
                with ui.element("li"):
                    ui.label(line)

    def _line(self, worker: Warm) -> str:
        state = worker.state
        if state == "busy":
            state = "busy for you" if worker.owner == self.visit.session else "busy for somebody else"
        elif state == "idle":
            state = f"ready, unused for {worker.idle_seconds:.0f} s"
        name = f"{worker.run} ({worker.checkpoint})" if worker.checkpoint else worker.run
        return f"{name}: {state}, {worker.memory_mib:.0f} MiB"

    async def _load(self) -> None:
        """Load what is chosen, and make its form."""
        run, checkpoint = chosen = self._chosen()
        self._opening = True
        self.open.set_enabled(False)
        self.said.say("busy", f"Loading {run}; the first time takes some seconds")
        try:
            fields = await one_line(self.asked.fields(run, checkpoint))
        finally:
            self._opening = False
        if self.body.is_deleted:
            return
        self.open.set_enabled(True)
        if fields is None:
            self.said.say("bad", f"{run} could not be opened")
        elif chosen != self._chosen():
            self.said.say("calm", "Another run was chosen meanwhile; open that one.")
        else:
            self._empty()
            self._open = chosen
            self._make_form(fields)
            self.said.say("good", f"{run} is ready.")

    def _make_form(self, fields: Any) -> None:
        self.left.clear()
        talks = Form.talks(fields)
        with self.below if talks else self.left:
            self.form = Form(fields, self.shared.store, self.visit.session, self._forget, self._ask)
            send = ui.button("Send" if talks else "Predict", on_click=self._ask).props("no-caps unelevated")
            send.classes("zoo-go")
            self._make_folder()
        self.body.classes(add="zoo-talk" if talks else "")

    def _make_folder(self) -> None:
        with ui.expansion("A whole folder on the server").classes("zoo-more") as more:
            ui.label(
                "All files below it that this system reads are computed as `zoo predict` does; the results go to the "
                "run's own folder, below predictions."
            ).classes("zoo-small")
            source = ui.select([], label="Folder", with_input=True).props("outlined dense").classes("zoo-control")

            async def begin() -> None:
                if self.form is None or not source.value:
                    self.said.say("bad", "Folder: choose one")
                    return
                arguments = (*self._open, source.value, self.form.suffixes)
                if await one_line(aside(self.asked.begin_folder, self.visit.session, *arguments)):
                    await self._show_jobs()

            async def opened() -> None:
                if more.value and not source.options:
                    source.set_options(list(await aside(self.asked.folders)))

            ui.button("Predict the folder", on_click=begin).props("no-caps outline")
            more.on_value_change(opened)

    async def _ask(self) -> None:
        """Have computed what the form says, by the run that the form belongs to."""
        form, session = self.form, self.visit.session
        if form is None:
            return
        try:
            values = form.read()
        except ValueError as error:
            self.said.say("bad", str(error))
            return
        question = form.question(values[0])
        title = form.title(values)
        if await one_line(aside(self.asked.begin, session, *self._open, values, title, question)):
            if question:
                form.clear_question()
            await self._show_jobs()

    def _forget(self, key: str) -> None:
        self.asked.forget(self.visit.session, key)

    async def _show_jobs(self) -> None:
        """A card for each of the session's jobs: the newest first, in a conversation last."""
        jobs = self.asked.of(self.visit.session)
        for name in self.cards.keys() - {job.name for job in jobs}:
            self.cards.pop(name).root.delete()
        for job in jobs:
            if job.name not in self.cards:
                for card in self.cards.values():
                    card.fold()
                with self.history:
                    self.cards[job.name] = Card(self, job)
                if not job.question:
                    self.cards[job.name].root.move(target_index=0)
        for number, job in enumerate(jobs, 1):
            card = self.cards[job.name]
            if await card.refresh() and number == len(jobs):
                kind, word = _WORDS[job.state]
                note = f" in {job.seconds:.1f} s" if job.state == "done" else ""
                text = f": {job.text}" if job.text and job.state in ("waiting", "failed") else ""
                self.said.say(kind, f"{job.title}: {word}{note}{text}")


class Card:
    """One job: what was asked, how far it is, and the answer."""

    def __init__(self, tab: PredictTab, job: Job) -> None:
        self.tab = tab
        self.job = job
        self._seen: tuple[Any, ...] = ()
        self._shown = False
        self.caption = f"{job.run} · {time.strftime('%H:%M:%S', time.localtime(job.begun))}"
        if job.question:
            self.root: Any = ui.element().classes("zoo-turn")
        else:
            self.root = ui.expansion(job.title, caption=self.caption, value=True).classes("zoo-card")
            self.root.on_value_change(self.refresh)
        with self.root:
            if job.question:
                said = ui.chat_message(job.question, name="You", sent=True, stamp=self.caption)
                said.classes("zoo-chat").props("bg-color=teal-1 text-color=dark")
            self.state = ui.label().classes("zoo-said")
            self.bar = ui.linear_progress(show_value=False, size="6px")
            self.bar.props["aria-label"] = f"Progress of {job.title}"
            self.stop = ui.button("Cancel", on_click=lambda: aside(tab.asked.cancel, job)).props(
                "no-caps outline dense"
            )
            self.stop.props["aria-label"] = f"Cancel {job.title}"
            self.answer = ui.element().classes("zoo-answer")

    def fold(self) -> None:
        """Make room for a newer one."""
        if not self.job.question and not self.job.active:
            self.root.close()

    async def refresh(self) -> bool:
        """Show what has changed; whether the state has."""
        job = self.job
        now = (job.state, job.text, round(job.fraction, 3))
        if now != self._seen:
            changed = self._seen[:1] != now[:1]
            self._seen = now
            kind, word = _WORDS[job.state]
            if not job.question:
                self.root.props["caption"] = f"{self.caption} · {word}"
            word = f"{word} in {job.seconds:.2f} s" if job.state == "done" else word
            text = "" if job.text in ("", job.state) else f": {job.text}"
            share = f", {100 * job.fraction:.0f} %" if job.active and job.fraction else ""
            self.state.set_text(f"{word}{share}{text}")
            self.state.classes(replace=f"zoo-said {kind}")
            self.state.set_visibility(not (job.question and job.state == "done"))
            self.bar.set_visibility(job.active)
            self.bar.set_value(job.fraction)
            self.bar.props.set_bool("indeterminate", not job.fraction)
            self.stop.set_visibility(job.active)
        else:
            changed = False
        if job.state == "done" and not self._shown and (job.question or self.root.value):
            self._shown = True
            names = await aside(self.tab.shared.store.results, self.tab.visit.session, job.name)
            if not self.root.is_deleted:
                with self.answer:
                    answers.show(job.parts, answers.addresses(job.name, names), bool(job.question))
                    if job.question:
                        ui.run_javascript(f"getHtmlElement({self.root.id}).scrollIntoView({{block: 'nearest'}})")
        return changed
