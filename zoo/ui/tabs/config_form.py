"""The form of a config: widgets for the keys that are edited most, a list of all keys, and an editor of any key."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from nicegui import ui

from zoo.ui.tabs.config_edits import (
    SWITCHES,
    ConfigEdits,
    as_text,
    describe_key,
    equal_values,
    expand_key,
    overlap,
    read_value,
)

ROOT_KEY, HUB_KEY, WEIGHTS_KEY = "data.init_args.root", "data.init_args.hub", "init_from"
GROUPS = ("Training", "Performance", "What trains", "Protection", "Intervals")
HIDDEN_KEYS = (*SWITCHES, "config", "ckpt_path", "trainer.default_root_dir")  # the page sets them


class Control(NamedTuple):
    """A widget of the form.

    Args:
        keys: dotted keys or patterns, in one text; the first that the config has is edited.
        info: in a few words; without it the first sentence of the argument's description.
        choices: to offer besides those of the argument's type.
    """

    group: str
    label: str
    keys: str
    info: str = ""
    choices: tuple[str, ...] = ()

    def find_key(self, values: Iterable[str]) -> str | None:
        """Return the key that it edits in a config with these keys; None when it has none of the control's."""
        patterns = self.keys.replace("M.", "model.init_args.").replace("D.", "data.init_args.").split()
        return next((key for pattern in patterns for key in values if fnmatchcase(key, pattern)), None)


_GUARD, _MONITOR = "trainer.callbacks.*Guard.init_args", "trainer.callbacks.LossMonitor.init_args"
_PRECISIONS = ("32-true", "bf16-mixed", "16-mixed", "bf16-true", "64-true")
_MODES = ("default", "reduce-overhead", "max-autotune")
CONTROLS = (
    Control("Training", "Data", ROOT_KEY),
    Control("Training", "Pretrained weights", WEIGHTS_KEY, "a checkpoint of a run"),
    Control("Training", "Steps", "trainer.max_steps", "optimizer steps; -1 for no limit"),
    Control("Training", "Batch size", "D.batch_size", "per process"),
    Control("Training", "Gradient accumulation", "M.step.accumulate trainer.accumulate_grad_batches"),
    Control("Training", "Learning rate", "M.optimizer.init_args.lr M.optimizer_g.init_args.lr"),
    Control("Training", "Learning rate, discriminator", "M.optimizer_d.init_args.lr"),
    Control("Training", "Warm-up steps", "M.scheduler*.init_args.warmup_steps"),
    Control("Training", "Gradient clipping", "M.step.clip_g trainer.gradient_clip_val"),
    Control("Training", "Seed", "seed_everything", "of weights and training; that of the data's order is data.seed"),
    Control("Performance", "Loader processes", "D.num_workers"),
    Control("Performance", "Precision", "trainer.precision", choices=_PRECISIONS),
    Control("Performance", "Compile", "M.compile *.compile"),
    Control("Performance", "Compile mode", "*.compile_options.mode", choices=_MODES),
    Control("Performance", "Compile the full graph", "*fullgraph"),
    Control("Performance", "Gradient checkpointing", "*.checkpointing *.gradient_checkpointing"),
    Control("Performance", "Cache of the data", "D.cache_mode", choices=("ram", "memmap")),
    Control("Performance", "Devices", "trainer.devices", "a number, or auto"),
    Control("Performance", "Parallel", "M.parallel", choices=("none", "dp")),
    Control(
        "What trains", "Training mode", "M.trains", "full, global_encoder, unet_only, or layers: [time_embed, out]"
    ),
    Control("What trains", "Frozen modules", "M.frozen", "a list: [compressor]"),
    Control("Protection", "Loss guard", "loss_guard", "skips batches whose loss explodes"),
    Control("Protection", "Guard's action", f"{_GUARD}.action", choices=("skip", "reduce")),
    Control("Protection", "Explosion threshold", f"{_MONITOR}.threshold {_GUARD}.factor"),
    Control("Protection", "Reduction of the learning rate", f"{_GUARD}.reduce_factor {_MONITOR}.factor"),
    Control("Protection", "Guard's patience", f"{_GUARD}.patience", "bad batches until it stops"),
    Control("Protection", "Early stopping", "early_stopping", "ends when validations get no better"),
    Control("Protection", "Patience", "trainer.callbacks.*EarlyStopping.init_args.patience", "validations"),
    Control("Intervals", "Validation interval", "trainer.val_check_interval", "batches"),
    Control("Intervals", "Log interval", "trainer.log_every_n_steps", "optimizer steps"),
    Control("Intervals", "Checkpoint interval", "checkpoints.every_n_steps", "optimizer steps"),
    Control("Intervals", "Checkpoint interval, minutes", "checkpoints.every_minutes"),
    Control("Intervals", "Checkpoints kept", "checkpoints.keep_last"),
    Control("Intervals", "Audio and pictures", "M.media_items", "per validation"),
)


