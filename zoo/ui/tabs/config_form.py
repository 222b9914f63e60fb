"""The form of a config: widgets for the keys that are edited most, a tree of all keys, and an editor of any key."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from nicegui import ui

from zoo.ui.tabs.config_edits import (
    ABSENT,
    SWITCHES,
    ConfigEdits,
    as_text,
    describe_key,
    equal_values,
    overlap,
    read_value,
)

MAX_HINT, MAX_VALUE = 110, 60  # characters
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
        patterns = [re.sub(r"^(M|D)\.", lambda m: f"{_SECTIONS[m[1]]}.init_args.", each) for each in self.keys.split()]
        return next((key for pattern in patterns for key in values if fnmatchcase(key, pattern)), None)


_SECTIONS = {"M": "model", "D": "data"}
_GUARD, _MONITOR = "trainer.callbacks.*Guard.init_args", "trainer.callbacks.LossMonitor.init_args"
_PRECISIONS = ("32-true", "bf16-mixed", "16-mixed", "bf16-true", "64-true")
_MODES = ("default", "reduce-overhead", "max-autotune")
CONTROLS = (
    Control("Training", "Steps", "trainer.max_steps", "batches; -1 for no limit"),
    Control("Training", "Batch size", "D.batch_size", "per process"),
    Control("Training", "Gradient accumulation", "M.step.accumulate trainer.accumulate_grad_batches"),
    Control("Training", "Learning rate", "M.optimizer.init_args.lr M.optimizer_g.init_args.lr"),
    Control("Training", "Learning rate, discriminator", "M.optimizer_d.init_args.lr"),
    Control("Training", "Warm-up steps", "M.scheduler*.init_args.warmup_steps"),
    Control("Training", "Gradient clipping", "M.step.clip_g trainer.gradient_clip_val"),
    Control("Training", "Seed", "seed_everything", "all random numbers come from it"),
    Control("Performance", "Loader processes", "D.num_workers"),
    Control("Performance", "Precision", "trainer.precision", choices=_PRECISIONS),
    Control("Performance", "Compile", "M.compile *.compile"),
    Control("Performance", "Compile mode", "*.compile_options.mode", choices=_MODES),
    Control("Performance", "Compile the full graph", "*fullgraph *.full_graph"),
    Control("Performance", "Gradient checkpointing", "*.checkpointing *.gradient_checkpointing"),
    Control("Performance", "Cache of the data", "D.cache_mode", choices=("ram", "memmap")),
    Control("Performance", "Devices", "trainer.devices", "a number, or auto"),
    Control("Performance", "Parallel", "M.parallel", choices=("none", "dp")),
    Control(
        "What trains", "Training mode", "M.trains", "full, global_encoder, unet_only, or layers: [time_embed, out]"
    ),
    Control("What trains", "Frozen modules", "M.freeze", "a list: [encoder, mid]"),
    Control("Protection", "Loss guard", "guard.on", "skips batches whose loss explodes"),
    Control("Protection", "Guard's action", f"{_GUARD}.kind {_GUARD}.mode {_GUARD}.action", choices=("skip", "reduce")),
    Control("Protection", "Explosion threshold", f"{_GUARD}.threshold {_MONITOR}.threshold {_GUARD}.factor"),
    Control("Protection", "Reduction of the learning rate", f"{_GUARD}.reduce_factor {_MONITOR}.factor"),
    Control("Protection", "Guard's patience", f"{_GUARD}.patience", "bad batches until it stops"),
    Control("Protection", "Early stopping", "early.on", "ends when validations get no better"),
    Control("Protection", "Patience", "trainer.callbacks.*EarlyStopping.init_args.patience", "validations"),
    Control("Intervals", "Validation interval", "trainer.val_check_interval", "batches"),
    Control("Intervals", "Log interval", "trainer.log_every_n_steps", "batches"),
    Control("Intervals", "Checkpoint interval", "checkpoints.every_n_steps", "batches"),
    Control("Intervals", "Checkpoint interval, minutes", "checkpoints.every_minutes"),
    Control("Intervals", "Checkpoints kept", "checkpoints.keep_last"),
    Control("Intervals", "Audio and pictures", "M.media_items", "per validation"),
)
LABELS = {control.keys: control.label for control in CONTROLS}  # of switches, which are no keys of the config


class KeyWidget:
    """A widget for one key, made in the current slot by the type of its argument."""

    def __init__(self, form: ConfigForm, key: str, control: Control) -> None:
        self.form, self.key, self.info = form, key, control.info
        self._value: Any = ABSENT  # that the element shows
        self._refreshing = False
        value, described = form.edits.values[key], form.describe(key)
        choices = [*control.choices, *(described.get("choices") or ())]
        self._values = {as_text(each): each for each in [*choices, form.edits.recipe_values.get(key), value]}
        with ui.element().classes("train-field") as self.box:
            if isinstance(value, bool):
                self.element: Any = ui.switch(control.label, on_change=self._change)
                self.hint = ui.label().classes("zoo-small")
            elif choices:
                options = {text: "not set" if text == "null" else text for text in self._values}
                self.element = ui.select(options, label=control.label, on_change=self._change)
            else:
                self.element = ui.input(control.label, on_change=self._change)
            if not isinstance(value, bool):
                self.element.props("outlined dense").without_auto_validation()
        self.refresh()

    def refresh(self) -> None:
        """Show the value, its help and its problem; a text that means the value stays as it was typed."""
        edits, problem = self.form.edits, self.form.edits.problems.get(self.key)
        is_edited = self.key in edits.edits
        self.box.classes(add="edited" if is_edited else "", remove="" if is_edited else "edited")
        sentence = (self.form.describe(self.key).get("help") or "").partition(". ")[0].replace("``", "")
        info = self.info or (sentence if len(sentence) <= MAX_HINT else f"{sentence[:MAX_HINT]} ...")
        hint = f"recipe: {as_text(edits.recipe_values.get(self.key))} · {info}" if is_edited else info
        if isinstance(self.element, ui.switch):
            self.hint.set_text(problem or hint)
        else:
            self.element.props["hint"] = hint
            self.element.error = problem
        value = edits.values[self.key]
        if problem is None and not equal_values(value, self._value):
            self._value, self._refreshing = value, True
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
        return self._values[value] if isinstance(self.element, ui.select) else read_value(str(value or ""))


class ConfigForm:
    """The form of edits, made in the current slot; `changed` is called after each edit."""

    def __init__(
        self, edits: ConfigEdits, arguments: Mapping[str, Mapping[str, Any]], changed: Callable[[], None]
    ) -> None:
        self.edits, self.arguments, self.changed = edits, arguments, changed
        self._keys: dict[Control, str] = {}
        self._widgets: list[KeyWidget] = []
        self._editor: list[KeyWidget] = []
        self._groups = {group: ui.expansion(group, value=group == GROUPS[0]) for group in GROUPS}
        with ui.expansion("Every key", on_value_change=self._refresh_tree) as self.all_keys:
            self._add_tree()
        for expansion in (*self._groups.values(), self.all_keys):
            expansion.classes("train-group")
        self.refresh()

    def _add_tree(self) -> None:
        self.search = ui.input("Search keys, values and their help", on_change=self._refresh_tree)
        self.search.classes("zoo-wide").props("outlined dense clearable debounce=200")
        self.count = ui.label().classes("zoo-small").props('role="status"')
        with ui.element().classes("train-tree"):
            self.tree = ui.tree([], on_select=self._open_key, on_expand=lambda: None).props("dense no-selection-unset")
            self.tree.add_slot(
                "default-header",
                """<span :class="{'train-edited': props.node.edited}">{{ props.node.label }}<template
                v-if="props.node.value !== undefined">: <code>{{ props.node.value }}</code><template
                v-if="props.node.edited"> (edited)</template></template></span>""",
            )
            with ui.element().classes("train-pane") as self.pane:
                ui.label("Choose a key to see what it means and to edit it.").classes("zoo-small")
        self.addition = ui.input("Another key").props("outlined dense").on("keydown.enter", self._add_key)
        self.addition.props('hint="key=value and Enter, such as model.init_args.loss_weights.g/mel=30"')
        self.addition.classes("zoo-wide").without_auto_validation()

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
        self._refresh_tree()

    def open_group(self, key: str) -> None:
        """Open the group with the widget of a key."""
        for control, each in self._keys.items():
            if each == key:
                self._groups[control.group].open()

    def _refresh_tree(self) -> None:
        """Show the keys that match the search; nothing while the tree is closed."""
        if not self.all_keys.value:
            return
        words = str(self.search.value or "").lower().split()
        keys = [key for key in self.edits.values if not any(overlap(key, each) for each in HIDDEN_KEYS)]
        matches = [key for key in keys if all(word in self._search_text(key) for word in words)] if words else keys
        nodes = build_tree(matches, self.edits)
        if nodes != self.tree.props["nodes"]:
            self.tree.props["nodes"] = nodes
            self.tree.update()
        if words:
            self.tree.expand()
        self.count.set_text(f"{len(matches)} of {len(keys)} keys")

    def _search_text(self, key: str) -> str:
        return f"{key} {as_text(self.edits.values[key])} {self.describe(key).get('help', '')}".lower()

    def _open_key(self, event: Any) -> None:
        key = str(event.value).removeprefix("=")
        if key == event.value or key not in self.edits.values:  # a node that only holds others
            return
        described = self.describe(key)
        self.pane.clear()
        with self.pane:
            ui.label(key).classes("train-key")
            ui.label(described.get("help") or "Its class does not describe it.").classes("zoo-small")
            ui.label(f"Type: {described.get('type') or 'unknown'}").classes("zoo-small train-type")
            self._editor = [KeyWidget(self, key, Control("", "Value (YAML)", key))]
            ui.button("As in the recipe", on_click=lambda: self._reset(key)).props("flat dense no-caps")

    def _reset(self, key: str) -> None:
        self.edits.reset(key)
        self.changed()

    def _add_key(self) -> None:
        key, equals, text = str(self.addition.value or "").strip().removeprefix("--").partition("=")
        try:
            if not equals or not re.fullmatch(r"[\w/-]+(\.[\w/-]+)*", key.strip()):
                raise ValueError("expected key=value, such as data.init_args.batch_size=8")
            self.edits.edit(key.strip(), read_value(text))
        except ValueError as error:
            self.addition.error = str(error)
            return
        self.addition.error = None
        self.addition.set_value("")
        self.changed()


def build_tree(keys: list[str], edits: ConfigEdits) -> list[dict[str, Any]]:
    """Return the nodes of `ui.tree` for keys; the arguments of a class lie below its place."""
    nodes: dict[str, dict[str, Any]] = {"": {"children": []}}
    for key in keys:
        *parents, last = [name for name in key.split(".") if name != "init_args"]
        path = ""
        for name in parents:
            siblings, path = nodes[path]["children"], f"{path}.{name}"
            if path not in nodes:
                nodes[path] = {"id": path, "label": name, "children": []}
                siblings.append(nodes[path])
        text = as_text(edits.values[key])
        text = text if len(text) <= MAX_VALUE else f"{text[:MAX_VALUE]} ..."
        nodes[path]["children"].append({"id": f"={key}", "label": last, "value": text, "edited": key in edits.edits})
    children: list[dict[str, Any]] = nodes[""]["children"]
    return children
