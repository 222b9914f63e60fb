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
    """How one name, or all names of a form, are called there and here.

    In a template, a single letter in braces stands for a number, `{rest}` for all that follows, and another word for
    one part between dots. Both templates have the same fields.

    Args:
        original: template of the name in the foreign file; of its beginning, where there is a nested table.
        zoo: template of our name, likewise.
        nested: table for what follows.
        read: makes our tensor of theirs.
        write: makes their tensor of ours.
    """

    original: str
    zoo: str
    nested: NameTable | None = None
    read: Callable[[Any], Any] | None = None
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
        """Translate a name.

        Args:
            side: whose it is, "original" or "zoo".

        Returns:
            What it is on the other side, or None where no rule fits.
        """
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
        """Rename what a foreign file holds, in its order.

        Returns:
            The same under our names, and the names that no rule knows.

        Raises:
            ValueError: when two different tensors of the file have one name here.
        """
        renamed: dict[str, Value] = {}
        sources: dict[str, str] = {}
        unexpected_keys = []
        for key, value in state.items():
            match = self.find(key, "original")
            if match is None:
                unexpected_keys.append(key)
            else:
                first = sources.setdefault(match.name, key)
                if first != key and not equal_values(state[first], value):
                    raise ValueError(f"{first} and {key} of the file are both {match.name} here, and differ")
                renamed[match.name] = match.rule.read(value) if match.rule.read else value
        return renamed, unexpected_keys

    def write(self, state: Mapping[str, Value]) -> dict[str, Value]:
        """Rename what is ours, in the order of the table.

        Raises:
            ValueError: when the foreign format has no place for a tensor.
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
    """A tensor's name without what data parallelism and compilation put before it."""
    return _WRAPPERS.sub("", str(name).replace("_orig_mod.", ""))


def strip_state_wrappers(state: Mapping[str, Value]) -> dict[str, Value]:
    """Tensors by their names without what data parallelism and compilation put before them.

    Raises:
        ValueError: when two different tensors end with one name.
    """
    sources: dict[str, str] = {}
    for key, value in state.items():
        first = sources.setdefault(strip_wrappers(key), key)
        if not equal_values(state[first], value):
            raise ValueError(f"{first} and {key} of the file have one name without their wrappers, and differ")
    return {name: state[key] for name, key in sources.items()}


def add_tensor(state: dict[str, Value], name: str, value: Value, key: str) -> None:
    """Put a tensor of a file under its name here.

    Args:
        state: by our names; added to.
        key: its name in the file.

    Raises:
        ValueError: when another tensor of the file has that name here, and differs.
    """
    if not equal_values(state.setdefault(name, value), value):
        raise ValueError(f"{key} of the file is {name} here, as is another tensor of it, and they differ")


def equal_values(one: Any, other: Any) -> bool:
    """Whether two values of a state are the same, bit by bit where they are tensors."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one is other or (one.dtype == other.dtype and torch.equal(one, other))
    return one is other or (not isinstance(one, Tensor) and not isinstance(other, Tensor) and one == other)


def select_prefix(state: Mapping[str, Value], prefix: str) -> dict[str, Value]:
    """What lies below a prefix, without it."""
    return {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}


def add_prefix(state: Mapping[str, Value], prefix: str) -> dict[str, Value]:
    """Put a prefix before every name."""
    return {f"{prefix}{key}": value for key, value in state.items()}


def group_by_component(state: Mapping[str, Value]) -> dict[str, dict[str, Value]]:
    """Sort by the first part of the names, and take it off them."""
    parts: dict[str, dict[str, Value]] = {}
    for key, value in state.items():
        first, _, rest = key.partition(".")
        parts.setdefault(first, {})[rest] = value
    return parts


def is_state_dict(value: Any) -> TypeGuard[State]:
    """Whether a value is a table of tensors, and not empty."""
    return isinstance(value, Mapping) and bool(value) and all(isinstance(entry, Tensor) for entry in value.values())
