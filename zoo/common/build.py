"""Build components (nets, front ends, data) from their description, without the command line's parser."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from typing import Any, get_args, get_origin

import torch
from torch import Tensor

from zoo.common.registry import constructor_annotations, get_class


def build(spec: Any, slot: Any = object) -> Any:
    """Build a registered component from `{class_path, init_args}`, recursively; other values are returned as they are.

    Raises:
        ValueError: for a class that is not registered or does not fit `slot`, the class or annotation of the argument
            that it is for, or for arguments that it does not take.
    """
    if isinstance(spec, Mapping) and "class_path" in spec:
        path = spec["class_path"]
        cls = get_class(path, slot)
        if inspect.isabstract(cls):
            raise ValueError(f"{path} is a base class: name one that is derived from it")
        init_args = spec.get("init_args") or {}
        if not isinstance(init_args, Mapping) or not all(isinstance(key, str) for key in init_args):
            raise ValueError(f"{path}: init_args are a mapping of argument names, found {init_args!r}")
        annotations = constructor_annotations(cls)
        arguments = {}
        for key, value in init_args.items():
            annotation = annotations.get(key, Any)
            arguments[key] = build(value, annotation)
            kinds = {get_origin(each) for each in (annotation, *get_args(annotation))}
            if isinstance(arguments[key], list) and tuple in kinds and list not in kinds:  # files have no tuples
                arguments[key] = tuple(arguments[key])
        try:
            return cls(**arguments)
        except TypeError as error:
            raise ValueError(f"{path} cannot be built: {error}") from error
    if isinstance(spec, Mapping) and isinstance(slot, type) and dataclasses.is_dataclass(slot):
        annotations = constructor_annotations(slot)
        return slot(**{key: build(value, annotations.get(key, Any)) for key, value in spec.items()})
    if isinstance(spec, Mapping):
        return {key: build(value, slot) for key, value in spec.items()}
    return [build(value, slot) for value in spec] if isinstance(spec, list | tuple) else spec


def build_with_weights(spec: Mapping[str, Any], state: Mapping[str, Tensor], source: str) -> Any:
    """Build a net and load all of its weights; arguments and errors as those of `build` and `check_state_dict`."""
    with torch.device("meta"):
        check_state_dict(build(spec), state, source, f"a whole {str(spec['class_path']).rpartition('.')[2]}")
    net = build(spec)
    net.load_state_dict(state)
    return net


def check_state_dict(net: torch.nn.Module, state: Mapping[str, Tensor], source: str, what: str) -> None:
    """Refuse tensors that are not those of a net; ValueError names missing, unexpected and differing ones.

    Args:
        net: on any device.
        source: what to call the tensors' origin in an error.
        what: what to call the net.
    """
    expected = {key: tuple(value.shape) for key, value in net.state_dict().items()}
    shapes = {key: tuple(value.shape) for key, value in state.items()}
    faults = [f"missing {key}" for key in expected if key not in shapes]
    faults += [f"unexpected {key}" for key in shapes if key not in expected]
    faults += [f"{key} is {shapes[key]}, expected {expected[key]}" for key in expected.keys() & shapes
               if shapes[key] != expected[key]]  # fmt: skip
    if faults:
        raise ValueError(f"{source}: {len(faults)} tensors do not fit {what}: {'; '.join(faults[:4])}")
