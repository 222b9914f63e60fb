"""Settings of other projects as recipes of ours: reading their files and values, setting them in a recipe."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import yaml

from zoo.common.configs import load_yaml
from zoo.common.foreign_files import load_json

Number = TypeVar("Number", int, float)

# Accelerate's `mixed_precision` as `trainer.precision`
PRECISIONS = {"no": "32-true", "fp16": "16-mixed", "bf16": "bf16-mixed"}


def read_settings_file(path: Path) -> dict[str, Any]:
    """Read a file of settings, JSON or YAML.

    Raises:
        FileNotFoundError: when there is no such file.
        ValueError: when it holds something else.
    """
    if not path.is_file():
        raise FileNotFoundError(f"no configuration at {path}")
    try:
        text = path.read_text(encoding="utf-8")
        try:
            config = load_json(text)  # as YAML, NaN would be text
        except ValueError:
            config = load_yaml(text)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: neither JSON nor YAML: {' '.join(str(error).split())}") from error
    if not isinstance(config, dict):
        raise ValueError(f"{path}: must hold a table of settings, found {type(config).__name__}")
    return config


class SettingRule(NamedTuple):
    """The counterpart of a foreign setting."""

    options: str = ""  # dotted options of the recipe that take its value, separated by spaces
    updates: str = ""  # the option that counts optimizer steps where the original counts the batches of a process
    default: Any = None  # the original's; its type is the setting's
    least: float = 1  # smallest value
    hint: str = ""  # what to do instead, where there is no counterpart

    def recipe_values(self, value: Any, parts: int) -> dict[str, Any]:
        """Return values by option; `parts` batches of a process make an optimizer step."""
        values = dict.fromkeys(self.options.split(), value)
        return values | ({self.updates: math.ceil(int(value) / parts)} if self.updates else {})


def untranslated_keys(table: Mapping[str, SettingRule], config: Mapping[Any, Any]) -> list[str]:
    """List the keys of a configuration that a table does not know, or has a hint on instead."""
    hints = {key: rule.hint for key, rule in table.items() if rule.hint}
    return with_hints([str(key) for key in config if key not in table or key in hints], hints)


def recipe_option(recipe: Any, option: str) -> Any:
    """Return a dotted option of a recipe; numbers in it are indices of lists."""
    for name in option.split("."):
        recipe = recipe[int(name) if isinstance(recipe, list) else name]
    return recipe


def set_recipe_option(recipe: Any, option: str, value: Any) -> None:
    """Set a dotted option of a recipe; numbers in it are indices of lists."""
    parents, _, name = option.rpartition(".")
    section = recipe_option(recipe, parents) if parents else recipe
    section[int(name) if isinstance(section, list) else name] = value


def to_plain_value(value: Any) -> Any:
    """Return a value with numpy's numbers, devices and tuples as JSON's types."""
    if isinstance(value, Mapping):
        return {str(key): to_plain_value(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain_value(entry) for entry in value]
    if hasattr(value, "dtype") and hasattr(value, "item"):
        return value.item()
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def to_number(value: Any, kind: type[Number], name: str) -> Number:
    """Read a number of a foreign configuration, also from text such as `3e-5`; `name` is for the message.

    Raises:
        ValueError: when it is none, or has a fraction where a whole number is expected.
    """
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if math.isnan(number) or (kind is int and not number.is_integer()):
        raise ValueError(f"{name} is {value!r}, expected {'a whole number' if kind is int else 'a number'}")
    return kind(value) if isinstance(value, int) else kind(number)


class SettingsReader:
    """Values of a configuration by dotted key, and which of them were used.

    Args:
        config: its tables.
        path: named in errors.
        implied: keys that ours does not need.
        hints: what to do instead, for keys without a counterpart.
    """

    def __init__(
        self, config: Mapping[str, Any], path: Path, implied: tuple[str, ...] = (), hints: Mapping[str, str] = {}
    ) -> None:
        self.path = path
        self.values = dict(_flat(config))
        self.used = set(implied)
        self.hints = hints
        self.notes: list[str] = []

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a key; null counts as not given."""
        self.used.add(key)
        value = self.values.get(key)
        return default if value is None else value

    def require(self, key: str) -> Any:
        """Return the value of a key that must be present."""
        value = self.get(key)
        if value is None:
            raise ValueError(f"{self.path} lacks {key}; it has {', '.join(list(self.values)[:6]) or 'nothing'}")
        return value

    def number(self, key: str, default: Any, kind: type[int] | type[float] = float) -> Any:
        """Read a number by `to_number`; None where neither the file nor the default has one."""
        value = self.get(key, default)
        return None if value is None else to_number(value, kind, f"{self.path}: {key}")

    def flag(self, key: str, default: bool) -> bool:
        """Read true or false."""
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise ValueError(f"{self.path}: {key} is true or false, not {value!r}")
        return value

    def choice(self, key: str, default: str, choices: Mapping[str, Any]) -> Any:
        """Look up what a word stands for; YAML reads a bare `no` as false."""
        value = self.get(key, default)
        word = "no" if value is False else str(value)
        if word not in choices:
            raise ValueError(f"{self.path}: {key} is one of {', '.join(choices)}, not {word!r}")
        return choices[word]

    def unused(self, empty: tuple[Any, ...] = (None,)) -> list[str]:
        """Return notes, and unused keys that hold something else than one of `empty`, with their hints."""
        ignored = [(type(value), value) for value in empty]
        unused = [key for key in self.values if key not in self.used]
        keys = [key for key in unused if (type(self.values[key]), self.values[key]) not in ignored]
        return [*self.notes, *with_hints(keys, self.hints)]


def with_hints(keys: list[str], hints: Mapping[str, str]) -> list[str]:
    """Return keys without a counterpart, each with its hint where there is one."""
    return [f"{key}: {hints[key]}" if key in hints else key for key in keys]


def _flat(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
