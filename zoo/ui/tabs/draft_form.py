"""The form of one draft: its fields, what differs from the recipe, and the buttons that check and start it."""

from __future__ import annotations

import contextlib
import copy
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nicegui import ui

from zoo.common.configs import load_yaml
from zoo.ui.checks import strings
from zoo.ui.forms.controls import CONTROLS, GROUPS, OPTIONAL
from zoo.ui.forms.draft import LINES, Difference, Draft, blamed
from zoo.ui.forms.tree import key_of_node, keys_of, nodes
from zoo.ui.jobs.commands import last_error
from zoo.ui.places import choose
from zoo.ui.tabs.fields import Field, KeyEditor, make_fields
from zoo.ui.tabs.pieces import Answer, heading
from zoo.ui.visit import Visit, aside

ROOT_KEY = "data.init_args.root"
AS_RECIPE = "as in the recipe"
NONE = "none"
_LABELS = {control.keys[0]: control.label for control in CONTROLS}


@dataclass(frozen=True)
class Checked:
    """What a check of a draft found.

    Args:
        changes: nested values to lay over the recipe.
        text: the complete config.
        follows: keys that change with those that were edited.
    """

    changes: dict[str, Any]
    text: str
    follows: list[Difference]


class DraftForm:
    """The form, made anew for each draft in two given places; what it does concerns its own draft only.

    Args:
        is_current: whether it is still the form that the page shows.
        changed: called after each edit.
    """

    def __init__(
        self,
        visit: Visit,
        draft: Draft,
        fields_place: ui.element,
        summary_place: ui.element,
        is_current: Callable[[Draft], bool],
        changed: Callable[[], None],
    ) -> None:
        self.visit, self.draft, self._is_current, self._changed = visit, draft, is_current, changed
        self.rules = visit.shared.places.rules()
        self.fields: list[Field] = []
        self.editor: KeyEditor | None = None
        self._busy = False
        self._follows: list[Difference] = []
        fields_place.clear()
        summary_place.clear()
        with fields_place:
            self._make_fields()
        with summary_place:
            self._make_summary()
        self.refresh()

    def _make_fields(self) -> None:
        with ui.element().classes("train-row"):
            self.weights = ui.select([NONE], value=NONE, label="Pretrained weights", on_change=self._take_weights)
            self.data = ui.select([AS_RECIPE], value=AS_RECIPE, label="Data", on_change=self._take_data)
        for choice in (self.weights, self.data):
            choice.props("outlined dense").set_enabled(False)
        self.weights.props('hint="of a run on this server"')
        self.data.props('hint="folders that this server offers"')
        self.groups: dict[str, ui.expansion] = {}
        for group in GROUPS:
            with (
                ui.expansion(group, value=group == GROUPS[0]).classes("train-group") as self.groups[group],
                ui.element().classes("train-fields"),
            ):
                self.fields += make_fields(group, self.draft, self.rules, self._edited)
        with ui.expansion("Every key", on_value_change=self.refresh_tree).classes("train-group") as self.all_keys:
            self._make_tree()
        with ui.expansion("Keys that the config does not name").classes("train-group") as self.more:
            self.lines = ui.textarea("key=value, one a line", on_change=self._take_lines)
            self.lines.props('outlined dense autogrow placeholder="data.init_args.segment_samples=8192"')
            self.lines.without_auto_validation().set_enabled(False)

    def _make_tree(self) -> None:
        self.search = ui.input("Search keys, values and their help", on_change=self.refresh_tree)
        self.search.props("outlined dense clearable debounce=200")
        self.found = ui.label().classes("zoo-small").props('role="status"')
        with ui.element().classes("train-tree"):
            self.tree = ui.tree([], on_select=self._open_key, on_expand=lambda: None).props("dense no-selection-unset")
            self.tree.add_slot(
                "default-header",
                """<span :class="{'train-edited': props.node.edited}">{{ props.node.label }}<template
                v-if="props.node.value !== undefined">: <code>{{ props.node.value }}</code><template
                v-if="props.node.edited"> (edited)</template></template></span>""",
            )
            self.pane = ui.element().classes("train-pane")
        with self.pane:
            ui.label("Choose a key to see what it means and to edit it.").classes("zoo-small")

    def _make_summary(self) -> None:
        heading("Differs from the recipe", 3)
        self.table = ui.element().classes("train-differences")
        with ui.element().classes("train-buttons"):
            self.start_button = ui.button("Start training", on_click=lambda: self._press(self._start))
            self.try_button = ui.button("Try one step", on_click=lambda: self._press(self._try_step))
            self.check_button = ui.button("Check", on_click=lambda: self._press(self._check))
        for button in (self.start_button, self.try_button, self.check_button):
            button.props("no-caps unelevated" if button is self.start_button else "no-caps outline")
        self.answer = Answer()
        self.rows = ui.element("ul").classes("train-rows")
        with ui.expansion("Complete config").classes("train-group") as self.config_panel:
            self.config = ui.label().classes("train-config").props("tabindex=0")
        self.config_panel.set_visibility(False)

    def refresh(self) -> None:
        """Show what the draft says now."""
        for field in self.fields:
            field.refresh()
        for group, expansion in self.groups.items():
            own = [field for field in self.fields if field.control.group == group]
            expansion.set_visibility(any(field.box.visible for field in own))
        if self.editor:
            self.editor.refresh()
        complete = self.draft.is_complete
        self.data.set_visibility(ROOT_KEY in self.draft.values)
        self.lines.set_enabled(complete)
        self.all_keys.set_visibility(complete)
        self.more.set_visibility(complete)
        self.refresh_tree()
        self._show_differences()
        self._enable()

    def refresh_tree(self) -> None:
        """Show the keys that are searched for; nothing while the tree is closed."""
        if not self.all_keys.value or not self.draft.is_complete:
            return
        words = str(self.search.value or "")
        found = nodes(self.draft, words)
        if found != self.tree.props["nodes"]:
            self.tree.props["nodes"] = found
            self.tree.update()
        if words:
            self.tree.expand()
        count = sum(1 for node in self.tree.nodes() if "value" in node)
        self.found.set_text(f"{count} of {len(keys_of(self.draft))} keys")

    async def offer(self) -> None:
        """Read which weights and data folders there are to choose from."""
        places = self.visit.shared.places
        weights, folders = await aside(lambda: (list(places.weights()), list(places.data_folders())))
        if self._is_current(self.draft):
            self.weights.set_options([NONE, *weights])
            self.data.set_options([AS_RECIPE, *folders])
            self.weights.set_enabled(True)
            self.data.set_enabled(self.draft.is_complete)

    def say(self, kind: str, text: str) -> None:
        """Show an answer, in place of the former one."""
        self.answer.say(kind, text)
        self.rows.clear()

    def _edited(self) -> None:
        self._follows = []
        if not self._busy and self.draft.is_complete:
            self.say("calm", "")
        self.refresh()
        self._changed()

    def _take_weights(self, event: Any) -> None:
        self.draft.weights = "" if event.value == NONE else str(event.value)
        self._edited()

    async def _take_data(self, event: Any) -> None:
        if event.value == AS_RECIPE:
            self.draft.reset(ROOT_KEY)
        else:
            try:
                folder = choose(self.visit.shared.places.data_folders(), event.value, "data folder")
                self.draft.set(ROOT_KEY, str(folder), self.rules)
            except ValueError as error:
                self.draft.refuse(ROOT_KEY, str(error))
        self._edited()

    def _take_lines(self, event: Any) -> None:
        try:
            self.draft.set_lines(str(event.value or ""), self.rules)
        except ValueError as error:
            self.lines.error = str(error)
        else:
            self.lines.error = None
        self._edited()

    def _open_key(self, event: Any) -> None:
        key = key_of_node(str(event.value), self.draft.values)
        if key is None:
            return
        self.pane.clear()
        with self.pane:
            self.editor = KeyEditor(key, self.draft, self.rules, self._edited)

    def _show_differences(self) -> None:
        self.table.clear()
        rows = self.draft.differences()
        with self.table:
            for problem_key, problem in self.draft.problems.items():
                label = "The lines" if problem_key == LINES else _LABELS.get(problem_key, problem_key)
                ui.label(f"{label}: {problem}").classes("train-problem")
            if not rows:
                ui.label("Nothing: it trains as the recipe says.").classes("zoo-small")
                return
            with ui.element("table"):
                with ui.element("tr"):
                    for title in ("Key", "Recipe", "Yours"):
                        with ui.element("th").props("scope=col"):
                            ui.label(title)
                    with ui.element("td"):
                        pass
                for row in rows:
                    self._show_row(row, "")
                for row in self._follows:
                    self._show_row(row, "follows")

    def _show_row(self, row: Difference, mark: str) -> None:
        with ui.element("tr").classes(mark):
            for text in (_LABELS.get(row.key, row.key) if row.key in OPTIONAL else row.key, row.recipe, row.yours):
                with ui.element("td"):
                    ui.label(text.replace(".", ".\u200b"))  # lines break at dots
            with ui.element("td"):
                if mark:
                    ui.label(mark).classes("zoo-small")
                elif row.key in self.draft.edits:
                    undo = ui.button(icon="undo", on_click=lambda: self._undo(row.key))
                    undo.props(f'flat dense round size=sm aria-label="Undo {_attribute(row.key)}"')

    def _undo(self, key: str) -> None:
        self.draft.reset(key)
        if key == ROOT_KEY:
            self.data.set_value(AS_RECIPE)
        self._edited()

    def _enable(self) -> None:
        for button in (self.start_button, self.try_button, self.check_button):
            button.set_enabled(self.draft.is_complete and not self._busy)

    def _press(self, work: Callable[[Draft], Awaitable[None]]) -> Awaitable[None] | None:
        """Do something with the draft as it is at this moment."""
        if self._busy or not self.draft.is_complete or not self._is_current(self.draft):
            return None
        self._busy = True
        self._enable()
        return self._do(work, copy.deepcopy(self.draft))

    async def _do(self, work: Callable[[Draft], Awaitable[None]], draft: Draft) -> None:
        """Do it; what a user can mend is said, at its field too."""
        try:
            await work(draft)
        except (ValueError, OSError) as error:
            self._complain(" ".join(str(error).split()))
        finally:
            self._busy = False
            self._enable()

    def _complain(self, message: str) -> None:
        if not self._is_current(self.draft):
            return
        self.say("bad", message)
        key = blamed(message, [*self.draft.edits, *self.draft.problems])
        if key is None:
            return
        for field in self.fields:
            if field.key == key and field.box.visible:
                field.mark(message)
                self.groups[field.control.group].set_value(True)
                return
        if self.editor and self.editor.key == key:
            self.editor.mark(message)

    async def _checked(self, draft: Draft) -> Checked:
        """Check the draft as it was at the press.

        Raises:
            ValueError: something in it cannot be used, or it has been edited since.
        """
        draft.changes()  # what the form knows already is said at once
        self.say("busy", "Reading the config ...")
        checked = await aside(self._read, draft)
        if self.draft != draft or not self._is_current(self.draft):
            raise ValueError("The form has changed since the button was pressed; nothing was done. Press again.")
        self._follows = checked.follows
        self._show_differences()
        self.config.set_text(checked.text)
        self.config_panel.set_visibility(True)
        return checked

    def _read(self, draft: Draft) -> Checked:
        shared = self.visit.shared
        changes = draft.changes()
        chosen = list(strings([entry for _, entry in OPTIONAL.values()]))
        if draft.weights:
            chosen.append(str(choose(shared.places.weights(), draft.weights, "weights")))
            changes["init_from"] = chosen[-1]
        text = shared.configs.check(draft.configs, changes, self.rules, chosen)
        return Checked(changes, text, draft.check_result(load_yaml(text)))

    async def _check(self, draft: Draft) -> None:
        await self._checked(draft)
        self.say("good", "Every key and value is understood.")

    async def _try_step(self, draft: Draft) -> None:
        checked = await self._checked(draft)
        self.say("busy", "Building it; training, saving, loading and predicting once ...")
        code, text = await aside(self._doctor, checked.text)
        if not self._is_current(self.draft):
            return
        same = "" if self.draft == draft else " (of the form as it was when you pressed)"
        rows = [line.partition("recipe:")[2].strip() for line in text.splitlines() if "recipe:" in line]
        self.say("good" if code == 0 else "bad", f"It works{same}." if code == 0 else last_error(text) + same)
        with self.rows:
            for row in rows:
                with ui.element("li"):
                    ui.label(" ".join(row.split()))

    def _doctor(self, text: str) -> tuple[int, str]:
        with tempfile.TemporaryDirectory(dir=self.visit.shared.places.temp) as folder:
            config = Path(folder) / "recipe.yaml"
            config.write_text(text, encoding="utf-8")
            return self.visit.shared.trainings.call("doctor", "--config", str(config))

    async def _start(self, draft: Draft) -> None:
        checked = await self._checked(draft)
        run, place = await aside(self._begin, draft, checked.changes)
        self.say("good", f"{run} is queued, {_ordinal(place)} in line." if place else f"Started: {run}")
        self.visit.choose(run, "watch")

    def _begin(self, draft: Draft, changes: dict[str, Any]) -> tuple[str, int | None]:
        """Start a run; returns its name and its place in the queue."""
        shared = self.visit.shared
        run = shared.places.new_run(draft.system, draft.recipe)
        try:
            shared.trainings.start(draft.configs, changes, run, owner=self.visit.session)
        except (ValueError, OSError):
            with contextlib.suppress(ValueError, OSError):  # an empty folder would be listed as a run
                shared.places.run(run).rmdir()
            raise
        shared.board.scan()
        return run, shared.trainings.position(run)


def _ordinal(place: int) -> str:
    return {1: "1st", 2: "2nd", 3: "3rd"}.get(place, f"{place}th")


def _attribute(text: str) -> str:
    return "".join(letter for letter in text if letter.isalnum() or letter in "._-/ ")
