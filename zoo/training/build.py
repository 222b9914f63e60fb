"""Building plain parts (nets, front ends) from their description, without the command line's parser."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

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


def completed(saved: Any, ours: Any) -> Any:
    """A saved description with the arguments that its classes have gained since, at their defaults.

    Args:
        saved: the description, of plain values.
        ours: the present one. Where it names another class, `saved` stays as it is.

    Returns:
        The description to compare with `ours`.
    """
    if not isinstance(saved, Mapping) or not isinstance(ours, Mapping):
        return saved
    if saved.get("class_path") != ours.get("class_path"):
        return saved
    if "class_path" in saved:
        module, _, name = str(saved["class_path"]).rpartition(".")
        parameters = inspect.signature(getattr(importlib.import_module(module), name)).parameters.values()
        defaults = {each.name: each.default for each in parameters if each.default is not each.empty}
        given, present = saved.get("init_args") or {}, ours.get("init_args") or {}
        gained = {key: defaults[key] for key in present if key in defaults and key not in given}
        plain = {key: list(value) if isinstance(value, tuple) else value for key, value in gained.items()}
        arguments = {key: completed(value, present.get(key)) for key, value in {**given, **plain}.items()}
        return {**saved, "init_args": arguments} if arguments else saved
    return {key: completed(value, ours.get(key)) for key, value in saved.items()}


def build_whole(spec: Mapping[str, Any], state: Mapping[str, Tensor], source: str) -> Any:
    """Build a net and load its weights, all of them.

    Args:
        spec: its description.
        state: its tensors by name.
        source: what to call their origin in an error.

    Returns:
        The net.

    Raises:
        ValueError: when the tensors are not the whole net; the message names missing, unexpected and differing ones.
    """
    with torch.device("meta"):
        expected = {key: tuple(value.shape) for key, value in build(spec).state_dict().items()}
    given = {key: tuple(value.shape) for key, value in state.items()}
    faults = [f"missing {key}" for key in expected if key not in given]
    faults += [f"unexpected {key}" for key in given if key not in expected]
    faults += [
        f"{key} is {given[key]}, expected {shape}" for key, shape in expected.items() if given.get(key, shape) != shape
    ]
    if faults:
        name = str(spec["class_path"]).rpartition(".")[2]
        raise ValueError(f"{source}: {len(faults)} tensors do not fit a whole {name}: {'; '.join(faults[:4])}")
    net = build(spec)
    net.load_state_dict(state)
    return net
