"""The tab on which a training is put together, checked and started."""

from __future__ import annotations

from typing import Any

from nicegui import background_tasks, ui

from zoo.runs.run_info import format_duration
from zoo.ui.forms.draft import Draft, open_draft
from zoo.ui.forms.recipes import FormerRun, comment_of, device_of, former_run_of, needs
from zoo.ui.tabs.draft_form import AS_RECIPE, DraftForm
from zoo.ui.tabs.pieces import heading
from zoo.ui.visit import Visit, aside

TICK_SECONDS = 0.5
# In the browser, in the moment of a choice: the form that the server is about to replace takes no press any more.
_RETIRE = "() => document.querySelectorAll('.train-buttons').forEach(buttons => buttons.inert = true)"


class TrainTab:
    """The tab, made in the current slot; it holds one draft at a time."""

    def __init__(self, visit: Visit) -> None:
        self.visit = visit
        self.places = visit.shared.places
        self._asked: Draft | None = None
        self._pace: FormerRun | None = None
        systems = self.places.systems()
        with ui.element().classes("train") as self.root:
            with ui.element().classes("train-main"):
                heading("Train")
                with ui.element().classes("train-row"):
                    options = {name: f"{name} · {system.title}" for name, system in systems.items()}
                    first = next(iter(systems))
                    self.system = ui.select(options, value=first, label="System", on_change=self._choose_system)
                    self.system.props("outlined dense").on("update:model-value", js_handler=_RETIRE)
                    self.choices = ui.element().classes("train-choices")
                self.about = ui.element().classes("train-about")
                self.fields = ui.element()
            self.summary = ui.element().classes("train-side").props('role="region" aria-label="Check and start"')
        self._choose_system()
        visit.every(TICK_SECONDS, "train", self._tick)

    def _choose_system(self) -> None:
        names = list(self.places.recipes(self.system.value))
        first = next((name for name in names if name.startswith("smoke")), names[0])
        self._show_choices(names, first)
        self._open(self.system.value, first, "", {})

    def _show_choices(self, names: list[str], first: str) -> None:
        """Choices of recipe and machine: new ones, so that a press on former ones is nobody's."""
        system = self.system.value
        self.choices.clear()
        with self.choices:
            self.recipe = ui.select(names, value=first, label="Recipe")
            self.machine = ui.select([AS_RECIPE, *self.places.fragments()], value=AS_RECIPE, label="Machine")

        def choose_recipe() -> None:
            self._open(system, self.recipe.value, self._machine(), {})

        def choose_machine() -> None:
            # the recipe stays, so do its edits
            self._open(system, self.recipe.value, self._machine(), self.draft.edits, self.draft.lines)

        for choice, chosen in ((self.recipe, choose_recipe), (self.machine, choose_machine)):
            choice.props("outlined dense").on_value_change(chosen).on("update:model-value", js_handler=_RETIRE)

    def _machine(self) -> str:
        return "" if self.machine.value == AS_RECIPE else self.machine.value

    def _open(self, system: str, recipe: str, machine: str, edits: dict[str, Any], lines: str = "") -> None:
        """Begin a draft and show its form."""
        files = (self.places.recipe(system, recipe), *((self.places.fragments()[machine],) if machine else ()))
        configs = self.visit.shared.configs
        draft = open_draft(system, recipe, machine, files, configs.contents(files))
        draft.edits, draft.lines = dict(edits), lines
        complete = configs.known(files)
        if complete is not None:
            draft.arrive(complete)
        self.draft, self._pace = draft, None
        self.form = DraftForm(self.visit, draft, self.fields, self.summary, self._is_current, self._describe)
        if lines:
            self.form.lines.set_value(lines)
        if not draft.is_complete:
            self.form.say("busy", "Reading the complete config; the buttons wait for it ...")
        self._describe()
        background_tasks.create(self._look_around(draft))
        if self.visit.tabs.value == "train":
            self._ask()

    def _is_current(self, draft: Draft) -> bool:
        return self.draft is draft and not self.root.is_deleted

    async def _tick(self) -> None:
        self._ask()

    def _ask(self) -> None:
        """Let the complete config be read, once for each draft."""
        if self._asked is not self.draft:
            self._asked = self.draft
            if not self.draft.is_complete:
                background_tasks.create(self._complete(self.draft, self.form))

    async def _complete(self, draft: Draft, form: DraftForm) -> None:
        try:
            config = await self.visit.shared.configs.complete(draft.configs, lambda: self._is_current(draft))
        except (ValueError, OSError) as error:
            if self._is_current(draft):
                form.say("bad", " ".join(str(error).split()))
            return
        if config is not None and self._is_current(draft):
            draft.arrive(config)
            form.say("calm", "")
            form.refresh()
            form.data.set_enabled(True)
            self._describe()

    async def _look_around(self, draft: Draft) -> None:
        """Read what there is to choose from, and how fast former runs of the recipe were."""
        form = self.form
        runs = [row.run for row in self.visit.shared.board.rows.values()]
        pace = await aside(former_run_of, runs, f"{draft.system}/{draft.recipe}")
        if self._is_current(draft):
            self._pace = pace
            self._describe()
            await form.offer()

    def _describe(self) -> None:
        """Say what the recipe does, how long it takes, what it reads and what it runs on."""
        draft = self.draft
        self.about.clear()
        with self.about:
            ui.label(comment_of(draft.configs[0]))
            ui.label(self._time()).classes("zoo-small")
            gpus = [load.name for load in self.visit.shared.board.loads[1:]]
            device, is_there = device_of(draft.value("trainer.accelerator"), gpus)
            ui.label(f"Runs on {device}.").classes("zoo-small" if is_there else "train-problem")
            wanted = needs(self.visit.shared.configs.contents(draft.configs), draft.edits, self.places.work)
            if not wanted:
                ui.label("Needs no files of yours: its data comes with it.").classes("zoo-small")
            for need in wanted:
                state = "there" if need.is_there else "not there"
                words = ui.label(f"Reads {need.path} ({need.key}): {state}.")
                words.classes("zoo-small" if need.is_there else "train-problem")

    def _time(self) -> str:
        if self._pace is None:
            return "No run of it on this machine yet tells how long it takes."
        each = self._pace.seconds
        measured = f"{each:.2g} s a batch in {self._pace.run.rpartition('/')[2]}"
        steps = self.draft.value("trainer.max_steps")
        if not isinstance(steps, int) or steps <= 0:
            return f"On this machine: {measured}."
        return f"On this machine about {format_duration(each * steps)} for {steps} batches: {measured}."
