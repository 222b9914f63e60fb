"""The form of a trained system, made from the fields that it declares."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from nicegui import events, ui

from zoo.runs.inference.forms import FILE_FIELDS, InputField, read_form
from zoo.ui.folders import Folders

MAX_TITLE = 80  # characters
# Enter sends, with Shift it begins a new line
_ENTER = "(e) => { if (e.key === 'Enter' && !e.shiftKey && !e.isComposing) { e.preventDefault(); emit(); } }"


class FileDrop(ui.element, component="../static/drop.js"):
    """Takes files that are dropped, chosen or recorded; the browser uploads them, and this holds their keys."""

    def __init__(self, field: InputField, several: bool) -> None:
        super().__init__()
        self.value: list[str] = []
        self.props["label"] = field.label
        self.props["accept"] = ",".join(field.allowed)
        self.props.set_bool("multiple", several)
        self.props.set_bool("sound", field.kind == "audio")
        self.on("files", self._set_keys)

    @property
    def error(self) -> str | None:
        """What is wrong with the files."""
        return self.props.get("error")

    @error.setter
    def error(self, text: str | None) -> None:
        self.props["error"] = text or ""

    def _set_keys(self, event: events.GenericEventArguments) -> None:
        keys = event.args if isinstance(event.args, list) else []
        self.value = [key for key in keys if isinstance(key, str)]
        self.error = None


class PredictForm:
    """Controls for fields, made in the current slot; `send` is called on Enter in a conversation."""

    def __init__(self, fields: Sequence[InputField], folders: Folders, send: Callable[[], Any]) -> None:
        self.fields = fields
        self.folders = folders
        self.is_conversation = is_conversation(fields)
        self._send = send
        self._several = sum(field.kind in FILE_FIELDS for field in fields) == 1
        self._controls: dict[str, Any] = {}
        self._more: ui.expansion | None = None
        folded = [field for field in fields if field.advanced or (self.is_conversation and not field.required)]
        for field in fields:
            if field not in folded:
                self._controls[field.name] = self._add_control(field)
        if folded:
            with ui.expansion("More options").classes("zoo-more") as self._more:
                for field in folded:
                    self._controls[field.name] = self._add_control(field)

    def read(self) -> list[dict[str, Any]]:
        """Return the values of all fields, for several files a dictionary each.

        Errors are shown at their fields; the first one is raised as ValueError.
        """
        values: dict[str, list[Any]] = {}
        errors = []
        for field in self.fields:
            control = self._controls[field.name]
            try:
                values[field.name] = self._read_values(field, control.value)
                control.error = None
            except ValueError as error:
                errors.append(error)
                control.error = str(error).removeprefix(f"{field.label}: ")
                if self._more is not None and control in self._more.descendants():
                    self._more.open()
        if errors:
            raise errors[0]
        count = max((len(each) for each in values.values()), default=1)
        return [{name: each[index % len(each)] for name, each in values.items()} for index in range(count)]

    def title(self, values: dict[str, Any]) -> str:
        """Describe the values in a few words."""
        parts = []
        for field in self.fields:
            value = values[field.name]
            if field.kind in FILE_FIELDS and value is not None:
                parts.append(Path(value).name)
            elif field.kind == "text" and value:
                parts.append(value)
            elif not field.advanced and not self.is_conversation and value is not None:
                parts.append(f"{field.label}: {', '.join(value) if isinstance(value, tuple) else value}")
        title = " · ".join(parts)
        return title if len(title) <= MAX_TITLE else f"{title[: MAX_TITLE - 1]}…"

    def take_question(self, values: dict[str, Any]) -> str:
        """Return the message of a conversation and clear its control; "" of another form."""
        if not self.is_conversation:
            return ""
        name = next(field.name for field in self.fields if field.required)
        self._controls[name].set_value("")
        return str(values[name])

    def _read_values(self, field: InputField, value: Any) -> list[Any]:
        values = [value]
        if field.kind in FILE_FIELDS:
            values = [str(self.folders.upload(key)) for key in value][: None if self._several else 1] or [None]
        checked = [read_form([field], {field.name: each})[field.name] for each in values]
        return [str(each) if isinstance(each, Path) else each for each in checked]

    def _add_control(self, field: InputField) -> Any:
        if field.kind in FILE_FIELDS:
            control: Any = FileDrop(field, self._several)
        elif field.kind == "bool":
            control = ui.checkbox(field.label, value=bool(field.default))
        elif field.kind in ("choice", "choices"):
            control = self._add_choice(field)
        elif field.kind == "text":
            control = self._add_text(field)
        else:
            control = ui.number(field.label, value=field.default, step=1 if field.kind == "int" else None)
            control.props["step"] = 1 if field.kind == "int" else "any"
        hint = " ".join(part for part in (field.help, _describe_range(field)) if part)
        if field.kind in (*FILE_FIELDS, "bool"):
            if hint:
                ui.label(hint).classes("zoo-small")
            return control
        control.classes("zoo-control").props("outlined dense")
        if hint:
            control.props["hint"] = hint
        return control

    def _add_choice(self, field: InputField) -> Any:
        several = field.kind == "choices"
        value: Any = list(field.default or ()) if several else field.default
        select = ui.select(
            list(field.allowed),
            label=field.label,
            value=value,
            multiple=several,
            with_input=len(field.allowed) > 12,
            clearable=several or field.optional,
        )
        return select.props("use-chips") if several else select

    def _add_text(self, field: InputField) -> Any:
        if field.optional:
            control: Any = ui.input(field.label, value=field.default or "")
        else:
            control = ui.textarea(field.label, value=field.default or "").props("autogrow")
            if self.is_conversation and field.required:
                control.on("keydown", lambda: self._send(), js_handler=_ENTER)
        if field.bounds[1] is not None:
            control.props["maxlength"] = int(field.bounds[1])
        return control


def is_conversation(fields: Sequence[InputField]) -> bool:
    """Tell whether all that must be entered is one text: then message follows message."""
    return [field.kind for field in fields if field.required] == ["text"]


def _describe_range(field: InputField) -> str:
    if field.kind not in ("int", "float"):
        return ""
    low, high = (None if bound is None else f"{bound:.10g}" for bound in field.bounds)
    if low is not None and high is not None:
        return f"({low} to {high})"
    return f"(at least {low})" if low is not None else f"(at most {high})" if high is not None else ""
