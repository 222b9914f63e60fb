"""The tab Train: a recipe is chosen, edited and started."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from nicegui import background_tasks, ui

from zoo.common.configs import dump_yaml, load_recipe
from zoo.common.environment import available_cores
from zoo.runs.checkpoints import find_checkpoints
from zoo.ui.state import PageState
from zoo.ui.tabs.config_edits import ConfigEdits, find_key_in_message, flatten, flatten_values
from zoo.ui.tabs.config_form import HUB_KEY, ROOT_KEY, WEIGHTS_KEY, ConfigForm
from zoo.ui.tabs.widgets import CommandReport, Heading, StatusLine, code_block, text_table

FIRST_RECIPE = ("hifigan", "smoke", "")
# In the browser, at the moment of a choice: the buttons of the form that the server is about to replace do nothing.
_DISABLE = "() => document.querySelectorAll('.train-buttons').forEach(buttons => buttons.inert = true)"


def describe_device(accelerator: Any, gpus: Sequence[str]) -> str:
    """Describe where a training with this `trainer.accelerator` runs on a machine with these GPUs."""
    if accelerator == "cpu" or (accelerator in (None, "auto") and not gpus):
        return f"Runs on the CPU, {available_cores()} cores."
    return f"Runs on {', '.join(gpus)}." if gpus else f"Cannot run here: there is no device of kind {accelerator}."


class TrainTab:
    """The tab, made in the current slot."""

    def __init__(self, page: PageState) -> None:
        self.page, self.app = page, page.app
        self.edits: ConfigEdits | None = None  # None while the recipe is read
        self._requested: Mapping[str, Any] = {}  # edits to show once it is read
        self._files: list[Path] = []
        self._refused = ("", "")  # key and message of the parser's last error
        self._revision = 0  # counts recipes and edits
        system, recipe, machine = self.app.recipe or self._last_recipe()
        systems = {name: f"{name} · {each.title}" for name, each in self.app.folders.systems().items()}
        with ui.element().classes("train") as self.root:
            with ui.element().classes("train-main"):
                Heading("Train")
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

    def _offer_recipes(self, recipe: str, machine: str) -> None:
        """Offer recipes and machine presets by new elements, so that a press on the former ones does nothing."""
        self.choices.clear()
        with self.choices:
            names, presets = list(self.app.folders.recipes(self.system.value)), self.app.folders.machine_presets()
            self.recipe = ui.select(names, value=recipe, label="Recipe", on_change=lambda: self._open({}))
            machines = {"": "as in the recipe"} | {name: name for name in presets}
            self.machine = ui.select(machines, value=machine, label="Machine")
            self.machine.on_value_change(lambda: self._open(self.edits.edits if self.edits else self._requested))
        for choice in (self.recipe, self.machine):
            choice.props("outlined dense").on("update:model-value", js_handler=_DISABLE)

    def _open(self, edits: Mapping[str, Any]) -> None:
        """Read the chosen recipe and show its form, with edits."""
        self.app.recipe = system, recipe, machine = self.system.value, self.recipe.value, self.machine.value
        self._files = [self.app.folders.recipes(system)[recipe]]
        if machine:
            self._files.append(self.app.folders.machine_presets()[machine])
        self.edits, self._requested = None, edits
        self._revision += 1
        for box in (self.fields, self.summary, self.about):
            box.clear()
        with self.about:
            lines = self._files[0].read_text(encoding="utf-8").splitlines()
            comment = takewhile(lambda line: line.startswith("#"), lines)
            ui.label(" ".join(line.lstrip("# ") for line in comment))
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
            edits.edit_all(self._requested)
        except (ValueError, OSError) as error:
            if self._is_current(revision):
                self.status.show("bad", " ".join(str(error).split()))
            return
        if not self._is_current(revision):
            return
        self.edits = edits
        rows, relative = self.app.index.rows.values(), self.app.folders.relative
        choices = {
            WEIGHTS_KEY: [relative(path) for row in rows for path in find_checkpoints(row.info.folder)],
            ROOT_KEY: [relative(path) for path in self.app.folders.data_sets().values()],
        }
        with self.fields:
            self.form = ConfigForm(edits, parsed.arguments, self._edited, choices)
        self.summary.clear()
        with self.summary:
            self._add_summary()
        with self.about:
            self._add_facts(edits.values)
        self._edited()

    def _add_summary(self) -> None:
        Heading("Differs from the recipe", 3)
        self.table = ui.element()
        with ui.element().classes("train-buttons"):
            self.buttons = [
                ui.button("Start training", on_click=lambda: self._press(self._start)).props("unelevated no-caps"),
                ui.button("Try one step", on_click=lambda: self._press(self._try_step)).props("outline no-caps"),
            ]
            ui.button("Undo all", on_click=lambda: self._open({})).props("flat no-caps")
        self.status = StatusLine()
        self.report = CommandReport(self.app)
        with ui.expansion("Command line and config").classes("train-group"):
            self.config = ui.element()

    def _add_facts(self, values: Mapping[str, Any]) -> None:
        """Add where the recipe runs, and what it reads."""
        texts = [describe_device(values["trainer.accelerator"], [load.name for load in self.app.loads[1:]])]
        recipe = flatten(load_recipe(self._files[0]))
        keys = [key for key, value in recipe.items() if isinstance(value, str) and "${oc.env:" in value]
        paths = {key: values[key] for key in keys if isinstance(values.get(key), str)}
        for key, path in paths.items():
            exists = (self.app.folders.work / path).exists()
            texts.append(f"Reads {path} ({key}): {'it exists' if exists else 'it does not exist'}.")
        if values.get(HUB_KEY):
            texts.append(f"Downloads {values[HUB_KEY]} ({HUB_KEY}).")
        elif not paths:
            texts.append("Needs no files of yours: its data comes with it.")
        if ROOT_KEY in values:
            data = self.app.folders.relative(self.app.folders.data)
            texts.append(f"Your own files: put their folder into {data} and choose it as Data, or type its path there.")
        for text in texts:
            ui.label(text).classes("zoo-small")

    def _edited(self) -> None:
        """Show the edits, and let the parser check them once nothing has changed for a moment."""
        self._revision += 1
        key, message = self._refused
        if self.edits is not None and self.edits.problems.get(key) == message:  # another key may have mended it
            del self.edits.problems[key]
        self.form.refresh()
        self._show_differences()
        self.status.show("calm", "")
        background_tasks.create(self._validate(self._revision))

    async def _validate(self, revision: int) -> None:
        await asyncio.sleep(0.3)
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
        edits.values = flatten_values(parsed.config)  # what follows from the edits as well
        self.form.refresh()
        root = edits.values.get(ROOT_KEY)
        if root is None or (self.app.folders.work / str(root)).exists():
            self.status.show("good", "Every key and value is valid.")
        else:
            self.status.show("bad", f"There is no folder {root}.")
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
            self._show_differences()

    def _show_differences(self) -> None:
        assert self.edits is not None
        rows = [(key.replace(".", ".\u200b"), *values) for key, *values in self.edits.differences()]  # breaks at dots
        self.table.clear()
        with self.table:
            for key, problem in self.edits.problems.items():
                ui.label(problem if key in problem else f"{key}: {problem}").classes("train-problem")
            if rows:
                text_table(("Key", "Recipe", "Yours"), rows, "Differences").classes("train-differences")
            else:
                ui.label("Nothing: it trains as the recipe says.").classes("zoo-small")

    async def _press(self, action: Callable[[str, list[Path], dict[str, Any]], Awaitable[None]]) -> None:
        """Do something with the form as it is at this moment, once the parser has accepted it."""
        if self.edits is None or not self.buttons[0].enabled:
            return
        buttons, files, recipe = self.buttons, self._files, f"{self.system.value}/{self.recipe.value}"
        for button in buttons:
            button.disable()
        self.report.clear()
        try:
            await action(recipe, files, self.edits.to_changes())
        except (ValueError, OSError) as error:
            if files is self._files:
                self._show_error(error)
        finally:
            for button in buttons:
                button.enable()

    async def _start(self, recipe: str, files: list[Path], changes: dict[str, Any]) -> None:
        edits = self.edits
        await self.app.parser.parse(files, changes)
        if edits is not None and (await self.app.parser.parse(files, {})).config != edits.config:
            raise ValueError("the recipe's file has changed since it was opened here: choose it again")
        run = self.app.queue.start(recipe, files, changes)
        await asyncio.to_thread(self.app.index.scan)
        self.page.choose(run, "watch")

    async def _try_step(self, recipe: str, files: list[Path], changes: dict[str, Any]) -> None:
        report = self.report  # another recipe may be open when the parser has answered
        parsed = await self.app.parser.parse(files, changes)
        with tempfile.TemporaryDirectory(dir=self.app.folders.temp) as folder:
            config = Path(folder) / "recipe.yaml"
            config.write_text(parsed.text, encoding="utf-8")
            await report.run("doctor", "--config", str(config))
