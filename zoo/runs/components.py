"""The components that a run, checkpoint or export holds: their description and weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from zoo import __version__
from zoo.common.foreign_files import load_json
from zoo.runs.checkpoints import find_checkpoint, load_checkpoint
from zoo.runs.model_description import FORMAT, validate_description

WEIGHTS_NAME = "model.safetensors"  # of an export
CONFIG_NAME = "config.json"


class Components(NamedTuple):
    """What can be loaded of a run, checkpoint or export."""

    description: dict[str, Any]  # `inference`, `components`, `options`, `frozen`, `step` and `averaged`
    state: dict[str, Tensor]  # by `<component>.<name>`
    fused: list[str]  # names of the components whose norms are folded

    def load_weights(self, components: Mapping[str, Any]) -> None:
        """Load the weights of built components, by name; what is no module has none."""
        for name, net in components.items():
            if isinstance(net, nn.Module):
                if name in self.fused:
                    net.remove_weight_norm_()  # type: ignore[operator]
                prefix = f"{name}."
                names = [key for key in self.state if key.startswith(prefix)]
                net.load_state_dict({key.removeprefix(prefix): self.state[key] for key in names})


def is_export(path: Path) -> bool:
    """Tell whether a path is an export folder of the zoo; other projects use the same file names."""
    try:
        config = load_json((path / CONFIG_NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and {"zoo", "inference"} <= config.keys() and (path / WEIGHTS_NAME).is_file()


def read_export_config(folder: Path) -> dict[str, Any]:
    """Read an export's description; ValueError where it is malformed or has an older format."""
    try:
        return validate_description(load_json((folder / CONFIG_NAME).read_text(encoding="utf-8")))
    except ValueError as error:
        raise ValueError(f"{folder / CONFIG_NAME}: {error}") from error


def read_export_weights(folder: Path) -> dict[str, Tensor]:
    """Read an export's tensors; ValueError where the file is damaged."""
    try:
        return load_file(folder / WEIGHTS_NAME)
    except SafetensorError as error:
        raise ValueError(f"{folder / WEIGHTS_NAME} is damaged or not complete ({error}); copy it again") from error


def read_components(path: Path, ema: bool = True) -> Components:
    """Read description and tensors of a run, checkpoint or export; with `ema` averaged weights where there are any.

    Raises:
        FileNotFoundError: there is nothing at the path.
        ValueError: the file is corrupt or does not describe its components.
    """
    if is_export(path):
        config = read_export_config(path)
        return Components(config, read_export_weights(path), config.get("fused", []))
    file = find_checkpoint(path)
    checkpoint = load_checkpoint(file)
    if "zoo" not in checkpoint:
        raise ValueError(
            f"{file} does not describe its components: it was not written by `zoo fit`; for an original's file use "
            "`zoo convert`, from Python set task.specs and train with the callback CheckpointContents"
        )
    state = dict(checkpoint["state_dict"])
    shadow = (checkpoint.get("ema") or {}).get("shadow", {}) if ema else {}
    state.update(shadow)
    extra = {"step": checkpoint.get("global_step"), "frozen": checkpoint.get("frozen", {})}
    extra["averaged"] = bool(shadow)
    return Components({**checkpoint["zoo"], **extra}, state, [])


def save_components(folder: Path, weights: dict[str, Tensor], description: Mapping[str, Any], **facts: Any) -> None:
    """Write weights and description into an existing folder, as an export holds them.

    Args:
        weights: by `<component>.<name>`, contiguous, on the CPU.
        **facts: further entries of config.json.
    """
    keys = ("inference", "task", "components", "options", "frozen")
    entries = {key: description[key] for key in keys if key in description}
    config = {"zoo": __version__, "format": FORMAT, **entries, **facts}
    (folder / WEIGHTS_NAME).write_bytes(save(weights, metadata={"format": "pt"}))
    (folder / CONFIG_NAME).write_text(json.dumps(config, indent=2), encoding="utf-8")
