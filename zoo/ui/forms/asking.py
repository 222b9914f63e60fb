"""The form of a trained system, made from the fields that it declares."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from nicegui import events, ui

from zoo.runs.inference.forms import FILE_FIELDS, InputField, read_form
from zoo.ui.store import Store

_TITLE = 80  # characters
# Enter sends, with Shift it begins a new line
_ENTER = "(e) => { if (e.key === 'Enter' && !e.shiftKey && !e.isComposing) { e.preventDefault(); emit(); } }"


class Drop(ui.element, component="../static/drop.js"):
    """Takes files by drop, choice or record; the browser uploads them, and this holds their keys.

    Args:
        several: whether more than one may be given.
        on_remove: told a key that is given no more.
    """

    def __init__(self, field: InputField, several: bool, on_remove: Callable[[str], Any]) -> None:
        super().__init__()
        self.value: list[str] = []
        self._on_remove = on_remove
        self.props["label"] = field.label
        self.props["accept"] = ",".join(field.allowed)
        self.props.set_bool("multiple", several)
        self.props.set_bool("sound", field.kind == "audio")
        self.on("files", self._take)

    @property
    def error(self) -> str | None:
        """What is wrong with it."""
        return self.props.get("error")

    @error.setter
    def error(self, text: str | None) -> None:
        self.props["error"] = text or ""

    def _take(self, event: events.GenericEventArguments) -> None:
        given = event.args if isinstance(event.args, list) else []
        keys = [key for key in given if isinstance(key, str)]
        for key in set(self.value) - set(keys):
            self._on_remove(key)
        self.value = keys
        self.error = None


class Form:
    """Controls for fields, made in the current slot.

    Args:
        session: whose uploads it takes.
        on_remove: told the key of an upload that is given no more.
        on_send: called when Enter is pressed in a conversation.
    """

    def __init__(
        self,
        fields: Sequence[InputField],
        store: Store,
        session: str,
        on_remove: Callable[[str], Any],
        on_send: Callable[[], Any],
    ) -> None:
        self.fields = fields
        self._store = store
        self._session = session
        self._on_remove = on_remove
        self._on_send = on_send
        self.conversation = self.talks(fields)
        self._several = sum(field.kind in FILE_FIELDS for field in fields) == 1
        self.controls: dict[str, Any] = {}
        folded = [field for field in fields if field.advanced or (self.conversation and not self._asks(field))]
        for field in fields:
            if field not in folded:
                self._add(field)
        self._folded: Any = None
        if folded:
            with ui.expansion("More options").classes("zoo-more") as self._folded:
                for field in folded:
                    self._add(field)

    @staticmethod
    def talks(fields: Sequence[InputField]) -> bool:
        """Whether all that must be given is a text: then question follows question."""
        needed = [field.kind for field in fields if field.required]
        return needed == ["text"]

    @property
    def suffixes(self) -> tuple[str, ...]:
        """Of the files that it takes."""
        return tuple(suffix for field in self.fields for suffix in field.allowed)

    def read(self) -> list[dict[str, Any]]:
        """What is given: one set of values, or one for each of several files. Errors are shown at their fields.

        Raises:
            ValueError: the first of the errors, with its field's label.
        """
        given: dict[str, Any] = {}
        files: tuple[str, list[Any]] = ("", [None])
        errors = []
        for field in self.fields:
            control = self.controls[field.name]
            try:
                values = self._values(field, control.value)
                given[field.name] = values[0]
                if len(values) > 1:
                    files = field.name, values
                control.error = None
            except ValueError as error:
                errors.append(error)
                control.error = str(error).removeprefix(f"{field.label}: ")
                if self._folded is not None and control in self._folded.descendants():
                    self._folded.open()
        if errors:
            raise errors[0]
        name, values = files
        return [given | {name: value} if name else given for value in values]

    def title(self, values: Sequence[dict[str, Any]]) -> str:
        """What is asked, in a few words."""
        said = []
        for field in self.fields:
            value = values[0][field.name]
            if field.kind in FILE_FIELDS and value is not None:
                said.append(value.name if len(values) == 1 else f"{len(values)} files")
            elif field.kind == "text" and value:
                said.append(value)
            elif not field.advanced and not self.conversation and value is not None:
                shown = ", ".join(value) if isinstance(value, tuple) else value
                said.append(f"{field.label}: {shown}")
        title = " · ".join(said)
        return title if len(title) <= _TITLE else title[: _TITLE - 1] + "…"

    def question(self, values: dict[str, Any]) -> str:
        """What a person said, in a conversation."""
        return next((str(values[field.name]) for field in self.fields if self._asks(field)), "")

    def clear_question(self) -> None:
        """Make room for the next thing to say."""
        for field in self.fields:
            if self._asks(field):
                self.controls[field.name].set_value("")

    def _asks(self, field: InputField) -> bool:
        return self.conversation and field.kind == "text" and not field.optional and not field.default

    def _values(self, field: InputField, value: Any) -> list[Any]:
        given = [value]
        if field.kind in FILE_FIELDS:
            paths: list[Path | None] = [self._store.owned(self._session, key) for key in value]
            given = paths if self._several else paths[:1]
        return [read_form([field], {field.name: each})[field.name] for each in given or [None]]

    def _add(self, field: InputField) -> None:
        self.controls[field.name] = _MAKERS[field.kind](self, field)

    def _file(self, field: InputField) -> Any:
        made = Drop(field, self._several, self._on_remove)
        if field.help:
            ui.label(field.help).classes("zoo-small")
        return made

    def _number(self, field: InputField) -> Any:
        made = ui.number(field.label, value=field.default, step=1 if field.kind == "int" else None)
        if field.kind == "float":
            made.props["step"] = "any"
        return _hinted(made, f"{field.help} {_range(field)}")

    def _bool(self, field: InputField) -> Any:
        made = ui.checkbox(field.label, value=bool(field.default))
        if field.help:
            ui.label(field.help).classes("zoo-small")
        return made

    def _choice(self, field: InputField) -> Any:
        several = field.kind == "choices"
        value: Any = list(field.default or ()) if several else field.default
        made = ui.select(
            list(field.allowed),
            label=field.label,
            value=value,
            multiple=several,
            with_input=len(field.allowed) > 12,
            clearable=several or field.optional,
        )
        return _hinted(made.props("use-chips") if several else made, field.help)

    def _text(self, field: InputField) -> Any:
        made: Any
        if field.optional:
            made = ui.input(field.label, value=field.default or "")
        else:
            made = ui.textarea(field.label, value=field.default or "").props("autogrow")
            if self._asks(field):
                made.on("keydown", lambda: self._on_send(), js_handler=_ENTER)
        if field.bounds[1] is not None:
            made.props["maxlength"] = int(field.bounds[1])
        return _hinted(made, field.help)


def _hinted(control: Any, hint: str) -> Any:
    control.classes("zoo-control").props("outlined dense")
    if hint.strip():
        control.props["hint"] = hint.strip()
    return control


def _range(field: InputField) -> str:
    low, high = (None if bound is None else f"{bound:.10g}" for bound in field.bounds)
    if low is not None and high is not None:
        return f"({low} to {high})"
    return f"(at least {low})" if low is not None else f"(at most {high})" if high is not None else ""


_MAKERS: dict[str, Callable[[Form, InputField], Any]] = {
    **dict.fromkeys(FILE_FIELDS, Form._file),
    **dict.fromkeys(("int", "float"), Form._number),
    "bool": Form._bool,
    **dict.fromkeys(("choice", "choices"), Form._choice),
    "text": Form._text,
}
