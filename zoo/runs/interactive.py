"""What a person may ask of an Inference, and what it answers; each system declares it, a page shows it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

MAX_TEXT = 10_000  # characters of a text whose field says nothing else
FILES = ("audio", "file")
FIELD_KINDS = (*FILES, "int", "float", "bool", "choice", "choices", "text")
FILE_PARTS = ("audio", "image", "animation", "file")
PART_KINDS = (*FILE_PARTS, "text", "table", "chart")

Report = Callable[[float, str], None]


@dataclass(frozen=True)
class Field:
    """One thing that a person gives.

    Args:
        kind: "audio" and "file" (a file that was given), "int", "float", "bool", "choice" (one), "choices" (several),
            "text".
        low: the least number; of several choices, how many there are at least.
        high: the largest number; of a text its characters, of several choices how many there are at most.
        choices: what can be chosen.
        suffixes: of a file, lower case with the dot.
        help: a sentence for who does not know the word.
        optional: None may be given, and stands where nothing is.
        advanced: shown on request only.
    """

    name: str
    label: str
    kind: str
    default: Any = None
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    suffixes: tuple[str, ...] = ()
    help: str = ""
    optional: bool = False
    advanced: bool = False

    def __post_init__(self) -> None:
        if self.kind not in FIELD_KINDS:
            raise ValueError(f"{self.name}: the kind of a field is one of {', '.join(FIELD_KINDS)}, not {self.kind!r}")


@dataclass(frozen=True)
class Part:
    """One thing of an answer, in the order in which they are read.

    Args:
        kind: "audio", "image", "animation" and "file" are files, "text", "table" and "chart" are `data`.
        name: of the file in the folder of the answer.
        data: the text; of a table `{"columns": [...], "rows": [[...], ...]}`; of a chart `{"x": label, "y": label,
            "curves": {name: [[x, y], ...]}}`. What JSON holds, without NaN.
        beside: parts with the same word belong side by side.
    """

    kind: str
    title: str
    name: str = ""
    data: Any = None
    beside: str = ""

    def __post_init__(self) -> None:
        if self.kind not in PART_KINDS:
            raise ValueError(f"{self.title}: the kind of a part is one of {', '.join(PART_KINDS)}, not {self.kind!r}")
        named = self.name not in ("", ".", "..") and not set(self.name) & {"/", "\\", "\0"}
        if named != (self.kind in FILE_PARTS) or (self.name and not named):
            raise ValueError(f"{self.title}: {self.name!r} is not the name of a file in the folder of the answer")


def to_row(given: Field | Part) -> dict[str, Any]:
    """As JSON holds it."""
    return asdict(given)


def field_of(row: Mapping[str, Any]) -> Field:
    """The field that `to_row` wrote.

    Raises:
        ValueError: it is none.
    """
    made = _made(Field, row)
    default = tuple(made.default) if isinstance(made.default, list) else made.default
    changed = {"choices": tuple(made.choices), "suffixes": tuple(made.suffixes), "default": default}
    return Field(**{**asdict(made), **changed})


def part_of(row: Mapping[str, Any]) -> Part:
    """The part that `to_row` wrote.

    Raises:
        ValueError: it is none.
    """
    return _made(Part, row)


def _made(cls: Any, row: Any) -> Any:
    if not isinstance(row, Mapping) or not row.keys() <= {field.name for field in fields(cls)}:
        raise ValueError(f"{str(row)[:80]} is no {cls.__name__.lower()}")
    try:
        return cls(**row)
    except TypeError as error:
        raise ValueError(f"{str(row)[:80]} is no {cls.__name__.lower()} ({error})") from error


def checked(declared: Sequence[Field], values: Mapping[str, Any]) -> dict[str, Any]:
    """What was given, in the fields' own types; defaults stand where nothing was given.

    Args:
        values: by the fields' names. None, an empty text and no choice at all mean that nothing was given.

    Returns:
        A value for each field: int, float, bool, str, `Path` of a file, a tuple of several choices; None where an
        optional field has neither value nor default.

    Raises:
        ValueError: one line that names the field by its label, or a name that no field has.
    """
    known = {field.name for field in declared}
    for name in values:
        if name not in known:
            raise ValueError(f"there is no field {str(name)[:40]!r}; the fields are {', '.join(sorted(known))}")
    result: dict[str, Any] = {}
    for field in declared:
        value = values.get(field.name)
        if _is_nothing(value):
            value = field.default
        if _is_nothing(value):
            if not field.optional:
                raise ValueError(f"{field.label}: {_WANTED[field.kind]}")
            result[field.name] = None
        else:
            result[field.name] = _CHECKS[field.kind](field, value)
    return result


def _is_nothing(value: Any) -> bool:
    return value is None or (isinstance(value, str | list | tuple) and not value) or value == Path()


def _refuse(field: Field, expected: str, value: Any) -> ValueError:
    return ValueError(f"{field.label}: expected {expected}, found {str(value)[:60]!r}")


def _path(field: Field, value: Any) -> Path:
    if not isinstance(value, str | Path) or "\0" in str(value):
        raise _refuse(field, "a file", value)
    path = Path(value)
    if field.suffixes and path.suffix.lower() not in field.suffixes:
        raise ValueError(f"{field.label}: expected a file that ends in {', '.join(field.suffixes)}, found {path.name}")
    return path


def _number(field: Field, value: Any) -> float:
    try:
        number = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    except OverflowError:
        number = math.nan
    if not math.isfinite(number):
        raise _refuse(field, f"a number{_bounds(field)}", value)
    _within(field, number, value)
    return number


def _integer(field: Field, value: Any) -> int:
    whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    if isinstance(value, bool) or not whole:
        raise _refuse(field, f"a whole number{_bounds(field)}", value)
    _within(field, value, value)
    return int(value)


def _truth(field: Field, value: Any) -> bool:
    if not isinstance(value, bool):
        raise _refuse(field, "yes or no", value)
    return value


def _choice(field: Field, value: Any) -> str:
    if not isinstance(value, str) or value not in field.choices:
        raise _refuse(field, f"one of {_listed(field.choices)}", value)
    return value


def _several(field: Field, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(each, str) for each in value):
        raise _refuse(field, f"some of {_listed(field.choices)}", value)
    for each in value:
        _choice(field, each)
    if len(set(value)) != len(value):
        raise ValueError(f"{field.label}: one of the choices is given twice")
    _within(field, len(value), f"{len(value)} choices")
    return tuple(value)


def _text(field: Field, value: Any) -> str:
    if not isinstance(value, str):
        raise _refuse(field, "a text", value)
    if not value.strip() and not field.optional:
        raise ValueError(f"{field.label}: {_WANTED['text']}")
    most = MAX_TEXT if field.high is None else int(field.high)
    if len(value) > most:
        raise ValueError(f"{field.label}: expected at most {most} characters, found {len(value)}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{field.label}: holds something that is no character") from None
    return value


def _within(field: Field, number: float, value: Any) -> None:
    if (field.low is not None and number < field.low) or (field.high is not None and number > field.high):
        raise ValueError(f"{field.label}: expected{_bounds(field)}, found {str(value)[:60]}")


def _bounds(field: Field) -> str:
    if field.low is not None and field.high is not None:
        return f" {field.low:g} to {field.high:g}"
    if field.low is not None:
        return f" at least {field.low:g}"
    return "" if field.high is None else f" at most {field.high:g}"


def _listed(choices: Sequence[str]) -> str:
    return ", ".join(choices[:12]) + (" ..." if len(choices) > 12 else "")


_CHECKS: dict[str, Callable[[Field, Any], Any]] = {
    **dict.fromkeys(FILES, _path),
    "int": _integer,
    "float": _number,
    "bool": _truth,
    "choice": _choice,
    "choices": _several,
    "text": _text,
}
_WANTED = {
    **dict.fromkeys(FILES, "give a file"),
    **dict.fromkeys(("int", "float"), "give a number"),
    "bool": "say yes or no",
    "choice": "choose one",
    "choices": "choose at least one",
    "text": "write something",
}
