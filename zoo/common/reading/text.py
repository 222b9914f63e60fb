"""YAML and JSON of strangers: refused when a few lines of it stand for more than memory, time or recursion allow."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any, ClassVar

import yaml

MAX_CHARACTERS = 2**20  # of a YAML file, which takes seconds to read
MAX_DEPTH = 100  # of lists and tables in one another
MAX_NODES = 50_000  # values, lists and tables, with every alias written out
MAX_PLAIN = 10_000  # characters of a value without quotes, which may be a number: reading those takes their square
MAX_JSON = 2**24  # characters, of which two can make an object of 64 bytes

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_INTEGER = re.compile(r"[-+]?[0-9]+$|0o[0-7]+$|0x[0-9a-fA-F]+$")
_NUMBER = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$|[-+]?\.(inf|Inf|INF)$|\.(nan|NaN|NAN)$")
_NUMERIC_TAGS = [f"tag:yaml.org,2002:{name}" for name in ("int", "float", "timestamp")]


class PlainLoader(_Loader):
    """Reads plain values with YAML 1.2's numbers: 010 is ten, 1e-3 a number, 1:30 and a date are text."""

    yaml_implicit_resolvers: ClassVar = {
        first: [(tag, pattern) for tag, pattern in rules if tag not in _NUMERIC_TAGS]
        for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


def _read_integer(loader: Any, node: yaml.ScalarNode) -> int:
    text = loader.construct_scalar(node)
    return int(text, 0 if text[:2] in ("0o", "0x") else 10)


PlainLoader.add_constructor("tag:yaml.org,2002:int", _read_integer)
PlainLoader.add_implicit_resolver("tag:yaml.org,2002:int", _INTEGER, list("-+0123456789"))
PlainLoader.add_implicit_resolver("tag:yaml.org,2002:float", _NUMBER, list("-+0123456789."))


class PlainDumper(yaml.SafeDumper):
    """Quotes texts that either version of YAML would read as numbers."""


PlainDumper.add_implicit_resolver("tag:yaml.org,2002:int", _INTEGER, list("-+0123456789"))
PlainDumper.add_implicit_resolver("tag:yaml.org,2002:float", _NUMBER, list("-+0123456789."))


def dump_yaml(value: Any) -> str:
    """Write plain values as YAML that `safe_load` reads back as they are; keys keep their order."""
    return yaml.dump(value, Dumper=PlainDumper, default_flow_style=False, allow_unicode=True, sort_keys=False)


class YAMLBombError(yaml.YAMLError, ValueError):
    """A YAML text that stands for far more than its own size."""


def load_yaml(text: str) -> Any:
    """Read YAML of plain values like `yaml.safe_load`, within bounds.

    Raises:
        YAMLBombError: it is too long, too deep, or its aliases stand for too much.
        yaml.YAMLError: it is no YAML of plain values.
    """
    check_yaml(text)
    return yaml.load(text, Loader=PlainLoader)


def check_yaml(text: str, max_depth: int = MAX_DEPTH) -> str:
    """Go through a YAML text without building anything.

    Returns:
        What it holds beside plain values: "alias", else the first "anchor" or "tag ..."; "" for nothing.

    Raises:
        YAMLBombError: it is too long, too deep, or its aliases stand for too much.
        yaml.YAMLError: it is no YAML.
    """
    if len(text) > MAX_CHARACTERS:
        raise YAMLBombError(f"{len(text)} characters of YAML, at most {MAX_CHARACTERS} are read")
    return _check_events(yaml.parse(text, Loader=_Loader), max_depth)


def _check_events(events: Iterable[yaml.Event], max_depth: int) -> str:
    sizes: dict[str | None, int] = {}  # nodes below each finished anchor
    begun: list[tuple[str | None, int]] = []  # anchor and count before, of each unfinished list or table
    count, alias, marks = 0, False, ""
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
            alias = True
        elif isinstance(event, yaml.ScalarEvent):
            count += 1
            if event.anchor is not None:
                sizes[event.anchor] = 1
            if len(event.value) > MAX_PLAIN and (event.implicit[0] or event.tag is not None):
                raise YAMLBombError(f"a value of {len(event.value)} characters without quotes, expected {MAX_PLAIN}")
        if isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent):
            marks = marks or (f"tag {event.tag}" if event.tag else "anchor" if event.anchor else "")
        if len(begun) > max_depth:
            raise YAMLBombError(f"lists and tables nest deeper than {max_depth} (a bomb?)")
        if count > MAX_NODES:
            raise YAMLBombError(f"more than {MAX_NODES} values, aliases written out (a bomb?)")
    return "alias" if alias else marks


def find_duplicate_key(text: str) -> tuple[str, int, int] | None:
    """Find a key that stands twice in one table of a YAML text, of which YAML's readers would drop the first.

    Args:
        text: that `check_yaml` has accepted.

    Returns:
        The key with those above it, and the lines of both, from 1; None where there is none.
    """
    pending: list[tuple[str, Any]] = [("", yaml.compose(text, Loader=_Loader))]
    while pending:
        above, node = pending.pop()
        if isinstance(node, yaml.SequenceNode):
            pending += [(f"{above}{number}.", each) for number, each in enumerate(node.value)]
        if not isinstance(node, yaml.MappingNode):
            continue
        lines: dict[str, int] = {}
        for key, value in node.value:
            name, line = str(key.value), key.start_mark.line + 1
            if name in lines:
                return f"{above}{name}", lines[name], line
            lines[name] = line
            pending.append((f"{above}{name}.", value))
    return None


def load_json(text: str | bytes) -> Any:
    """Read JSON like `json.loads`, within bounds.

    Raises:
        ValueError: it is too long, or lists and tables nest deeper than Python's recursion goes.
        ValueError: it is no JSON.
    """
    if len(text) > MAX_JSON:
        raise ValueError(f"{len(text)} characters of JSON, at most {MAX_JSON} are read")
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("lists and tables nest too deeply (a bomb?)") from error
