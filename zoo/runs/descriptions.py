"""What a checkpoint or an export says of itself: its Inference, its parts and options; checked when read."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

from zoo.common.registry import get_class

KINDS = {"inference": str, "parts": dict, "options": dict, "frozen": dict, "fused": list}


class OutdatedDescriptionError(ValueError):
    """A description that zoo 0.2 or earlier wrote and that cannot be read."""


def described(found: Any) -> dict[str, Any]:
    """A description as it was read.

    Raises:
        ValueError: when it is not of the form that runs and exports write.
    """
    if not isinstance(found, dict):
        raise ValueError(f"its description is a {type(found).__name__}, expected inference, parts and options")
    for key, kind in KINDS.items():
        if not isinstance(found.get(key, kind()), kind):
            raise ValueError(f"its description: {key} is {found[key]!r:.60}, expected a {kind.__name__}")
    _check_name(found.get("inference", ""))
    _check_specs({**found.get("parts", {}), **found.get("options", {})}, "parts")
    parts = found.get("parts", {})
    strange = [name for name in found.get("fused", []) if not isinstance(name, str) or name not in parts]
    if strange:
        raise ValueError(f"its description: fused is {strange[0]!r:.60}, expected names of its parts")
    return found


def _check_specs(node: Any, place: str) -> None:
    """Look for a class without a name, or arguments that are none."""
    if isinstance(node, Mapping):
        if not all(isinstance(key, str) for key in node):
            raise ValueError(f"its description: {place} has a key that is no text")
        if "class_path" in node and not isinstance(node["class_path"], str):
            raise ValueError(f"its description: {place}.class_path is no name of a part")
        if "class_path" in node:
            _check_name(node["class_path"])
        if "class_path" in node and not isinstance(node.get("init_args") or {}, Mapping):
            raise ValueError(f"its description: {place}.init_args are no mapping of arguments")
        for key, value in node.items():
            _check_specs(value, f"{place}.{key}")
    elif isinstance(node, list | tuple):
        for value in node:
            _check_specs(value, place)


def _check_name(name: str) -> None:
    """Refuse the path of a module, by which zoo 0.2 and earlier named parts."""
    if name.startswith("zoo.") and name.count(".") > 2:
        raise OutdatedDescriptionError(
            f"it was written by zoo 0.2 or earlier and names {name!r:.80}: load it with zoo 0.2, export it there and "
            "start from that with --init_from"
        )


def check_whole(specs: Mapping[str, Any], given: Iterable[str] = ()) -> None:
    """Refuse a description that lacks parts of its Inference.

    Args:
        specs: of `described`.
        given: arguments that do not come from it.

    Raises:
        ValueError: naming what it lacks.
    """
    parameters = inspect.signature(get_class(specs.get("inference", ""))).parameters.values()
    needed = {each.name for each in parameters if each.default is each.empty}
    if missing := needed - {*specs.get("parts", {}), *specs.get("options", {}), *given}:
        raise ValueError(f"its description lacks {', '.join(sorted(missing))}, which {specs['inference']} takes")


def check_weights(checkpoint: Mapping[str, Any]) -> None:
    """Refuse weights that are no tensors by name.

    Raises:
        ValueError: naming the entry.
    """
    ema = checkpoint.get("ema") or {}
    averages = ema.get("shadow", {}) if isinstance(ema, dict) else ema
    for name, weights in (("state_dict", checkpoint.get("state_dict")), ("ema", averages)):
        if not isinstance(weights, dict) or not all(isinstance(value, Tensor) for value in weights.values()):
            raise ValueError(f"its {name} is no mapping of names to tensors")
