"""The tab Train: a recipe is chosen, edited and started."""

from __future__ import annotations

import asyncio
import copy
import tempfile
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from nicegui import background_tasks, ui

from zoo.common.configs import dump_yaml, load_recipe, merge
from zoo.common.environment import available_cores
from zoo.runs.checkpoints import find_checkpoints
from zoo.runs.run_info import RunInfo, format_duration, read_settings, trained_seconds
from zoo.ui.folders import read_description
from zoo.ui.processes.command import last_error, run_command
from zoo.ui.state import PageState
from zoo.ui.tabs.config_edits import SWITCHES, ConfigEdits, Edit, equal_values, find_key_in_message, flatten
from zoo.ui.tabs.config_form import LABELS, ConfigForm
from zoo.ui.tabs.widgets import StatusLine, code_block, heading

ROOT_KEY, WEIGHTS_KEY = "data.init_args.root", "init_from"
AS_RECIPE = "as in the recipe"
FIRST_RECIPE = ("hifigan", "smoke", "")
DEBOUNCE_SECONDS = 0.3
MIN_STEPS = 3  # of a run, to tell how long a batch takes
VARIABLE = "${oc.env:"
# In the browser, at the moment of a choice: the buttons of the form that the server is about to replace do nothing.
_DISABLE = "() => document.querySelectorAll('.train-buttons').forEach(buttons => buttons.inert = true)"
Action = Callable[[str, list[Path], dict[str, Any]], Awaitable[None]]


class PreviousRun(NamedTuple):
    """A run of a recipe on this machine, and the seconds that a batch took, validations included."""

    name: str
    seconds: float


def find_previous_run(runs: Iterable[RunInfo], recipe: str, config: Mapping[str, Any]) -> PreviousRun | None:
    """Return the newest run of a recipe that trained on the data of a config; None without one."""
    for run in sorted(runs, key=lambda run: -run.changed):
        if run.recipe == recipe and run.step >= MIN_STEPS:
            seconds = trained_seconds(run.folder)
            if seconds and equal_values(read_settings(run.folder).get("data"), config.get("data")):
                return PreviousRun(run.name, seconds / run.step)
    return None


def describe_time(previous: PreviousRun | None, steps: Any) -> str:
    """Describe how long a training of so many steps takes."""
    if previous is None:
        return "How long it takes is known after a first run with this data on this machine."
    measured = f"{previous.seconds:.2g} s a batch in {previous.name.rpartition('/')[2]}"
    total = f"about {format_duration(previous.seconds * steps)} for {steps} batches: " if (steps or 0) > 0 else ""
    return f"On this machine {total}{measured}."


def describe_device(accelerator: Any, gpus: Sequence[str]) -> str:
    """Describe where a training with this `trainer.accelerator` runs on a machine with these GPUs."""
    cpu = f"the CPU ({available_cores()} cores)"
    if accelerator == "cpu":
        return f"Runs on {cpu}."
    if gpus:
        return f"Runs on the GPU ({', '.join(gpus)})."
    if accelerator in (None, "auto"):
        return f"Runs on {cpu}; a GPU would be used, and this machine shows none."
    return f"Cannot run here: it needs a device of kind {accelerator}, and this machine shows none."


