"""Nested config values by dotted keys, and as texts; an object in a list is named by its class."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

import yaml

from zoo.ui.checks import read_yaml

MAX_LINES = 2**16
ABSENT = object()
_EXPONENT = re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+")
_KEY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_/-]*(\.[A-Za-z0-9_][A-Za-z0-9_/-]*)*")


def flatten(config: Any, prefix: str = "") -> dict[str, Any]:
    """Values by dotted key: `trainer.callbacks.EMA.init_args.decay`; lists of plain values are values."""
    if isinstance(config, Mapping) and config:
        pairs = [(str(key), value) for key, value in config.items()]
    elif isinstance(config, list) and config and all(class_of(item) for item in config):
        pairs = list(zip(entry_names(config), config, strict=True))
    else:
        return {prefix: config}
    found: dict[str, Any] = {}
    for key, value in pairs:
        found |= flatten(value, f"{prefix}.{key}" if prefix else key)
    return found


def class_of(item: Any) -> str:
    """`EMA` of an object of class `zoo.training.EMA`; "" of anything else."""
    path = item.get("class_path") if isinstance(item, Mapping) else None
    return path.rpartition(".")[2] if isinstance(path, str) else ""


def entry_names(items: list[Any]) -> list[str]:
    """Names of a list's objects: their classes, a second one of a class with a number."""
    names: list[str] = []
    for item in items:
        name, number = class_of(item), 2
        while name in names:
            name, number = f"{class_of(item)}-{number}", number + 1
        names.append(name)
    return names


def set_value(config: dict[str, Any], key: str, value: Any) -> str | None:
    """Set a dotted key in place.

    Returns:
        The key of the outermost list on its way, None without one.

    Raises:
        ValueError: a list on its way holds no such object.
    """
    node: Any = config
    outer: str | None = None
    walked: list[str] = []
    *parents, last = key.split(".")
    for part in parents:
        if isinstance(node, list):
            outer = outer or ".".join(walked)
            node = dict(zip(entry_names(node), node, strict=True)).get(part)
            if node is None:
                raise ValueError(f"{key}: there is no {part} in {outer}")
        else:
            if not isinstance(node.get(part), dict | list):
                node[part] = {}
            node = node[part]
        walked.append(part)
    if isinstance(node, list):
        raise ValueError(f"{key}: {'.'.join(walked)} is a list; give it as a whole")
    node[last] = value
    return outer


def get_value(config: Any, key: str) -> Any:
    """The value of a dotted key that leads through mappings only."""
    for part in key.split("."):
        config = config[part]
    return config


def merged(config: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """A config with another laid over it; lists are replaced, or made longer by `key+`."""
    result = dict(config)
    for key, value in over.items():
        name = str(key).removesuffix("+")
        if name != key:
            result[name] = [*(result.get(name) or []), *(value if isinstance(value, list) else [value])]
        elif isinstance(value, Mapping) and isinstance(result.get(key), Mapping):
            result[key] = merged(result[key], value)
        else:
            result[key] = value
    return result


def same(one: Any, other: Any) -> bool:
    """Whether two values mean the same to a parser: 1 and 1.0 do, a path and its text."""
    if isinstance(one, bool) or isinstance(other, bool) or one is None or other is None:
        return one is other
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return one is not ABSENT and other is not ABSENT and (one == other or str(one) == str(other))


def read_value(text: str) -> Any:
    """A value as a user writes it: YAML, and 1e-4 for a number.

    Raises:
        ValueError: as `read_yaml`.
    """
    value = read_yaml(text)
    return float(value) if isinstance(value, str) and _EXPONENT.fullmatch(value) and value == text.strip() else value


def as_text(value: Any) -> str:
    """A value as one line that `read_value` reads again."""
    if isinstance(value, float) and math.isfinite(value):
        return repr(value)
    if isinstance(value, str):
        try:
            plain = value == value.strip() != "" and "\n" not in value and read_value(value) == value
        except ValueError:
            plain = False
        return value if plain else json.dumps(value)
    text = yaml.safe_dump(value, default_flow_style=True, width=math.inf, allow_unicode=True, sort_keys=False)
    return text.removesuffix("\n").removesuffix("\n...").strip()


def parse_lines(text: str) -> dict[str, Any]:
    """Read `key=value` lines; empty ones and comments (#) are passed over.

    Raises:
        ValueError: naming the line and what is wrong with it.
    """
    if len(text) > MAX_LINES:
        raise ValueError(f"the lines have {len(text)} characters, at most {MAX_LINES} are read; use a recipe")
    found: dict[str, Any] = {}
    for line in text.splitlines():
        line = line.strip().removeprefix("--")
        if not line or line.startswith("#"):
            continue
        key, equals, value = line.partition("=")
        key = key.strip()
        if not equals or not _KEY.fullmatch(key):
            raise ValueError(f"{line[:80]!r}: expected key=value, such as data.init_args.batch_size=8")
        if any(overlap(key, other) for other in found):
            raise ValueError(f"{key} is given twice, by itself or by a key that holds it; give it once")
        try:
            found[key] = read_value(value)
        except ValueError as error:
            raise ValueError(f"{line[:80]!r}: {error}") from error
    return found


def overlap(key: str, other: str) -> bool:
    """Whether two dotted keys are one, or one holds the other."""
    return f"{key}.".startswith(f"{other}.") or f"{other}.".startswith(f"{key}.")
