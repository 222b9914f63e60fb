"""`zoo.load` and `zoo.load_net`: from a run, a checkpoint or an export to an object to call on arrays, or to a net."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch import nn

from zoo.common import registry
from zoo.common.build import build
from zoo.common.tensors import seeded_rng
from zoo.runs import frozen, frozen_files
from zoo.runs.components import Components, is_export, read_components, save_components
from zoo.runs.hub.models import resolve_path
from zoo.runs.inference.base import Inference
from zoo.runs.run_folder import find_last_run, find_latest_run

_COMPONENT = "part"  # name of a single net that was saved

Net = TypeVar("Net", bound=nn.Module)


def load(
    path: str | os.PathLike[str],
    device: str | torch.device = "cpu",
    ema: bool = True,
    allow_import: Sequence[str] = (),
    **options: Any,
) -> Inference:
    """Load a trained system for use, in evaluation mode; audio systems are called as `model(array, sample_rate)`.

    Args:
        path: a run folder (its newest valid checkpoint), a checkpoint file, an export folder, `last` (the newest run
            below `runs`), or `hf://user/name` with or without `@revision`: a model that was pushed to a hub.
        device: torch device.
        ema: use the averaged weights where the checkpoint holds them.
        allow_import: packages of your own whose registered components this process may build from now on.
        options: values of the Inference's constructor instead of the recipe's, such as a chunk length; its components
            stay as they were trained. An object may be given as its `class_path` and `init_args`, a group of options
            as a mapping of those that change.

    Raises:
        OSError: there is nothing to load, or a hub does not serve it.
        ValueError: it is corrupt, does not describe its components, was trained on another frozen backbone than its
            source now gives, or an option is unknown.
    """
    registry.allow_packages(allow_import)
    path = find_last_run() if str(path) == "last" else resolve_path(path)
    return build_inference(path, read_components(path, ema), device, **options)


def build_inference(path: Path, saved: Components, device: str | torch.device = "cpu", **options: Any) -> Inference:
    """Build what `read_components` has read of a path; see `load`."""
    description = saved.description
    cls = registry.get_class(description["inference"], Inference)
    slots = registry.constructor_annotations(cls)
    names = [name for name in inspect.signature(cls).parameters if name not in description["components"]]
    if unknown := options.keys() - set(names):
        raise ValueError(f"{cls.__name__} has no option {', '.join(sorted(unknown))}; its options: {', '.join(names)}")
    components = build_components(description, path.parent if path.is_file() else path)
    saved.load_weights(components)
    values = {**description.get("options", {}), **options}
    for name, value in options.items():
        if dataclasses.is_dataclass(slots.get(name)) and isinstance(value, Mapping):
            values[name] = {**description.get("options", {}).get(name, {}), **value}
    built = {name: build(value, slots.get(name, Any)) for name, value in values.items()}
    try:
        return cls(**components, **built).to(device).eval()
    except TypeError as error:
        raise ValueError(f"{cls.__name__} cannot be built from its description: {error}") from error


def build_component(description: Mapping[str, Any], name: str) -> Any:
    """Build one component of a description without its weights: a module or a plain value.

    Raises:
        ValueError: it does not fit the Inference's argument of that name.
    """
    slots = registry.constructor_annotations(registry.get_class(description["inference"], Inference))
    component = build(description["components"][name], slots.get(name, Any))
    if isinstance(component, str) and registry.accepts_only_components(slots.get(name, str)):
        raise ValueError(f"{name} is {component!r:.60}, expected a component: class_path and init_args")
    return component


def build_components(description: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Build all components by name; frozen modules have their weights, the others not yet.

    `folder` holds copies of frozen modules. ValueError where their weights are not those of training.
    """
    specs, records = copy.deepcopy(description["components"]), description.get("frozen", {})
    copies = frozen_files.use_local_copies(specs, records, folder)
    components = {name: build_component({**description, "components": specs}, name) for name in specs}
    modules = frozen.frozen_modules({name: each for name, each in components.items() if isinstance(each, nn.Module)})
    frozen_files.restore_sources(modules, description["components"], copies)
    frozen_files.verify_frozen_weights(modules, records, str(folder))
    return components


