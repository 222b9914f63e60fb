"""What a checkpoint or an export says about itself: its Inference, components and options; checked when read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from zoo import __version__
from zoo.common.foreign_files import iterate_keys
from zoo.common.registry import public_name

FORMAT = 2  # of checkpoints and exports
_TYPES = {"inference": str, "components": dict, "options": dict, "frozen": dict, "fused": list}
_RECORD_KEYS = {"sha256", "source", "revision", "folder"}
_FROZEN_COPY = re.compile(r"frozen/[0-9a-f]{8,64}")


def describe_model(task: Any, init_args: Mapping[str, Any]) -> dict[str, Any]:
    """Describe a `ZooTask` by the plain arguments of its constructor, so that a checkpoint needs no run folder.

    ValueError for mappings with other keys than texts, which an export would turn into texts.
    """
    for key, value in iterate_keys(init_args):
        if others := [name for name in value if not isinstance(name, str)] if isinstance(value, Mapping) else []:
            raise ValueError(f"model.init_args.{key}: an export keeps texts alone as keys, found {others[0]!r}")
    return {
        "format": FORMAT,
        "version": __version__,
        "task": public_name(type(task)),
        "inference": task.inference_class,
        "components": {name: init_args[name] for name in task.inference_modules},
        "options": {name: init_args[name] for name in task.inference_options},
    }


def validate_description(description: Any) -> dict[str, Any]:
    """Check the form of a description from a file, and return it; ValueError for another format or form."""
    if not isinstance(description, dict):
        raise ValueError(f"its description is a {type(description).__name__}, expected inference, components, options")
    if description.get("format") != FORMAT:
        raise ValueError(
            f"it was written by zoo 0.2 or earlier (format {description.get('format', 1)!r:.20}, expected {FORMAT}): "
            "load it with zoo 0.2, export it there and start from the export with --init_from"
        )
    for key, kind in _TYPES.items():
        if not isinstance(description.get(key, kind()), kind):
            raise ValueError(f"its description: {key} is {description[key]!r:.60}, expected a {kind.__name__}")
    components = description.get("components", {})
    if not all(isinstance(name, str) for name in (*components, *description.get("options", {}))):
        raise ValueError("its description: components and options have other names than texts")
    if not all(isinstance(name, str) and name in components for name in description.get("fused", [])):
        raise ValueError(f"its description: fused is {description['fused']!r:.60}, expected names of its components")
    validate_records(description.get("frozen", {}))
    return description


def validate_records(records: Any) -> dict[str, dict[str, Any]]:
    """Check the form of the records of frozen modules, see `zoo.runs.frozen`, and return them; ValueError otherwise."""
    for path, record in records.items() if isinstance(records, dict) else [("", records)]:
        if not isinstance(record, dict) or not record.keys() >= _RECORD_KEYS:
            raise ValueError(f"its description: frozen.{path} lacks one of {', '.join(sorted(_RECORD_KEYS))}")
        if record["folder"] is not None and not _FROZEN_COPY.fullmatch(str(record["folder"])):
            raise ValueError(f"its description: a frozen module lies in {record['folder']!r:.60}, not in frozen/")
    return records


def check_weights(checkpoint: Mapping[str, Any]) -> None:
    """Refuse weights and averages that are not tensors by name with a ValueError."""
    ema = checkpoint.get("ema") or {}
    averages = ema.get("shadow", {}) if isinstance(ema, dict) else ema
    for name, weights in (("state_dict", checkpoint.get("state_dict")), ("ema", averages)):
        if not isinstance(weights, dict) or not all(isinstance(value, Tensor) for value in weights.values()):
            raise ValueError(f"its {name} is no mapping of names to tensors")
