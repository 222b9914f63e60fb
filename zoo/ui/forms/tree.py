"""The complete config as a tree to search."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zoo.ui.checks import RESERVED
from zoo.ui.forms.controls import OPTIONAL
from zoo.ui.forms.draft import Draft
from zoo.ui.forms.explain import explain
from zoo.ui.forms.values import as_text, overlap

SHOWN = 60  # characters of a value
Node = dict[str, Any]


def keys_of(draft: Draft) -> list[str]:
    """The keys of the tree: those of the config as it would be, callbacks that are off left out."""
    hidden = (*OPTIONAL, *RESERVED)
    return [key for key in draft.values if not any(overlap(key, name) for name in hidden) and draft.has(key)]


def nodes(draft: Draft, words: str) -> list[Node]:
    """Nodes for `ui.tree`; a class stands at its place, its arguments below it.

    Args:
        words: all of which a key, its value or its help holds; "" for every key.
    """
    searched = words.lower().split()
    roots: list[Node] = []
    places: dict[str, Node] = {}
    for key in keys_of(draft):
        text = as_text(draft.value(key))
        if searched:
            about = f"{key} {text} {explain(draft.values, key).text}".lower()
            if not all(word in about for word in searched):
                continue
        *parents, last = [part for part in key.split(".") if part != "init_args"] or [key]
        siblings, path = roots, ""
        for part in parents:
            path = f"{path}.{part}" if path else part
            if path not in places:
                places[path] = {"id": path, "label": part, "children": []}
                siblings.append(places[path])
            siblings = places[path]["children"]
        shown = text if len(text) <= SHOWN else f"{text[:SHOWN]} ..."
        siblings.append({"id": f"={key}", "label": last, "value": shown, "edited": key in draft.edits})
    return roots


def key_of_node(name: str, values: Mapping[str, Any]) -> str | None:
    """The key of a chosen node; None for one that only holds others."""
    key = name.removeprefix("=")
    return key if name.startswith("=") and key in values else None
