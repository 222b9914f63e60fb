"""The fields of a form: one for each control, for the choices of files, and for any key of the complete config."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any

from nicegui import ui

from zoo.ui.checks import Rules
from zoo.ui.forms.controls import CALLBACKS, CONTROLS, Control
from zoo.ui.forms.draft import Draft, key_of, range_of, read_field
from zoo.ui.forms.explain import Help, explain
from zoo.ui.forms.values import as_text, flatten, read_value, same

CUSTOM = "custom"  # a training mode that stands for a list of layers
HINT = 110  # characters


class _Editor(ABC):
    """What writes one key of one draft, and of no other.

    Args:
        key: None while it is not known.
        changed: called after an edit.
    """

    def __init__(self, key: str | None, draft: Draft, rules: Rules, changed: Callable[[], None]) -> None:
        self.key, self.draft, self.rules, self.changed = key, draft, rules, changed
        self._showing = False

    @abstractmethod
    def _read(self, value: Any) -> Any:
        """The value of what a client has sent, which may be anything."""

    def _take(self, event: Any) -> None:
        if self._showing or self.key is None:
            return
        try:
            self.draft.set(self.key, self._read(event.value), self.rules)
        except ValueError as error:
            self.draft.refuse(self.key, str(error))
        self.changed()

    def _quietly(self, show: Callable[[], Any]) -> None:
        self._showing = True
        try:
            show()
        finally:
            self._showing = False


class Field(_Editor):
    """A control of a recipe's form, made in the current slot."""

    def __init__(self, control: Control, draft: Draft, rules: Rules, changed: Callable[[], None]) -> None:
        super().__init__(None, draft, rules, changed)
        self.control = control
        self._texts: dict[str, Any] = {}  # of a choice
        with ui.element().classes("train-field") as self.box:
            if control.kind == "switch":
                self.element: Any = ui.switch(control.label, on_change=self._take)
                self.hint = ui.label().classes("zoo-small")
            elif control.kind in ("choice", "many"):
                several = control.kind == "many"
                self.element = ui.select([], label=control.label, multiple=several, on_change=self._take)
                self.element.props("outlined dense")
            else:
                self.element = ui.input(control.label, on_change=self._take).props("outlined dense")
                if control.kind != "text":
                    self.element.props("inputmode=decimal")
            if control.kind != "switch":
                self.element.without_auto_validation()  # it would clear what `mark` says
        self.refresh()

    def refresh(self) -> None:
        """Show what the draft says now."""
        draft = self.draft
        if self.key is None:
            self.key = key_of(self.control, draft.values) if draft.is_complete else _early_key(self.control, draft)
        waits = self.key is None and not draft.is_complete
        key = self.key or (key_of(self.control, draft.values) if waits else None)
        shown = key is not None and draft.has(key)
        if self.control.kind == "many":
            shown = shown and isinstance(draft.value(key or ""), list)
        self.box.set_visibility(shown)
        self.element.set_enabled(self.key is not None)
        if not shown or key is None:
            return
        self._say(self._hint(key, waits))
        self.box.classes(add="edited") if key in draft.edits else self.box.classes(remove="edited")
        problem = draft.problems.get(key)
        self.mark(problem)
        if problem is None:
            self._show(None if waits else draft.value(key))

    def mark(self, problem: str | None) -> None:
        """Say what is wrong at the field; None for nothing."""
        if self.control.kind == "switch":
            self.hint.classes(add="bad") if problem else self.hint.classes(remove="bad")
            self._say(problem or self._hint(self.key or "", False))
        elif problem != self.element.error:
            self.element.error = problem

    def _hint(self, key: str, waits: bool) -> str:
        if waits:
            return "is being read ..."
        parts = [self.control.info or _short(explain(self.draft.values, key).text), range_of(self.control)]
        if key in self.draft.edits:
            parts.insert(0, f"recipe: {as_text(self.draft.values.get(key))}")
        return " · ".join(part for part in parts if part)

    def _say(self, hint: str) -> None:
        if self.control.kind == "switch":
            self.hint.set_text(hint)
        elif self.element.props.get("hint") != hint:
            self.element.props["hint"] = hint

    def _show(self, value: Any) -> None:
        kind = self.control.kind
        wanted: Any
        if kind == "switch":
            wanted = bool(value)
        elif kind == "many":
            options = list(dict.fromkeys([*self.control.choices, *(str(item) for item in value)]))
            wanted = [str(item) for item in value]
            if self.element.options != options:
                self._quietly(lambda: self.element.set_options(options, value=wanted))
        elif kind == "choice":
            wanted = self._choice(value)
        else:
            wanted = "" if value is None else as_text(value)
            if self._means(self.element.value, value):
                return
        if self.element.value != wanted:
            self._quietly(lambda: self.element.set_value(wanted))

    def _choice(self, value: Any) -> str:
        values = [*self.control.choices, self.draft.values.get(self.key or ""), value]
        self._texts = {as_text(each): each for each in values if not isinstance(each, list)}
        options = {text: "not set" if text == "null" else text for text in self._texts}
        wanted = CUSTOM if isinstance(value, list) else as_text(value)
        if self.element.options != options:
            self._quietly(lambda: self.element.set_options(options, value=wanted))
        return wanted

    def _means(self, text: str | None, value: Any) -> bool:
        """Whether what stands in the field says this already; it is left as it was typed."""
        try:
            return bool(text) and same(read_field(self.control, text or "", True), value)
        except ValueError:
            return False

    def _read(self, value: Any) -> Any:
        assert self.key is not None
        if self.control.kind == "switch":
            if not isinstance(value, bool):
                raise ValueError("expected true or false")
            return value
        if self.control.kind == "many":
            return [str(item) for item in value]
        if self.control.kind == "choice":
            if value == CUSTOM and CUSTOM in self.control.choices:
                known = self.draft.value(self.key)
                return known if isinstance(known, list) else []
            return self._texts[value]
        base = self.draft.values.get(self.key)
        takes_null = base is None or bool(explain(self.draft.values, self.key).takes_null)
        return read_field(self.control, _checked_text(value), takes_null)