class TrainTab:
    """The tab, made in the current slot."""

    def __init__(self, page: PageState) -> None:
        self.page, self.app = page, page.app
        self.edits: ConfigEdits | None = None  # None while the recipe is read
        self._requested: dict[str, Any] = {}  # edits of the form that is read
        self._sources: dict[str, tuple[ui.select, dict[str, str]]] = {}  # of weights and data, with the options, by key
        self._files: list[Path] = []
        self._refused = ("", "")  # key and message of the parser's last error
        self._revision = 0  # counts recipes and edits
        self._is_busy = False
        system, recipe, machine = self.app.recipe or self._last_recipe()
        systems = {name: f"{name} · {each.title}" for name, each in self.app.folders.systems().items()}
        with ui.element().classes("train") as self.root:
            with ui.element().classes("train-main"):
                heading("Train")
                with ui.element().classes("train-row"):
                    self.system = ui.select(systems, value=system, label="System", on_change=self._choose_system)
                    self.system.props("outlined dense").on("update:model-value", js_handler=_DISABLE)
                    self.choices = ui.element().classes("train-choices")
                self.about = ui.element().classes("train-about")
                self.fields = ui.element()
            self.summary = ui.element().classes("train-side").props('role="region" aria-label="Check and start"')
        self._offer_recipes(recipe, machine)
        self._open({})

    def _last_recipe(self) -> tuple[str, str, str]:
        """Return system and recipe of the newest run."""
        for row in sorted(self.app.index.rows.values(), key=lambda row: -row.info.changed):
            system, _, recipe = row.info.recipe.partition("/")
            if system in self.app.folders.systems() and recipe in self.app.folders.recipes(system):
                return system, recipe, ""
        return FIRST_RECIPE

    def _choose_system(self) -> None:
        names = list(self.app.folders.recipes(self.system.value))
        self._offer_recipes(next((name for name in names if name.startswith("smoke")), names[0]), "")
        self._open({})

    def _choose_machine(self) -> None:
        self._open(self._requested if self.edits is None else self.edits.edits)

    def _offer_recipes(self, recipe: str, machine: str) -> None:
        """Offer recipes and machine presets by new elements, so that a press on the former ones does nothing."""
        self.choices.clear()
        with self.choices:
            names, presets = list(self.app.folders.recipes(self.system.value)), self.app.folders.machine_presets()
            self.recipe = ui.select(names, value=recipe, label="Recipe", on_change=lambda: self._open({}))
            self.machine = ui.select({"": AS_RECIPE} | {name: name for name in presets}, value=machine, label="Machine")
            self.machine.on_value_change(self._choose_machine)
        for choice in (self.recipe, self.machine):
            choice.props("outlined dense").on("update:model-value", js_handler=_DISABLE)

    def _open(self, edits: dict[str, Any]) -> None:
        """Read the chosen recipe and show its form, with edits."""
        self.app.recipe = system, recipe, machine = self.system.value, self.recipe.value, self.machine.value
        self._files = [self.app.folders.recipes(system)[recipe]]
        if machine:
            self._files.append(self.app.folders.machine_presets()[machine])
        self.edits, self._requested, self._sources = None, dict(edits), {}
        self._revision += 1
        for box in (self.fields, self.summary, self.about):
            box.clear()
        with self.about:
            ui.label(read_description(self._files[0]))
        with self.summary:
            self.status = StatusLine()
            self.status.show("busy", "Reading the config ...")
        background_tasks.create(self._load(self._revision))

    def _is_current(self, revision: int) -> bool:
        return revision == self._revision and not self.root.is_deleted

    async def _load(self, revision: int) -> None:
        try:
            parsed = await self.app.parser.parse(self._files, {})
            edits = ConfigEdits(parsed.config)
            for key, value in self._requested.items():
                edits.edit(key, value)
        except (ValueError, OSError) as error:
            if self._is_current(revision):
                self.status.show("bad", " ".join(str(error).split()))
            return
        runs = [row.info for row in self.app.index.rows.values()]
        recipe = f"{self.system.value}/{self.recipe.value}"
        previous = await asyncio.to_thread(find_previous_run, runs, recipe, parsed.config)
        if not self._is_current(revision):
            return
        self.edits = edits
        with self.fields:
            self._add_sources(self.edits)
            self.form = ConfigForm(self.edits, parsed.arguments, self._edited)
        self.summary.clear()
        with self.summary:
            self._add_summary()
        with self.about:
            self._add_facts(self.edits.values, previous)
        self._edited()

    def _add_sources(self, edits: ConfigEdits) -> None:
        """Add the choices of pretrained weights and data."""
        rows = self.app.index.rows.values()
        weights = {str(path): f"{row.name}/{path.name}" for row in rows for path in find_checkpoints(row.info.folder)}
        folders = {str(path): name for name, path in self.app.folders.data_sets().items()}
        with ui.element().classes("train-row"):
            self._add_source(WEIGHTS_KEY, "Pretrained weights", {"": "none"} | weights)
            if ROOT_KEY in edits.values:
                self._add_source(ROOT_KEY, "Data", {"": AS_RECIPE} | folders)
        if ROOT_KEY in edits.values:
            data = self.app.folders.data
            work = self.app.folders.work
            place = data.relative_to(work) if data.is_relative_to(work) else data
            ui.label(
                f"Your own files: put their folder into {place} and choose it under Data, or write its "
                f"path into {ROOT_KEY} under Every key."
            ).classes("zoo-small")

    def _add_source(self, key: str, label: str, options: dict[str, str]) -> None:
        def choose(event: Any) -> None:
            if self.edits is None or event.value == self._edited_source(key):
                return
            if event.value:
                self.edits.edit(key, event.value)
            else:
                self.edits.reset(key)
            self._edited()

        select = ui.select(options, value="", label=label, with_input=True, on_change=choose).props("outlined dense")
        self._sources[key] = select, options

    def _edited_source(self, key: str) -> str:
        value = None if self.edits is None else self.edits.edits.get(key)
        return value if isinstance(value, str) else ""  # several sources are a list, written under Every key

    def _add_summary(self) -> None:
        heading("Differs from the recipe", 3)
        self.table = ui.element().classes("train-differences")
        with ui.element().classes("train-buttons"):
            self.buttons = [
                ui.button("Start training", on_click=lambda: self._press(self._start)).props("unelevated no-caps"),
                ui.button("Try one step", on_click=lambda: self._press(self._try_step)).props("outline no-caps"),
            ]
        self.status = StatusLine()
        self.rows = ui.element("ul").classes("train-rows")
        with ui.expansion("Command line and config").classes("train-group"):
            self.config = ui.element()

    def _add_facts(self, values: Mapping[str, Any], previous: PreviousRun | None) -> None:
        """Add how long the recipe takes, where it runs and what it reads."""
        ui.label(describe_time(previous, values["trainer.max_steps"])).classes("zoo-small")
        gpus = [load.name for load in self.app.loads[1:]]
        ui.label(describe_device(values["trainer.accelerator"], gpus)).classes("zoo-small")
        content: dict[str, Any] = {}
        for file in self._files:
            content = merge(content, load_recipe(file))
        keys = [key for key, value in flatten(content).items() if isinstance(value, str) and VARIABLE in value]
        paths = {key: values[key] for key in keys if isinstance(values.get(key), str)}
        if not paths:
            ui.label("Needs no files of yours: its data comes with it.").classes("zoo-small")
        for key, path in paths.items():
            exists = (self.app.folders.work / path).exists()
            text = f"Reads {path} ({key}): {'it exists' if exists else 'it does not exist'}."
            ui.label(text).classes("zoo-small" if exists else "train-problem")

    def _edited(self) -> None:
        """Show the edits, and let the parser check them once nothing has changed for a moment."""
        self._revision += 1
        key, message = self._refused
        if self.edits is not None and self.edits.problems.get(key) == message:  # another key may have mended it
            del self.edits.problems[key]
        for key, (select, options) in self._sources.items():
            source = self._edited_source(key)
            select.set_options({source: source} | options, value=source)
        self.form.refresh()
        self._show_differences([])
        if not self._is_busy:
            self.status.show("calm", "")
        background_tasks.create(self._validate(self._revision))

    async def _validate(self, revision: int) -> None:
        await asyncio.sleep(DEBOUNCE_SECONDS)
        edits = self.edits
        if not self._is_current(revision) or edits is None or edits.problems:
            return
        changes = edits.to_changes()
        try:
            parsed = await self.app.parser.parse(self._files, changes)
        except (ValueError, OSError) as error:
            if self._is_current(revision):
                self._show_error(error)
            return
        if not self._is_current(revision):
            return
        self.form.arguments = parsed.arguments
        follows = edits.set_config(parsed.config)
        self.form.refresh()
        self._show_differences(follows)
        if not self._is_busy:
            self.status.show("good", "Every key and value is valid.")
        names = " ".join(f"{file.parent.name}/{file.stem}" for file in self._files)
        self.config.clear()
        with self.config:
            code_block(f"zoo fit {names}{' --config changes.yaml' if changes else ''}", "Command line")
            if changes:
                code_block(dump_yaml(changes), "changes.yaml")
            code_block(parsed.text, "Complete config")

    def _show_error(self, error: Exception) -> None:
        """Show an error, at its field when the message names one of the edited keys."""
        message = " ".join(str(error).split())
        self.status.show("bad", message)
        key = find_key_in_message(message, self.edits.edits) if self.edits else None
        if self.edits is not None and key is not None:
            self._refused = (key, message)
            self.edits.problems[key] = message
            self.form.refresh()
            self.form.open_group(key)
            self._show_differences([])

    def _show_differences(self, follows: Sequence[Edit]) -> None:
        assert self.edits is not None
        self.table.clear()
        edits = self.edits.differences()
        with self.table:
            for key, problem in self.edits.problems.items():
                ui.label(problem if key in problem else f"{key}: {problem}").classes("train-problem")
            if not edits and not follows:
                ui.label("Nothing: it trains as the recipe says.").classes("zoo-small")
                return
            with ui.element("table"):
                with ui.element("tr"):
                    for title in ("Key", "Recipe", "Yours", ""):
                        with ui.element("th" if title else "td"):
                            ui.label(title)
                for edit in (*edits, *follows):
                    self._add_row(edit)

    def _add_row(self, edit: Edit) -> None:
        can_undo = self.edits is not None and edit.key in self.edits.edits
        with ui.element("tr").classes("" if can_undo else "follows"):
            for text in (LABELS[edit.key] if edit.key in SWITCHES else edit.key, edit.recipe, edit.edited):
                with ui.element("td"):
                    ui.label(text.replace(".", ".\u200b"))  # lines break at dots
            with ui.element("td"):
                if can_undo:
                    undo = ui.button(icon="undo", on_click=lambda: self._undo(edit.key)).props(
                        "flat dense round size=sm"
                    )
                    undo.props["aria-label"] = f"Undo {edit.key}"
                else:
                    ui.label("follows").classes("zoo-small")

    def _undo(self, key: str) -> None:
        if self.edits is not None:
            self.edits.reset(key)
            self._edited()

    async def _press(self, action: Action) -> None:
        """Do something with the form as it is at this moment, once the parser has accepted it."""
        if self._is_busy:
            ui.notify("The former action has not ended.", type="warning")
            return
        if self.edits is None:
            return
        self._is_busy = True
        buttons, files, recipe = self.buttons, self._files, f"{self.system.value}/{self.recipe.value}"
        for button in buttons:
            button.disable()
        self.rows.clear()
        try:
            await action(recipe, files, copy.deepcopy(self.edits.to_changes()))
        except (ValueError, OSError) as error:
            if files is self._files:
                self._show_error(error)
        finally:
            self._is_busy = False
            for button in buttons:
                button.enable()

    async def _start(self, recipe: str, files: list[Path], changes: dict[str, Any]) -> None:
        await self.app.parser.parse(files, changes)
        run = self.app.queue.start(recipe, files, changes)
        await asyncio.to_thread(self.app.index.scan)
        self.status.show("good", f"{run} {'is queued' if run in self.app.queue.waiting else 'has started'}.")
        self.page.choose(run, "watch")

    async def _try_step(self, recipe: str, files: list[Path], changes: dict[str, Any]) -> None:
        parsed = await self.app.parser.parse(files, changes)
        self.status.show("busy", "Building it; training, saving, loading and predicting once ...")
        with tempfile.TemporaryDirectory(dir=self.app.folders.temp) as folder:
            config = Path(folder) / "recipe.yaml"
            config.write_text(parsed.text, encoding="utf-8")
            code, output = await run_command(["doctor", "--config", str(config)], self.app.environment)
        if files is not self._files:  # another recipe has been chosen meanwhile
            return
        self.status.show("good" if code == 0 else "bad", "It works." if code == 0 else last_error(output))
        with self.rows:
            for line in output.splitlines():
                if "recipe:" in line:
                    with ui.element("li"):
                        ui.label(" ".join(line.partition("recipe:")[2].split()))