class KeyWidget:
    """A widget for one key, made in the current slot by the type of its argument."""

    def __init__(self, form: ConfigForm, key: str, control: Control) -> None:
        self.form, self.key, self.info = form, key, control.info
        self.is_path = bool(control.group) and key in (ROOT_KEY, WEIGHTS_KEY)
        self._refreshing = False
        value, described = form.edits.values[key], form.describe(key)
        self._value = value  # that the element shows
        choices = [*control.choices, *(described.get("choices") or ()), *form.choices.get(key, ())]
        self._values: dict[str, Any] = {}  # of a list, by their texts
        with ui.element().classes("train-field") as self.box:
            # made with its value: one set afterwards would replace what is typed by then
            if isinstance(value, bool):
                self.element: Any = ui.switch(control.label, value=value, on_change=self._change)
                self.hint = ui.label().classes("zoo-small")
            elif choices and control.group:
                self.element = ui.select(
                    self._add_options([form.edits.recipe_values.get(key), *choices, value]), label=control.label,
                    value=as_text(value), on_change=self._change, with_input=key in form.choices,
                    new_value_mode="add-unique" if key in form.choices else None,
                )  # fmt: skip
            else:
                self.element = ui.input(control.label, value=as_text(value), on_change=self._change)
            if not isinstance(value, bool):
                self.element.props("outlined dense").without_auto_validation()
        self.refresh()

    def _add_options(self, values: Iterable[Any]) -> dict[str, str]:
        self._values |= {as_text(each): each for each in values}
        return {text: "not set" if text == "null" else text for text in self._values}

    def refresh(self) -> None:
        """Show the value, its help and its problem; a text that means the value stays as it was typed."""
        edits, problem = self.form.edits, self.form.edits.problems.get(self.key)
        is_edited = self.key in edits.edits
        self.box.classes(add="edited" if is_edited else "", remove="" if is_edited else "edited")
        info = self.info or (self.form.describe(self.key).get("help") or "").partition(". ")[0].replace("``", "")
        hint = f"recipe: {as_text(edits.recipe_values.get(self.key))} · {info}" if is_edited else info
        if isinstance(self.element, ui.switch):
            self.hint.set_text(problem or hint)
        else:
            self.element.props["hint"] = hint
            self.element.error = problem
        value = edits.values[self.key]
        if problem is None and not equal_values(value, self._value):
            self._value, self._refreshing = value, True
            if isinstance(self.element, ui.select):
                self.element.set_options(self._add_options([value]))
            self.element.set_value(value if isinstance(value, bool) else as_text(value))
            self._refreshing = False

    def _change(self, event: Any) -> None:
        if self._refreshing:
            return
        try:
            self._value = self._read(event.value)
            self.form.edits.edit(self.key, self._value)
        except ValueError as error:
            self.form.edits.problems[self.key] = str(error)
        self.form.changed()

    def _read(self, value: Any) -> Any:
        if isinstance(self.element, ui.switch):
            return bool(value)
        if value in self._values:
            return self._values[value]
        parsed = read_value(str(value or ""))
        # YAML ends a path at " #", and splits it at ": "
        return parsed if not self.is_path or parsed is None or isinstance(parsed, list) else str(value)


