"""Build components (nets, front ends, data) from their description, without the command line's parser."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from zoo.common.registry import constructor_annotations, get_class


def build(spec: Any, slot: Any = object) -> Any:
    """Build a registered component from `{class_path, init_args}`, recursively; other values are returned as they are.

    Args:
        spec: the description, of plain values.
        slot: class or annotation of the argument it is for; those inside have the annotations of their constructor.

    Raises:
        ValueError: for a class that is not registered or does not fit its slot, or arguments that it does not take.
    """
    if isinstance(spec, Mapping) and "class_path" in spec:
        path = spec["class_path"]
        if not isinstance(path, str):
            raise ValueError(f"class_path: expected the name of a part, found {path!r}")
        cls = get_class(path, slot)
        if inspect.isabstract(cls):
            raise ValueError(f"{path} is a base class: name one that is derived from it")
        init_args = spec.get("init_args") or {}
        if not isinstance(init_args, Mapping) or not all(isinstance(key, str) for key in init_args):
            raise ValueError(f"{path}: init_args are a mapping of argument names, found {init_args!r}")
        annotations = constructor_annotations(cls)
        arguments = {key: build(value, annotations.get(key, Any)) for key, value in init_args.items()}
        try:
            return cls(**arguments)
        except TypeError as error:
            raise ValueError(f"{path} cannot be built: {error}") from error
    if isinstance(spec, Mapping):
        return {key: build(value, slot) for key, value in spec.items()}
    return [build(value, slot) for value in spec] if isinstance(spec, list | tuple) else spec


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
        parameters = inspect.signature(get_class(saved["class_path"])).parameters.values()
        defaults = {each.name: each.default for each in parameters if each.default is not each.empty}
        given, present = saved.get("init_args") or {}, ours.get("init_args") or {}
        gained = {key: defaults[key] for key in present if key in defaults and key not in given}
        plain = {key: list(value) if isinstance(value, tuple) else value for key, value in gained.items()}
        arguments = {key: completed(value, present.get(key)) for key, value in {**given, **plain}.items()}
        return {**saved, "init_args": arguments} if arguments else saved
    return {key: completed(value, ours.get(key)) for key, value in saved.items()}


def build_with_weights(spec: Mapping[str, Any], state: Mapping[str, Tensor], source: str, slot: Any = object) -> Any:
    """Build a net and load its weights, all of them.

    Args:
        source: what to call their origin in an error.
        slot: class or annotation of the argument it is for.

    Raises:
        ValueError: when the tensors are not the net's; see `check_state_dict`.
    """
    with torch.device("meta"):
        check_state_dict(build(spec, slot), state, source, f"a whole {str(spec['class_path']).rpartition('.')[2]}")
    net = build(spec, slot)
    net.load_state_dict(state)
    return net


def check_state_dict(net: torch.nn.Module, state: Mapping[str, Tensor], source: str, what: str) -> None:
    """Refuse tensors that are not those of a net.

    Args:
        net: on any device.
        state: tensors by name.
        source: what to call their origin in an error.
        what: what to call the net.

    Raises:
        ValueError: naming missing, unexpected and differing tensors.
    """
    expected = {key: tuple(value.shape) for key, value in net.state_dict().items()}
    shapes = {key: tuple(value.shape) for key, value in state.items()}
    faults = [f"missing {key}" for key in expected if key not in shapes]
    faults += [f"unexpected {key}" for key in shapes if key not in expected]
    faults += [f"{key} is {shapes[key]}, expected {expected[key]}" for key in expected.keys() & shapes
               if shapes[key] != expected[key]]  # fmt: skip
    if faults:
        raise ValueError(f"{source}: {len(faults)} tensors do not fit {what}: {'; '.join(faults[:4])}")