def make_fields(group: str, draft: Draft, rules: Rules, changed: Callable[[], None]) -> list[Field]:
    """The fields of a group, made in the current slot."""
    return [Field(control, draft, rules, changed) for control in CONTROLS if control.group == group]


def _early_key(control: Control, draft: Draft) -> str | None:
    """The key that a control edits, where the recipe's file says for certain which that is, and what it holds."""
    pattern = control.keys[0]
    if "*" in pattern and not pattern.startswith(CALLBACKS):
        return None
    for key, value in flatten(draft.config).items():
        if fnmatchcase(key, pattern) and "${" not in as_text(value):
            return key
    return None


class KeyEditor(_Editor):
    """Shows one key of the complete config and edits it, made in the current slot."""

    key: str

    def __init__(self, key: str, draft: Draft, rules: Rules, changed: Callable[[], None]) -> None:
        super().__init__(key, draft, rules, changed)
        about = explain(draft.values, key)
        ui.label(key).classes("train-key")
        ui.label(about.text or "Its source says nothing of it.").classes("zoo-small")
        if about.kind:
            ui.label(f"Type: {about.kind}").classes("zoo-small train-type")
        ui.label(f"The recipe's value: {as_text(draft.values[key])}").classes("zoo-small train-type")
        self._values = _choices_of(about, draft.values[key])
        text = as_text(draft.value(key))
        if self._values:
            options = {each: "not set" if each == "null" else each for each in dict.fromkeys([*self._values, text])}
            self.element: Any = ui.select(options, value=text, label="Value", on_change=self._take)
        else:
            self.element = ui.input("Value (YAML)", value=text, on_change=self._take)
        self.element.props("outlined dense")
        self.element.without_auto_validation()
        ui.button("As in the recipe", on_click=self._reset).props("flat dense no-caps")
        self.refresh()

    def refresh(self) -> None:
        """Show what the draft says now."""
        self.mark(self.draft.problems.get(self.key))
        value = self.draft.value(self.key)
        if self.key in self.draft.problems or self._means(value):
            return
        text = as_text(value)
        if self._values and text not in self.element.options:
            self._quietly(lambda: self.element.set_options({**self.element.options, text: text}))
        self._quietly(lambda: self.element.set_value(text))

    def mark(self, problem: str | None) -> None:
        """Say what is wrong at the field."""
        if problem != self.element.error:
            self.element.error = problem

    def _means(self, value: Any) -> bool:
        try:
            return same(self._read(self.element.value), value)
        except ValueError:
            return False

    def _read(self, value: Any) -> Any:
        text = _checked_text(value)
        if text in self._values:
            return self._values[text]
        if not text.strip():
            raise ValueError("a value is needed here; null stands for none")
        return read_value(text)

    def _reset(self) -> None:
        self.draft.reset(self.key)
        self.changed()


def _choices_of(about: Help, value: Any) -> dict[str, Any]:
    """The values to choose from, by their texts; {} where anything can be written."""
    choices: tuple[Any, ...] = about.choices
    if about.kind in ("bool", "bool | None") or (not choices and isinstance(value, bool)):
        choices = (True, False, *((None,) if about.takes_null else ()))
    return {as_text(each): each for each in choices}


def _checked_text(value: Any) -> str:
    if value is not None and not isinstance(value, str):
        raise ValueError("expected a text")
    return value or ""


def _short(text: str) -> str:
    text = text.partition(". ")[0].replace("``", "")
    return text if len(text) <= HINT else f"{text[:HINT].rpartition(' ')[0]} ..."
