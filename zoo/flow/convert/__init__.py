"""Converters between our nets and the flow matching files of the assignment lineage (`fm.save`, Accelerate)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import zoo
from zoo.common.atomic import write_atomic
from zoo.convert.checkpoints import read_ours, write_converted
from zoo.flow.convert.read import DEFAULTS, PREFIX, SETTINGS, build_net, net_spec, read
from zoo.flow.convert.recipe import INFERENCE, TASK, convert_config
from zoo.flow.nets.mlp import ToyNet
from zoo.flow.nets.unet import GROUPS, UNet
from zoo.runs.export import parts_state, write_export
from zoo.runs.folder import find_checkpoint
from zoo.runs.load import build_part

__all__ = ["convert", "convert_config", "describe", "from_original", "is_original", "original_state", "to_original"]

PART = "net"  # name of the net in the task, and so prefix of its tensors


def is_original(path: Path | str) -> bool:
    """Whether a path is a flow matching file of the assignment lineage."""
    try:
        read(Path(path))
    except (ValueError, OSError):
        return False
    return True


def describe(path: Path | str) -> dict[str, Any]:
    """Say what a flow matching file of the lineage holds.

    Returns:
        Layout, net and its arguments, counts, and what the file says of its training.

    Raises:
        FileNotFoundError: when there is no such file.
        ValueError: when its layout is not known.
    """
    path = Path(path)
    original = read(path)
    spec = net_spec(original, path)
    facts: dict[str, Any] = {
        "system": "flow",
        "format": original.layout,
        "net": spec["class_path"].rpartition(".")[2],
        "arguments": spec["init_args"],
        "tensors": len(original.state),
        "values": sum(tensor.numel() for tensor in original.state.values()),
        "settings in the file": original.settings,
    }
    if original.dropped:
        facts["left out"] = f"{original.dropped} tensors of a perceptual loss"
    return facts


def from_original(path: Path | str, image_resolution: int | None = None) -> nn.Module:
    """Build the net of a file of the lineage.

    Args:
        path: an `fm.save` file or a flat state dict.
        image_resolution: in pixels; None takes the file's word, or 64 where it says nothing.

    Returns:
        The net with its weights, in evaluation mode. Called as `net(x, t, label=None)` with the labels of the file:
        0 is the null class, the real ones count from 1.

    Raises:
        FileNotFoundError: when there is no such file.
        ValueError: when its layout is not known, or its tensors do not make up a whole net.
    """
    path = Path(path)
    return build_net(read(path), path, image_resolution).eval()


def original_state(path: Path | str) -> dict[str, Tensor]:
    """Tensors of a file of the lineage under our task's names (`net.*`).

    Raises:
        FileNotFoundError: when there is no such file.
        ValueError: when its layout is not known.
    """
    return {f"{PART}.{key}": value for key, value in read(Path(path)).state.items()}


def to_original(module: nn.Module, path: Path | str, settings: Mapping[str, Any] | None = None) -> None:
    """Write a net as the lineage's `fm.save` does, with plain settings in place of the pickled modules.

    The lineage reads it with `model.load_state_dict(torch.load(path)["state_dict"])`.

    Args:
        module: a `UNet` or `ToyNet` that computes as the lineage's nets do (time_scale 1, 32 groups).
        path: file to write.
        settings: `sigma_min`, `num_train_timesteps` and `cfg_dropout` as far as known; else the lineage's defaults.

    Raises:
        ValueError: when the lineage's net would compute something else with these weights, or a setting is unknown.
    """
    given = dict(settings or {})
    if unknown := sorted(set(given) - set(SETTINGS)):
        raise ValueError(f"unknown settings {', '.join(unknown)}; known are {', '.join(SETTINGS)}")
    _check_holds(module)
    known = {"sigma_min": DEFAULTS["sigma_min"], "num_train_timesteps": 1000}
    if isinstance(module, UNet):
        known |= {
            "image_resolution": module.sample_shape[-1],
            "use_cfg": module.num_classes > 0,
            "cfg_dropout": DEFAULTS["cfg_dropout"],
            "dropout": module.dropout,
        }
    state = {f"{PREFIX}{key}": value.detach().cpu().contiguous() for key, value in module.state_dict().items()}
    content = {"hparams": {**known, **given}, "state_dict": state}
    write_atomic(Path(path), lambda file: torch.save(content, file))


def _check_holds(module: nn.Module) -> None:
    if not isinstance(module, UNet | ToyNet):
        raise ValueError(f"expected a UNet or ToyNet of flow matching, found {type(module).__name__}")
    groups = {layer.num_groups for layer in module.modules() if isinstance(layer, nn.GroupNorm)}
    if module.time_scale != 1 or groups - {GROUPS}:
        raise ValueError(
            "the original's net has time_scale 1 and 32 groups in every norm, and would compute something else with "
            f"these weights (time_scale {module.time_scale}, groups {sorted(groups)}); use `zoo export`"
        )


def convert(source: Path | str | nn.Module, target: Path | str) -> dict[str, Any]:
    """Convert an original to ours, or ours to an original.

    Args:
        source: a file of the lineage; or our checkpoint, our run folder, or a net.
        target: for an original, a `.ckpt` file, or else an export folder; for ours, the file to write.

    Returns:
        What was written: source, target, tensors, and notes on what was left out or assumed.

    Raises:
        FileNotFoundError: when there is no source.
        ValueError: when the layout is not known or the target format cannot hold the source.
    """
    target = Path(target)
    if isinstance(source, nn.Module):
        to_original(source, target)
        return {"system": "flow", "target": [str(target)], "tensors": len(source.state_dict())}
    source = Path(source)
    if is_original(source):
        return _to_ours(source, target)
    return _from_checkpoint(find_checkpoint(source), target)


def _to_ours(source: Path, target: Path) -> dict[str, Any]:
    original = read(source)
    net = build_net(original, source)
    path = {"class_path": "zoo.flow.ConditionalOT", "init_args": {"sigma_min": original.setting("sigma_min")}}
    parts = {PART: net_spec(original, source), "path": path}
    specs = {
        "version": zoo.__version__,
        "system": "flow",
        "task": TASK,
        "inference": INFERENCE,
        "parts": parts,
        "original_config": original.settings,
    }
    missing = [name for name in ("image_resolution", "sigma_min") if name not in original.settings]
    if isinstance(net, ToyNet) and "image_resolution" in missing:
        missing.remove("image_resolution")
    notes = [f"{name} is not in the file: {DEFAULTS[name]} assumed" for name in missing]
    if target.suffix == ".ckpt":
        write_converted(target, specs, {f"{PART}.{key}": value for key, value in net.state_dict().items()})
        notes.append("no training state: start from it with init_from")
    else:
        write_export(target, specs, {PART: net}, source.name)
    return {
        "system": "flow",
        "source": str(source),
        "target": [str(target)],
        "tensors": len(original.state),
        "notes": notes,
    }


def _from_checkpoint(source: Path, target: Path) -> dict[str, Any]:
    """Write the net of a checkpoint of ours as an original; its averaged weights, where it has them."""
    ours = read_ours(source, INFERENCE)
    specs = ours.specs
    net = build_part(specs, PART)
    net.load_state_dict(parts_state(ours.state, PART))
    path = specs["parts"]["path"]
    if not path["class_path"].endswith(".ConditionalOT") or specs["parts"].get("prediction", "velocity") != "velocity":
        raise ValueError(f"{source}: the original knows velocities on the path ConditionalOT only, not {path}")
    recorded = {key: value for key, value in (specs.get("original_config") or {}).items() if key in SETTINGS}
    to_original(net, target, {**recorded, "sigma_min": path["init_args"]["sigma_min"]})
    return {
        "system": "flow",
        "source": str(source),
        "target": [str(target)],
        "tensors": len(net.state_dict()),
        "notes": ["averaged (EMA) weights"] if ours.averaged else [],
    }
