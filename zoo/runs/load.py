"""`zoo.load`: from a run, a checkpoint or an export to an object to call on arrays; no Trainer, no config needed."""

from __future__ import annotations

import copy
import inspect
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from zoo.common import registry
from zoo.common.build import build
from zoo.runs import export, frozen
from zoo.runs.checkpoints import is_folder, load_checkpoint
from zoo.runs.descriptions import check_whole
from zoo.runs.folder import find_checkpoint
from zoo.runs.hub.names import local
from zoo.runs.inference import Inference


def load(
    path: str | os.PathLike[str],
    device: str | torch.device = "cpu",
    ema: bool = True,
    allow_import: Sequence[str] = (),
    **options: Any,
) -> Inference:
    """Load a trained system for use.

    Args:
        path: a run folder (its newest sound checkpoint), a checkpoint file, an export folder, or `hf://user/name` with
            or without `@revision`: a model that was pushed to a hub.
        device: where to compute.
        ema: use the averaged weights where the checkpoint holds them.
        allow_import: packages of your own whose registered parts this process may build from now on.
        options: values of the Inference's constructor in the place of those of the recipe, such as a chunk length (an
            object may be given as its `class_path` and `init_args`); what it was trained with (its parts) stays.

    Returns:
        An object in evaluation mode: audio systems are called as `model(array, sample_rate)`.

    Raises:
        FileNotFoundError: when there is nothing to load.
        OSError: when a hub does not give it.
        ValueError: when it is torn, does not describe its parts, was trained on another frozen backbone than its
            source now gives, or an option is unknown.
    """
    registry.admit(allow_import)
    path = local(path)
    specs, state, fused = read_parts(path, ema)
    cls = registry.find(specs["inference"], Inference)
    slots = registry.slots(cls)
    known = set(inspect.signature(cls).parameters) - set(specs["parts"])
    if unknown := options.keys() - known:
        said = f"its options: {', '.join(sorted(known))}" if known else "it has none"
        raise ValueError(f"{cls.__name__} has no option {', '.join(sorted(unknown))}; {said}")
    check_whole(specs, options)
    parts = build_parts(specs, path.parent if path.is_file() or is_folder(path) else path)
    for name, part in parts.items():
        if not isinstance(part, nn.Module):
            continue
        if name in fused:
            part.fuse_()  # type: ignore[operator]
        part.load_state_dict(export.parts_state(state, name))
    chosen = {**specs.get("options", {}), **options}
    built = {name: build(value, slots.get(name, Any)) for name, value in chosen.items()}
    return cls(**parts, **built).to(device).eval()


def build_part(specs: Mapping[str, Any], name: str) -> Any:
    """Build one part that a description names, without its weights.

    Args:
        specs: `inference` and `parts`.

    Returns:
        Module or plain value.

    Raises:
        ValueError: when it does not fit its place in the Inference.
    """
    slots = registry.slots(registry.find(specs["inference"], Inference))
    part = build(specs["parts"][name], slots.get(name, Any))
    if isinstance(part, str) and registry.takes_parts_only(slots.get(name, str)):
        raise ValueError(f"{name} is {part!r:.60}, expected a part: class_path and init_args")
    return part


def build_parts(specs: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Build the parts that a description names; frozen modules have their weights, the others not yet.

    Args:
        specs: `parts`, and `frozen` where there are such modules.
        folder: the run or export with their copies.

    Returns:
        Modules and plain values by name.

    Raises:
        ValueError: when a frozen module's weights are not those of training.
    """
    described, recorded = copy.deepcopy(specs["parts"]), specs.get("frozen", {})
    used = frozen.use_copies(described, recorded, folder)
    parts = {name: build_part({**specs, "parts": described}, name) for name in described}
    modules = frozen.frozen_modules({name: part for name, part in parts.items() if isinstance(part, nn.Module)})
    frozen.note_sources(modules, specs["parts"], used)
    frozen.check(modules, recorded, str(folder))
    return parts


def read_parts(path: Path, ema: bool = True) -> tuple[dict[str, Any], dict[str, Tensor], list[str]]:
    """Read the description and the tensors of what can be loaded.

    Returns:
        (specs with `inference`, `parts`, `options` and `frozen`, state by full names, names of the fused parts).
    """
    if export.is_export(path):
        config = export.export_config(path)
        return config, load_file(path / export.WEIGHTS_NAME), config["fused"]
    file = find_checkpoint(path)
    checkpoint = load_checkpoint(file)
    if "zoo" not in checkpoint:
        raise ValueError(
            f"{file} does not describe its parts: it was not written by `zoo fit`; "
            "for an original's file use `zoo convert`, from Python set task.specs before training"
        )
    state = dict(checkpoint["state_dict"])
    if ema and "ema" in checkpoint:
        state.update(checkpoint["ema"]["shadow"])
    specs = {**checkpoint["zoo"], "step": checkpoint.get("global_step"), "frozen": checkpoint.get("frozen", {})}
    return specs, state, []
