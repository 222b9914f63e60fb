"""Building plain parts (nets, front ends) from their description, without the command line's parser."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

ALLOWED = ("zoo", "torch.nn")


def build(spec: Any, allow: Sequence[str] = ()) -> Any:
    """Build an object from `{class_path, init_args}`, recursively; other values are returned as they are.

    Args:
        spec: the description, of plain values.
        allow: packages beside `zoo` and `torch.nn` whose classes may be built.

    Returns:
        The object.

    Raises:
        ValueError: for a class outside the allowed packages, or arguments that it does not take.
    """
    if isinstance(spec, Mapping) and "class_path" in spec:
        path = str(spec["class_path"])
        if not any(path.startswith(package + ".") for package in (*ALLOWED, *allow)):
            raise ValueError(f"building {path} is not allowed: only classes of {', '.join((*ALLOWED, *allow))} are")
        module, _, name = path.rpartition(".")
        arguments = {key: build(value, allow) for key, value in (spec.get("init_args") or {}).items()}
        cls = getattr(importlib.import_module(module), name, None)
        if not isinstance(cls, type):
            raise ValueError(f"{path} is not a class")
        try:
            return cls(**arguments)
        except TypeError as error:
            raise ValueError(f"{path} cannot be built: {error}") from error
    if isinstance(spec, Mapping):
        return {key: build(value, allow) for key, value in spec.items()}
    if isinstance(spec, (list, tuple)):
        return [build(value, allow) for value in spec]
    return spec