class ConfigForm:
    """The form of edits, made in the current slot.

    Args:
        arguments: descriptions of the config's keys, as the parser returns them.
        changed: called after each edit.
        choices: to offer for keys, besides those of their types.
    """

    def __init__(
        self,
        edits: ConfigEdits,
        arguments: Mapping[str, Mapping[str, Any]],
        changed: Callable[[], None],
        choices: Mapping[str, Sequence[str]],
    ) -> None:
        self.edits, self.arguments, self.changed, self.choices = edits, arguments, changed, choices
        self._keys: dict[Control, str] = {}
        self._widgets: list[KeyWidget] = []
        self._editor: list[KeyWidget] = []
        self._searching = False
        self._groups = {group: ui.expansion(group, value=group == GROUPS[0]) for group in GROUPS}
        with ui.expansion("Every key", on_value_change=self._refresh_keys) as self.all_keys:
            self.key = ui.select(
                [], label="Search keys", with_input=True, new_value_mode="add-unique",
                on_change=self._open_key,
            )  # fmt: skip
            self.key.props('outlined dense hint="or key=value and Enter, such as model.loss_weights.g/mel=30"')
            self.key.classes("zoo-wide").without_auto_validation()
            self.key.on("focus", lambda: self._search(True)).on("blur", lambda: self._search(False))
            self.pane = ui.element().classes("train-pane")
        for expansion in (*self._groups.values(), self.all_keys):
            expansion.classes("train-group")
        self.refresh()

    def describe(self, key: str) -> dict[str, Any]:
        """Return the description of a key's argument."""
        return describe_key(self.arguments, self.edits.values, key)

    def refresh(self) -> None:
        """Show what the edits hold now."""
        keys = {control: control.find_key(self.edits.values) for control in CONTROLS}
        present = {control: key for control, key in keys.items() if key is not None}
        if present != self._keys:
            self._keys, self._widgets = present, []
            for group, expansion in self._groups.items():
                controls = {control: key for control, key in present.items() if control.group == group}
                expansion.set_visibility(bool(controls))
                expansion.clear()
                with expansion, ui.element().classes("train-fields"):
                    self._widgets += [KeyWidget(self, key, control) for control, key in controls.items()]
        for widget in (*self._widgets, *self._editor):
            if widget.key in self.edits.values:
                widget.refresh()
        self._refresh_keys()

    def open_group(self, key: str) -> None:
        """Open the group with the widget of a key."""
        for control, each in self._keys.items():
            if each == key:
                self._groups[control.group].open()

    def _search(self, searching: bool) -> None:
        self._searching = searching
        self._refresh_keys()

    def _refresh_keys(self) -> None:
        """Offer every key, unless the list is closed, or holds what is typed or refused: new options clear it."""
        if self.all_keys.value and not self._searching and not self.key.error:
            keys = [key for key in self.edits.values if not any(overlap(key, each) for each in HIDDEN_KEYS)]
            if keys != self.key.options:
                self.key.set_options(keys)

    def _open_key(self) -> None:
        key, equals, text = str(self.key.value or "").partition("=")
        self.key.error = None
        self.key.run_method("hidePopup")
        if equals:
            self._add_key(key.strip().removeprefix("--"), text)
        if key not in self.edits.values:
            return
        described = self.describe(key)
        self.pane.clear()
        with self.pane:
            ui.label(described.get("help") or "Its class does not describe it.").classes("zoo-small")
            ui.label(f"Type: {described.get('type') or 'unknown'}").classes("zoo-small")
            self._editor = [KeyWidget(self, key, Control("", f"{key} (YAML)", key))]
            ui.button("As in the recipe", on_click=lambda: self._reset(key)).props("flat dense no-caps")

    def _reset(self, key: str) -> None:
        self.edits.reset(key)
        self.changed()

    def _add_key(self, key: str, text: str) -> None:
        try:
            if not re.fullmatch(r"[\w/-]+(\.[\w/-]+)*", key):
                raise ValueError("expected key=value, such as data.init_args.batch_size=8")
            self.edits.edit(expand_key(key, self.edits.values), read_value(text))
        except ValueError as error:
            self.key.error = str(error)
            return
        self.key.set_value(None)
        self.changed()