class NetDescription(NamedTuple):
    """How a net is built again."""

    spec: Mapping[str, Any]  # `class_path` and `init_args`
    records: Mapping[str, Any]  # of the frozen modules that it was trained with, see `zoo.runs.frozen`
    others: Mapping[str, Any]  # descriptions of the other components of its source

    def save(self, folder: Path, net: nn.Module, inference: str) -> None:
        """Write the net into an existing folder, as an export of one component; `inference` as its stage has it."""
        weights = {f"{_COMPONENT}.{key}": value.contiguous() for key, value in net.state_dict().items()}
        description = {"inference": inference, "components": {_COMPONENT: self.spec}, "frozen": self.records}
        fused = [_COMPONENT] if hasattr(net, "remove_weight_norm_") else []
        save_components(folder, weights, description, fused=fused)


def load_net(
    source: str | os.PathLike[str] | Mapping[str, Any], base: type[Net], seed: int = 0
) -> tuple[Net, NetDescription]:
    """Load one net of an earlier stage, in evaluation mode, frozen, weight norm folded; averaged weights where saved.

    Args:
        source: a run, checkpoint or export that holds one net of the class, trained there or frozen, or a folder of
            runs (the latest is taken); or a net's `class_path` and `init_args`, for random weights.
        base: the net's class or a base of it.
        seed: of random weights.

    Raises:
        FileNotFoundError: there is nothing at the source.
        ValueError: it holds no such net, or several.
    """
    saved: Components | None = None
    if isinstance(source, Mapping):
        description = NetDescription(source, {}, {})
    else:
        name, saved = _read_single_net(Path(source), base)
        others = dict(saved.description["components"])
        description = NetDescription(others.pop(name), saved.description.get("frozen", {}), others)
    with seeded_rng(seed):
        net = build(description.spec, base)
    if saved is not None:
        saved.load_weights({name: net})
    if hasattr(net, "remove_weight_norm_"):
        net.remove_weight_norm_()
    return net.requires_grad_(False).eval(), description


def _read_single_net(source: Path, base: type[nn.Module]) -> tuple[str, Components]:
    """Find the only net of a base class: its name, and all that was saved with it."""
    has_weights = is_export(source) or any(source.glob("*.ckpt"))
    path = source if has_weights else find_latest_run(source) or source
    if not path.exists():
        raise FileNotFoundError(f"no run, checkpoint or export at {source}: train that stage first, or name its source")
    saved = read_components(path)
    components = saved.description["components"]
    names = _names_of_nets(components, base)
    if not names:  # the net may be frozen there: then its copy is taken
        folder = path.parent if path.is_file() else path
        folders = {str(record["folder"]) for record in saved.description.get("frozen", {}).values() if record["folder"]}
        copies = [read_components(folder / each) for each in sorted(folders) if is_export(folder / each)]
        fitting = [copy for copy in copies if _names_of_nets(copy.description["components"], base) == [_COMPONENT]]
        if len(fitting) == 1:
            [inner] = fitting
            names, components = [_COMPONENT], {**components, **inner.description["components"]}
            saved = inner._replace(description={**inner.description, "components": components})
    if len(names) != 1:
        raise ValueError(
            f"{path}: expected one component of class {registry.public_name(base)} or a relative, found {len(names)} "
            f"among {list(components)}"
        )
    return names[0], saved


def _names_of_nets(components: Mapping[str, Any], base: type[nn.Module]) -> list[str]:
    specs = {name: spec for name, spec in components.items() if isinstance(spec, Mapping) and "class_path" in spec}
    return [name for name, spec in specs.items() if issubclass(registry.get_class(spec["class_path"]), base)]
