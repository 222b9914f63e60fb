"""Names of tensors in foreign files and in ours: tables of templates, read in both directions."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeGuard, TypeVar

import torch
from torch import Tensor

State = dict[str, Tensor]
Value = TypeVar("Value")

_FIELD = re.compile(r"\{(\w+)\}")
_WRAPPERS = re.compile(r"^(module\.)+")  # of data parallelism; torch.compile puts _orig_mod. anywhere


class NameRule(NamedTuple):
    """One name, or all names of a form, in the foreign file and in ours.

    In a template, a single letter in braces stands for a number, `{rest}` for all that follows, and another word for
    one component between dots. Both templates have the same fields.
    """

    original: str  # template; of the beginning of the name, where there is a nested table
    zoo: str
    nested: NameTable | None = None  # for the rest of the name
    read: Callable[[Any], Any] | None = None  # converts the original's tensor to ours
    write: Callable[[Any], Any] | None = None


class NameMatch(NamedTuple):
    """A translated name, the rule that did it, and its position in the order of the table."""

    name: str
    rule: NameRule
    order: tuple[int, ...]


class NameTable:
    """A table of names. The first rule that fits a name counts.

    Args:
        rules: in the order in which the foreign project registers its parameters, that of its state dicts.
    """

    def __init__(self, *rules: NameRule | tuple[str, str] | tuple[str, str, NameTable]) -> None:
        self.rules = [NameRule(*rule) for rule in rules]
        self._patterns = {
            side: [_pattern(getattr(rule, side), rule.nested is not None) for rule in self.rules]
            for side in ("original", "zoo")
        }

    def find(self, name: str, side: str) -> NameMatch | None:
        """Translate a name of a side, "original" or "zoo", to the other; None where no rule fits."""
        other = "zoo" if side == "original" else "original"
        for number, (rule, pattern) in enumerate(zip(self.rules, self._patterns[side], strict=True)):
            match = pattern.fullmatch(name)
            if match is None:
                continue
            fields = match.groupdict()
            order = (number, *(int(value) for key, value in fields.items() if len(key) == 1))
            renamed = getattr(rule, other).format(**fields)
            if rule.nested is None:
                return NameMatch(renamed, rule, order)
            inner = rule.nested.find(fields["nested_"], side)
            if inner is not None:
                return NameMatch(renamed + inner.name, inner.rule, (*order, *inner.order))
        return None

    def read(self, state: Mapping[str, Value]) -> tuple[dict[str, Value], list[str]]:
        """Rename the tensors of a foreign file, in its order.

        Returns:
            The same under our names, and the names that no rule fits.

        Raises:
            ValueError: when two different tensors of the file have one name here.
        """
        renamed: dict[str, Value] = {}
        unexpected_keys = []
        for key, value in state.items():
            match = self.find(key, "original")
            if match is None:
                unexpected_keys.append(key)
            else:
                add_tensor(renamed, match.name, match.rule.read(value) if match.rule.read else value, key)
        return renamed, unexpected_keys

    def write(self, state: Mapping[str, Value]) -> dict[str, Value]:
        """Rename our tensors, in the order of the table.

        Raises:
            ValueError: when the foreign format has no such tensor.
        """
        entries = []
        for key, value in state.items():
            match = self.find(key, "zoo")
            if match is None:
                raise ValueError(f"the original has no tensor like {key}")
            entries.append((match.order, match.name, match.rule.write(value) if match.rule.write else value))
        return {name: value for _, name, value in sorted(entries, key=lambda entry: entry[0])}


def _pattern(template: str, is_beginning: bool) -> re.Pattern[str]:
    parts = _FIELD.split(template)
    for place in range(1, len(parts), 2):
        kind = r"\d+" if len(parts[place]) == 1 else ".*" if parts[place] == "rest" else r"[^.]+"
        parts[place] = f"(?P<{parts[place]}>{kind})"
    parts[::2] = map(re.escape, parts[::2])
    return re.compile("".join(parts) + ("(?P<nested_>.+)" if is_beginning else ""))


def strip_wrappers(name: str) -> str:
    """Return a tensor's name without the prefixes of data parallelism and compilation."""
    return _WRAPPERS.sub("", str(name).replace("_orig_mod.", ""))


def strip_state_wrappers(state: Mapping[str, Value]) -> dict[str, Value]:
    """Strip the names of tensors; ValueError when two different ones get one name."""
    stripped: dict[str, Value] = {}
    for key, value in state.items():
        add_tensor(stripped, strip_wrappers(key), value, key)
    return stripped


def add_tensor(state: dict[str, Value], name: str, value: Value, key: str) -> None:
    """Add a tensor, called `key` in its file, to a state under our name.

    Raises:
        ValueError: when another tensor of the file has that name here, and differs.
    """
    if not equal_values(state.setdefault(name, value), value):
        raise ValueError(f"{key} of the file is {name} here, as is another tensor of it, and they differ")


def equal_values(one: Any, other: Any) -> bool:
    """Return whether two values of a state are the same, bit by bit where they are tensors."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one is other or (one.dtype == other.dtype and torch.equal(one, other))
    return one is other or (type(one) is type(other) and one == other)


def select_prefix(state: Mapping[str, Value], prefix: str) -> dict[str, Value]:
    """Select the names with a prefix, and remove it."""
    return {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}


def add_prefix(state: Mapping[str, Value], prefix: str) -> dict[str, Value]:
    """Put a prefix before every name."""
    return {f"{prefix}{key}": value for key, value in state.items()}


def group_by_component(state: Mapping[str, Value]) -> dict[str, dict[str, Value]]:
    """Group by the first component of the names, and remove it."""
    parts: dict[str, dict[str, Value]] = {}
    for key, value in state.items():
        first, _, rest = key.partition(".")
        parts.setdefault(first, {})[rest] = value
    return parts


def is_state_dict(value: Any) -> TypeGuard[State]:
    """Return whether a value is a table of tensors by text, and not empty."""
    if not isinstance(value, Mapping) or not value:
        return False
    return all(isinstance(name, str) and isinstance(entry, Tensor) for name, entry in value.items())
