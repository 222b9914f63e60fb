"""A training as a form has it so far: one recipe, and what is edited of it."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from zoo.ui.checks import Rules
from zoo.ui.forms.controls import ALWAYS, CALLBACKS, OPTIONAL, Control
from zoo.ui.forms.values import (
    ABSENT,
    as_text,
    class_of,
    entry_names,
    flatten,
    get_value,
    merged,
    overlap,
    parse_lines,
    read_value,
    same,
    set_value,
)

LINES = "lines"  # where problems of the free lines are noted
_NAMED = re.compile(r"(?:[Kk]ey|[Oo]ption) [\"']([\w./-]+)[\"']")


@dataclass(frozen=True)
class Difference:
    """A key that a draft changes, with both values as texts."""

    key: str
    recipe: str
    yours: str


@dataclass
class Draft:
    """One recipe and its edits. Another recipe, or another machine, is another draft.

    Args:
        configs: files of the recipe and of what is laid over it for the machine.
        config: what these files say, later the complete config that the parser makes of them.
        machine: name of the fragment; "" for the recipe as it is.
        weights: name of the pretrained weights; "" for none.
        edits: values by dotted key where they are not the recipe's; `guard.on` and its like are switches of callbacks.
        lines: further edits, one `key=value` each.
        problems: what was given and cannot be used, by key.
    """

    system: str
    recipe: str
    configs: tuple[Path, ...]
    config: dict[str, Any]
    is_complete: bool = False
    machine: str = ""
    weights: str = ""
    edits: dict[str, Any] = field(default_factory=dict)
    lines: str = ""
    problems: dict[str, str] = field(default_factory=dict)
    values: dict[str, Any] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        """Note the values by key."""
        self.values = _values(self.config)

    def arrive(self, config: Mapping[str, Any]) -> None:
        """Take the complete config; what was edited meanwhile is kept."""
        self.config, self.is_complete = copy.deepcopy(dict(config)), True
        self.values = _values(self.config)
        self.edits = {key: value for key, value in self.edits.items() if not same(value, self.values.get(key, ABSENT))}

    def value(self, key: str) -> Any:
        """What would be trained with."""
        return self.edits.get(key, self.values.get(key))

    def set(self, key: str, value: Any, rules: Rules) -> None:
        """Edit a key.

        Raises:
            ValueError: the page takes no such value; the key is the recipe's again, and the problem is noted.
        """
        self.reset(key)
        if same(value, self.values.get(key, ABSENT)):
            return
        try:
            rules.check_said(key, value)
        except ValueError as error:
            self.refuse(key, str(error))
            raise
        self.edits[key] = value

    def refuse(self, key: str, problem: str) -> None:
        """Note that what was given for a key cannot be used; nothing starts until it is mended."""
        self.edits.pop(key, None)
        self.problems[key] = problem

    def reset(self, key: str) -> None:
        """Go back to what the recipe says."""
        self.edits.pop(key, None)
        self.problems.pop(key, None)

    def set_lines(self, text: str, rules: Rules) -> None:
        """Give the free lines.

        Raises:
            ValueError: naming the line that cannot be used; the problem is noted.
        """
        self.lines = text
        self.problems.pop(LINES, None)
        try:
            for key, value in parse_lines(text).items():
                rules.check_said(key, value)
        except ValueError as error:
            self.problems[LINES] = str(error)
            raise

    def has(self, key: str) -> bool:
        """Whether a key counts: settings of a callback that is not there do not."""
        if not key.startswith(f"{CALLBACKS}."):
            return True
        return key.removeprefix(f"{CALLBACKS}.").partition(".")[0] in entry_names(self._callbacks())

    def given(self) -> dict[str, Any]:
        """All edits that count, the lines' among them, by key.

        Raises:
            ValueError: a field or line cannot be used, or both say something on a key.
        """
        for key, problem in self.problems.items():
            raise ValueError(problem if key == LINES or problem.startswith(key) else f"{key}: {problem}")
        found = {key: value for key, value in self.edits.items() if self.has(key)}
        for key, value in parse_lines(self.lines).items():
            twice = next((other for other in found if overlap(key, other)), None)
            if twice:
                raise ValueError(f"{key} stands in the lines, and {twice} is edited in the form; give it once")
            found[key] = value
        return found

    def changes(self) -> dict[str, Any]:
        """What the edits change, as nested config values to lay over the recipe.

        Raises:
            ValueError: as `given`.
        """
        edits = self.given()
        config = self._switched()
        result: dict[str, Any] = {}
        touched = {CALLBACKS} if OPTIONAL.keys() & edits.keys() else set()
        for key, value in edits.items():
            if key in OPTIONAL:
                continue
            place = set_value(config, key, copy.deepcopy(value))
            if place is None:
                set_value(result, key, copy.deepcopy(value))
            else:  # a list is replaced as a whole by what is laid over it
                touched.add(place)
        for place in sorted(touched):
            set_value(result, place, get_value(config, place))
        return result

    def differences(self) -> list[Difference]:
        """What is not as the recipe says, in the order of editing; what cannot be used is left out."""
        found = []
        if self.machine:
            found.append(Difference("machine", "as in the recipe", self.machine))
        if self.weights:
            found.append(Difference("init_from", as_text(self.values.get("init_from")), self.weights))
        edits = {key: value for key, value in self.edits.items() if self.has(key)}
        if LINES not in self.problems:
            edits |= parse_lines(self.lines)
        for key, value in edits.items():
            found.append(Difference(key, self._said(key), as_text(value)))
        return found

    def _said(self, key: str) -> str:
        if key in self.values:
            return as_text(self.values[key])
        return "..." if any(overlap(key, other) for other in self.values) else "not named"

    def check_result(self, config: Mapping[str, Any]) -> list[Difference]:
        """Compare what the parser made of recipe and changes with the edits.

        Returns:
            What else has changed: values that follow from those edited.

        Raises:
            ValueError: an edited key holds another value than the one that was given.
        """
        edits, found = self.given(), _values(config)
        for key, value in edits.items():
            for place, wanted in flatten(value, key).items():
                got = found.get(place, ABSENT)
                if not same(got, wanted) and not (wanted == {} and got is ABSENT):
                    said = "nothing" if got is ABSENT else as_text(got)
                    raise ValueError(
                        f"{place}: the config would hold {said}, not {as_text(wanted)}: another key decides it"
                    )
        rest = [place for place in found if not any(overlap(place, key) for key in edits) and place not in OPTIONAL]
        return [
            Difference(place, self._said(place), as_text(found[place]))
            for place in rest
            if self.has(place) and place != "init_from" and not same(found[place], self.values.get(place, ABSENT))
        ]

    def _callbacks(self) -> list[Any]:
        """The callbacks as the switches say."""
        listed = _entries(self.config)
        for switch, (endings, _) in OPTIONAL.items():
            if switch in self.edits:
                listed = [item for item in listed if not class_of(item).endswith(endings)]
                listed += [_added(switch, self.config)] if self.edits[switch] else []
        return listed

    def _switched(self) -> dict[str, Any]:
        config = copy.deepcopy(self.config)
        if OPTIONAL.keys() & self.edits.keys():
            config["trainer"] = {**(config.get("trainer") or {}), "callbacks": copy.deepcopy(self._callbacks()) or None}
        return config


def open_draft(
    system: str, recipe: str, machine: str, configs: tuple[Path, ...], contents: list[dict[str, Any]]
) -> Draft:
    """A draft of what config files say.

    Args:
        contents: of the files, later ones over earlier ones.
    """
    config: dict[str, Any] = {}
    for content in contents:
        config = merged(config, content)
    return Draft(system, recipe, configs, config, machine=machine)


def key_of(control: Control, values: Collection[str]) -> str | None:
    """The key that a control edits where a recipe has these; None where it has none of the control's keys."""
    for pattern in control.keys:
        for key in values:
            if fnmatchcase(key, pattern):
                return key
    return None


