"""YAML and JSON of strangers: refused when a few lines of it stand for more than memory, time or recursion allow."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import yaml

from zoo.common.reading.errors import UnsafeFileError

MAX_CHARACTERS = 2**20  # of a YAML file, which takes seconds to read
MAX_DEPTH = 100  # of lists and tables in one another
MAX_NODES = 50_000  # values, lists and tables, with every alias written out
MAX_PLAIN = 10_000  # characters of a value without quotes, which may be a number: reading those takes their square
MAX_JSON = 2**24  # characters, of which two can make an object of 64 bytes

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class YAMLBombError(yaml.YAMLError, UnsafeFileError):
    """A YAML text that stands for far more than its own size."""


def safe_load(text: str) -> Any:
    """Read YAML of plain values like `yaml.safe_load`, within bounds.

    Raises:
        YAMLBombError: it is too long, too deep, or its aliases stand for too much.
        yaml.YAMLError: it is no YAML of plain values.
    """
    check_yaml(text)
    return yaml.load(text, Loader=_Loader)


def check_yaml(text: str) -> None:
    """Go through a YAML text without building anything.

    Raises:
        YAMLBombError: it is too long, too deep, or its aliases stand for too much.
        yaml.YAMLError: it is no YAML.
    """
    if len(text) > MAX_CHARACTERS:
        raise YAMLBombError(f"{len(text)} characters of YAML, at most {MAX_CHARACTERS} are read")
    _check_events(yaml.parse(text, Loader=_Loader))


def _check_events(events: Iterable[yaml.Event]) -> None:
    sizes: dict[str | None, int] = {}  # nodes below each finished anchor
    begun: list[tuple[str | None, int]] = []  # anchor and count before, of each unfinished list or table
    count = 0
    for event in events:
        if isinstance(event, yaml.CollectionEndEvent):
            anchor, before = begun.pop()
            if anchor is not None:
                sizes[anchor] = count - before
        elif isinstance(event, yaml.CollectionStartEvent):
            begun.append((event.anchor, count))
            count += 1
        elif isinstance(event, yaml.AliasEvent):
            if any(event.anchor == anchor for anchor, _ in begun):
                raise YAMLBombError(f"the alias *{event.anchor} stands within what it means")
            count += sizes.get(event.anchor, 1)
        elif isinstance(event, yaml.ScalarEvent):
            count += 1
            if event.anchor is not None:
                sizes[event.anchor] = 1
            if len(event.value) > MAX_PLAIN and (event.implicit[0] or event.tag is not None):
                raise YAMLBombError(f"a value of {len(event.value)} characters without quotes, expected {MAX_PLAIN}")
        if len(begun) > MAX_DEPTH:
            raise YAMLBombError(f"lists and tables nest deeper than {MAX_DEPTH} (a bomb?)")
        if count > MAX_NODES:
            raise YAMLBombError(f"more than {MAX_NODES} values, aliases written out (a bomb?)")


def load_json(text: str | bytes) -> Any:
    """Read JSON like `json.loads`, within bounds.

    Raises:
        UnsafeFileError: it is too long, or lists and tables nest deeper than Python's recursion goes.
        ValueError: it is no JSON.
    """
    if len(text) > MAX_JSON:
        raise UnsafeFileError(f"{len(text)} characters of JSON, at most {MAX_JSON} are read")
    try:
        return json.loads(text)
    except RecursionError as error:
        raise UnsafeFileError("lists and tables nest too deeply (a bomb?)") from error
