"""What a user of the page may say in a config: every key and leaf of a parsed tree is looked at, none of its text."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from zoo.common.configs import PlainLoader
from zoo.common.registry import defining_module

MAX_DEPTH = 32
MAX_NODES = 20_000
# Decided by the server or by a choice of their own.
RESERVED = ("config", "ckpt_path", "init_from", "input", "output", "overwrite", "trainer.default_root_dir")
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:[/\\]|.*://", re.DOTALL)
# what a tag on a value of another kind makes SafeLoader raise
_UNREADABLE = (yaml.YAMLError, ValueError, TypeError, KeyError, AttributeError)


def read_yaml(text: str) -> Any:
    """Read a value that a user wrote.

    Raises:
        ValueError: it is no YAML, has tags, anchors or aliases, or is nested deeper than 32 levels.
    """
    try:
        marked = _find_mark(text)
        if not marked:
            return yaml.load(text, PlainLoader)
    except yaml.YAMLError as error:
        raise ValueError(f"the value is no YAML ({' '.join(str(error).split())[:120]})") from error
    raise ValueError(f"YAML's {marked} is not taken here; write the value itself")


def _find_mark(text: str) -> str:
    """Name what a YAML text holds beside plain values: alias, anchor or tag; "" for nothing.

    Raises:
        ValueError: it is nested deeper than 32 levels.
    """
    depth, marks = 0, set()
    for event in yaml.parse(text, Loader=PlainLoader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise ValueError(f"lists and tables nest deeper than {MAX_DEPTH}")
        if getattr(event, "anchor", None):
            marks.add("alias" if isinstance(event, yaml.AliasEvent) else "anchor")
        if getattr(event, "tag", None):
            marks.add("tag")
    return min(marks, default="")


def strings(tree: Any) -> Iterator[str]:
    """All strings of a tree of mappings and lists, keys left out."""
    if isinstance(tree, str):
        yield tree
    elif isinstance(tree, Mapping):
        for value in tree.values():
            yield from strings(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from strings(value)


def check_class(name: Any) -> None:
    """Refuse a class that a user may not name.

    Raises:
        ValueError: it is no registered part.
    """
    if not isinstance(name, str) or defining_module(name) is None:
        raise ValueError(f"{str(name)[:80]!r} is no part of the zoo")


@dataclass(frozen=True)
class Rules:
    """What a config may hold.

    Args:
        work: where commands run; relative paths are meant from here.
        roots: folders below which a path may lead.
    """

    work: Path
    roots: tuple[Path, ...]

    def check_said(self, key: str, value: Any) -> None:
        """Check what a user gives for a dotted key, before any parser sees it.

        Raises:
            ValueError: naming the place and what is wrong there.
        """
        self._check(value, key, frozenset(), reserved=RESERVED)

    def check_config(self, config: Any, known: Collection[str]) -> None:
        """Check a complete config as the parser made it of recipe, choices and lines.

        Args:
            known: strings that the server's own recipe and choices hold, which may lead anywhere.

        Raises:
            ValueError: naming the place and what is wrong there.
        """
        self._check(config, "", frozenset(known), reserved=())

    def _check(self, tree: Any, key: str, known: frozenset[str], reserved: tuple[str, ...]) -> None:
        pending: list[tuple[str, Any, int]] = [(key, tree, 0)]
        seen, passed = 0, set(known)
        while pending:
            place, node, depth = pending.pop()
            seen += 1
            if depth > MAX_DEPTH or seen > MAX_NODES:
                raise ValueError(f"{key}: more than {MAX_DEPTH} levels or {MAX_NODES} values")
            if place.rpartition(".")[2] == "class_path" and not (isinstance(node, str) and node in known):
                self._check_class(place, node)
            if any(place == name or place.startswith(f"{name}.") for name in reserved):
                raise ValueError(f"{place} is decided by the page's own choices and by the server")
            if isinstance(node, Mapping):
                for name, value in node.items():
                    self._check_key(place, name)
                    pending.append((f"{place}.{name}" if place else str(name), value, depth + 1))
            elif isinstance(node, list):
                pending += [(f"{place}[{index}]", item, depth + 1) for index, item in enumerate(node)]
            elif isinstance(node, str):
                if node not in passed:
                    self._check_text(place, node)
                    again = [(place, read, depth + 1) for read in _read_again(place, node)]
                    pending += again
                    passed |= set() if again else {node}
            elif node is not None and type(node) not in (bool, int, float):
                raise ValueError(f"{place}: expected a mapping, list, text, number, true, false or null")

    def _check_key(self, place: str, key: Any) -> None:
        if isinstance(key, int):
            return
        if not isinstance(key, str) or key != key.strip() or key.endswith("+"):
            raise ValueError(f"{place}: {str(key)[:60]!r} is no key; a list is given as a whole, without +")
        self._check_text(place, key)

    def _check_class(self, place: str, name: Any) -> None:
        try:
            check_class(name)
        except ValueError as error:
            raise ValueError(f"{place}: {error}; other classes are named in recipes only") from error

    def _check_text(self, place: str, text: str) -> None:
        shown = f"{place}={' '.join(text.split())[:60]}"
        if "${" in text:
            raise ValueError(f"{shown}: the page takes no paths or variables by ${{...}}; write the value")
        bare = text.strip()
        if bare and not self._leads_below_roots(bare):
            raise ValueError(
                f"{shown}: the page takes no paths of the server outside its folders of data and runs; "
                "choose the data from its list, or use the command line"
            )

    def _leads_below_roots(self, text: str) -> bool:
        """Whether a text is no path at all, or one below a root when links are followed."""
        if text.startswith(("~", "\\")) or "\0" in text or _ADDRESS.match(text) or ".." in re.split(r"[/\\]", text):
            return False
        path = self.work / text
        try:
            resolved = path.resolve()
            exists = os.path.lexists(path)
        except (OSError, RuntimeError):  # too long for a path, or a loop of links
            return not text.startswith("/")
        if any(resolved.is_relative_to(root.resolve()) for root in self.roots):
            return True
        return not text.startswith("/") and not exists and resolved.is_relative_to(self.work.resolve())


def _read_again(place: str, text: str) -> list[Any]:
    """What a parser makes of a text where it expects something else; [] when it stays what it is.

    Raises:
        ValueError: it is nested too deeply or repeats itself by aliases.
    """
    try:
        marked = _find_mark(text)
        yaml.compose(text, PlainLoader)  # an alias of nothing is no YAML
    except yaml.YAMLError:
        return []
    if marked == "alias":
        raise ValueError(f"{place}: YAML's aliases are not taken here; write the value itself")
    try:
        value = yaml.load(text, PlainLoader)
    except _UNREADABLE:
        return []
    return [] if value == text else [value]