def read_field(control: Control, text: str, takes_null: bool) -> Any:
    """The value of what is typed into a control.

    Args:
        takes_null: whether an empty field means null.

    Raises:
        ValueError: it is none that the control takes.
    """
    text = text.strip()
    if not text or text == "null":
        if takes_null:
            return None
        raise ValueError("a value is needed here")
    value = read_value(text)
    if control.kind not in ("int", "number"):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"expected a number, not {text[:60]!r}")
    if control.kind == "int" and value != int(value):
        raise ValueError(f"expected a whole number, not {text[:60]}")
    low, high = control.low, control.high
    if (low is not None and value < low) or (high is not None and value > high):
        raise ValueError(f"expected {range_of(control)}, not {text[:60]}")
    return int(value) if control.kind == "int" else value


def range_of(control: Control) -> str:
    """`1 or more`, `0 to 1`; "" without limits."""
    if control.low is not None and control.high is not None:
        return f"{control.low:g} to {control.high:g}"
    return "" if control.low is None else f"{control.low:g} or more"


def blamed(message: str, keys: Collection[str]) -> str | None:
    """Which of the given keys a message of the rules or the parser is about; None where that cannot be told."""
    found = [key for key in keys if re.search(rf"(?<![\w./]){re.escape(key)}(?![\w/-])", message)]
    if found:
        return max(found, key=len)
    named = _NAMED.search(message)
    ends = [key for key in keys if named and f".{key}".endswith(f".{named[1]}")]
    return ends[0] if len(ends) == 1 else None


def _entries(config: Mapping[str, Any]) -> list[Any]:
    trainer = config.get("trainer")
    callbacks = trainer.get("callbacks") if isinstance(trainer, Mapping) else None
    return list(callbacks) if isinstance(callbacks, list) else []


def _added(switch: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """The callback that a switch adds."""
    entry = copy.deepcopy(OPTIONAL[switch][1])
    if "monitor" in entry["init_args"]:
        entry["init_args"]["monitor"] = (config.get("checkpoints") or {}).get("monitor") or "val/loss"
    return entry


def _values(config: Mapping[str, Any]) -> dict[str, Any]:
    values = ALWAYS | flatten(config)
    values.pop("", None)
    for switch, (endings, _) in OPTIONAL.items():
        values[switch] = any(class_of(item).endswith(endings) for item in _entries(config))
        if not values[switch]:
            values |= flatten({"trainer": {"callbacks": [_added(switch, config)]}})
    return values
