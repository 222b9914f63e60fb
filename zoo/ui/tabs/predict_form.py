"""The form of a trained system, made from the fields that it declares."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nicegui import events, ui

from zoo.runs.inference.forms import FILE_FIELDS, InputField, read_form
from zoo.ui.folders import Folders

MAX_TITLE = 80  # characters
MANY_CHOICES = 12  # which are found by typing


class FileDrop(ui.element, component="../static/drop.js"):
    """Takes files that are dropped, chosen or recorded; the browser uploads them, and this holds their keys."""

    def __init__(self, field: InputField, several: bool, uploads: set[str]) -> None:
        super().__init__()
        self._uploads = uploads
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
        self._uploads.update(self.value)
        self.error = None


class PredictForm:
    """Controls for fields, made in the current slot; the keys of files are added to `uploads`."""

    def __init__(self, fields: Sequence[InputField], folders: Folders, uploads: set[str]) -> None:
        self.fields = fields
        self.folders = folders
        self._uploads = uploads
        self._several = sum(field.kind in FILE_FIELDS for field in fields) == 1
        self._controls = {field.name: self._add_control(field) for field in fields if not field.advanced}
        if folded := [field for field in fields if field.advanced]:
            with ui.expansion("More options").classes("zoo-more") as self._more:
                self._controls |= {field.name: self._add_control(field) for field in folded}

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
                if field.advanced:
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
            if isinstance(value, Path):
                parts.append(value.name)
            elif field.kind == "text" and value:
                parts.append(value)
            elif not field.advanced and value is not None:
                parts.append(f"{field.label}: {', '.join(value) if isinstance(value, tuple) else value}")
        title = " · ".join(parts)
        return title if len(title) <= MAX_TITLE else f"{title[: MAX_TITLE - 1]}…"

    def _read_values(self, field: InputField, value: Any) -> list[Any]:
        values = [value]
        if field.kind in FILE_FIELDS:
            values = [str(self.folders.upload(key)) for key in value] or [None]
        return [read_form([field], {field.name: each})[field.name] for each in values]

    def _add_control(self, field: InputField) -> Any:
        hint = " ".join(part for part in (field.help, _describe_range(field)) if part)
        control: Any
        if field.kind in FILE_FIELDS:
            control = FileDrop(field, self._several, self._uploads)
            ui.label(hint).classes("zoo-small")
        elif field.kind == "bool":
            control = ui.checkbox(field.label, value=bool(field.default))
            ui.label(hint).classes("zoo-small")
        elif field.kind in ("choice", "choices"):
            several = field.kind == "choices"
            control = ui.select(
                list(field.allowed),
                label=field.label,
                value=list(field.default or ()) if several else field.default,
                multiple=several,
                with_input=len(field.allowed) > MANY_CHOICES,
                clearable=several or field.optional,
            ).props("use-chips" if several else "")
        elif field.kind == "text":
            control = ui.input(field.label, value=field.default or "").props("" if field.optional else "autogrow")
            if field.bounds[1] is not None:
                control.props["maxlength"] = int(field.bounds[1])
        else:
            control = ui.number(field.label, value=field.default)
            control.props["step"] = 1 if field.kind == "int" else "any"
        control.classes("zoo-control").props("outlined dense").props["hint"] = hint
        return control


def _describe_range(field: InputField) -> str:
    if field.kind not in ("int", "float"):
        return ""
    limits = zip(("at least", "at most"), field.bounds, strict=True)
    texts = [f"{word} {bound:.10g}" for word, bound in limits if bound is not None]
    return f"({', '.join(texts)})" if texts else ""
