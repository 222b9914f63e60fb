"""`zoo.load`: from a run, a checkpoint or an export to an object to call on arrays; no Trainer, no config needed."""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from zoo.training import export
from zoo.training.build import ALLOWED, build
from zoo.training.checkpoint_files import load_checkpoint
from zoo.training.inference import Inference
from zoo.training.run import find_checkpoint


def load(
    path: str | os.PathLike[str],
    device: str | torch.device = "cpu",
    ema: bool = True,
    allow_import: Sequence[str] = (),
) -> Inference:
    """Load a trained system for use.

    Args:
        path: a run folder (its newest sound checkpoint), a checkpoint file, or an export folder.
        device: where to compute.
        ema: use the averaged weights where the checkpoint holds them.
        allow_import: packages of your own whose classes the description may name.

    Returns:
        An object in evaluation mode: audio systems are called as `model(array, sample_rate)`.

    Raises:
        FileNotFoundError: when there is nothing to load.
        ValueError: when it is torn, or does not describe its parts.
    """
    specs, state, fused = read_parts(Path(path), ema)
    parts = {name: build(spec, allow_import) for name, spec in specs["parts"].items()}
    for name, part in parts.items():
        if not isinstance(part, nn.Module):
            continue
        if name in fused:
            part.fuse_()  # type: ignore[operator]
        part.load_state_dict(export.parts_state(state, name))
    return inference_class(specs["inference"], allow_import)(**parts).to(device).eval()


def read_parts(path: Path, ema: bool = True) -> tuple[dict[str, Any], dict[str, Tensor], list[str]]:
    """Read the description and the tensors of what can be loaded.

    Returns:
        (specs with `inference` and `parts`, state by full names, names of the parts whose weights are fused).
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
    return {**checkpoint["zoo"], "step": checkpoint.get("global_step")}, state, []


def inference_class(path: str, allow_import: Sequence[str] = ()) -> type[Inference]:
    """Import the class that a description names, from allowed packages only."""
    if not any(path.startswith(package + ".") for package in (*ALLOWED, *allow_import)):
        raise ValueError(f"importing {path} is not allowed; name its package in allow_import")
    module, _, name = path.rpartition(".")
    found = getattr(importlib.import_module(module), name, None)
    if not (isinstance(found, type) and issubclass(found, Inference)):
        raise ValueError(f"{path} is not an Inference class")
    return found
