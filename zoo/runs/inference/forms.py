"""Forms of a trained system: the fields that a person fills in, their validation, and what the system returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

if TYPE_CHECKING:
    import pydantic

MAX_TEXT = 10_000  # characters of a text without a bound
FILE_FIELDS = ("audio", "file")
FIELD_KINDS = (*FILE_FIELDS, "int", "float", "bool", "choice", "choices", "text")
FILE_OUTPUTS = ("audio", "image", "animation", "file")
OUTPUT_KINDS = (*FILE_OUTPUTS, "text", "table", "chart")
EMPTY_VALUES: tuple[Any, ...] = (None, "", (), [])

Progress = Callable[[float, str], None]  # takes the finished share, 0 to 1, and a message


@dataclass(frozen=True)
class InputField:
    """One input of a form.

    Args:
        kind: one of `FIELD_KINDS`: an "audio" or other "file", "choice" (one), "choices" (several), ...
        default: used where nothing is entered; without one the field is required, unless it is optional.
        bounds: lowest and highest number, of a text its length, of several choices their number; None for no bound.
        allowed: the choices; of a file its suffixes, lower case with the dot.
        help: a sentence for people who do not know the word.
        optional: may be None.
        advanced: shown on request only.
    """

    name: str
    label: str
    kind: str
    default: Any = None
    bounds: tuple[float | None, float | None] = (None, None)
    allowed: tuple[str, ...] = ()
    help: str = ""
    optional: bool = False
    advanced: bool = False

    def __post_init__(self) -> None:
        if self.kind not in FIELD_KINDS:
            raise ValueError(f"{self.name}: expected a kind of {', '.join(FIELD_KINDS)}, found {self.kind!r}")
        for name in ("bounds", "allowed", "default"):  # JSON has lists
            if isinstance(value := getattr(self, name), list):
                object.__setattr__(self, name, tuple(value))

    @property
    def required(self) -> bool:
        """Whether a value must be entered."""
        return not self.optional and self.default in EMPTY_VALUES


@dataclass(frozen=True)
class Output:
    """One result for people: a file in the folder of the results, or data.

    Args:
        name: of the file, for one of `FILE_OUTPUTS`.
        data: the text; of a table `{"columns": [...], "rows": [[...], ...]}`; of a chart `{"x": label, "y": label,
            "curves": {name: [[x, y], ...]}}`. JSON values without NaN.
        group: neighbours with the same group are shown side by side.
    """

    kind: str
    title: str
    name: str = ""
    data: Any = None
    group: str = ""

    def __post_init__(self) -> None:
        if self.kind not in OUTPUT_KINDS:
            raise ValueError(f"{self.title}: expected a kind of {', '.join(OUTPUT_KINDS)}, found {self.kind!r}")
        is_file_name = self.name not in ("", ".", "..") and not set(self.name) & {"/", "\\", "\0"}
        if is_file_name != (self.kind in FILE_OUTPUTS) or (self.name and not is_file_name):
            raise ValueError(f"{self.title}: {self.name!r} is not the name of a file in the folder of the results")


def form_model(fields: Sequence[InputField]) -> type[pydantic.BaseModel]:
    """Build the pydantic model that validates the values of fields; empty values count as not entered."""
    import pydantic

    def skip_empty_values(values: Any) -> Any:
        items = values.items() if isinstance(values, Mapping) else ()
        return {name: value for name, value in items if value not in EMPTY_VALUES} if items else values

    definitions: dict[str, Any] = {}
    for field in fields:
        annotation, limits = _annotate(field)
        settings = pydantic.Field(
            ... if field.required else field.default, title=field.label, description=field.help or None, **limits
        )
        definitions[field.name] = (annotation | None if field.optional else annotation, settings)
    return pydantic.create_model(
        "FormValues",
        __config__=pydantic.ConfigDict(extra="forbid", allow_inf_nan=False),
        __validators__={"skip_empty_values": cast(Any, pydantic.model_validator(mode="before")(skip_empty_values))},
        **definitions,
    )


def _annotate(field: InputField) -> tuple[Any, dict[str, Any]]:
    """Return the type of a field's value, and its limits as arguments of `pydantic.Field`."""
    from pydantic import AfterValidator

    low, high = field.bounds
    choice: Any = cast(Any, Literal)[field.allowed] if field.allowed else str
    if field.kind in FILE_FIELDS:
        return Annotated[Path, AfterValidator(lambda path: _check_suffix(path, field.allowed))], {}
    if field.kind == "text":
        return str, {"max_length": int(high or MAX_TEXT), "pattern": r"\S" if field.required else None}
    if field.kind == "choices":
        return tuple[choice, ...], {"min_length": int(low or 0), "max_length": int(high or len(field.allowed))}
    if field.kind in ("int", "float"):
        return int if field.kind == "int" else float, {"ge": low, "le": high}
    return bool if field.kind == "bool" else choice, {}


def _check_suffix(path: Path, suffixes: Sequence[str]) -> Path:
    if "\0" in str(path) or (suffixes and path.suffix.lower() not in suffixes):
        raise ValueError(f"expected a file that ends in {', '.join(suffixes) or 'any suffix'}")
    return path


def read_form(fields: Sequence[InputField], values: Mapping[str, Any]) -> dict[str, Any]:
    """Validate the values of a form; ValueError names the field by its label in one line.

    Returns:
        A value for each field: int, float, bool, str, `Path` of a file, a tuple of several choices, or None.
    """
    import pydantic

    try:
        return dict(form_model(fields).model_validate(values))
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = str(first["loc"][0]) if first["loc"] else ""
        label = next((field.label for field in fields if field.name == name), f"{name[:40]!r}")
        entered = "" if first["type"] == "missing" else f", found {first['input']!r:.60}"
        raise ValueError(f"{label}: {first['msg']}{entered}") from error
