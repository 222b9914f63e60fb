"""Reading AudioSR's and ProjectLily's files: which layout, which nets, and whether they are whole."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor, nn

from zoo.audiosr.convert_names import COPY, SCALE, Layout, State, split, squashed, unwrapped
from zoo.audiosr.convert_sizes import (
    autoencoder_arguments,
    encoder_arguments,
    generator_arguments,
    transformers_per_down_block,
    unet_arguments,
)
from zoo.audiosr.global_encoder import GlobalEncoder
from zoo.audiosr.unet import UNet
from zoo.audiosr.vae import Autoencoder
from zoo.common.bounded_yaml import safe_load
from zoo.hifigan.generator import Generator
from zoo.training.foreign import load_foreign

CONFIG_NAME = "config.yaml"
CONTAINERS = ("model", "state_dict", "model_state_dict")  # of the weights, in ProjectLily's order
AVERAGES = ("ema", "ema_state_dict")
STEP = re.compile(r"(?:^|_)step_(\d+)\.")
TARGETS: dict[str, Layout] = {"modelV1": "modelV1", "model": "model.py"}  # module of model.target


@dataclass
class Original:
    """What a file holds.

    Attributes:
        path: of the file.
        layout: "audiosr", "modelV1" or "model.py" (both ProjectLily's).
        parts: tensors by component and name: unet, global_encoder, vae, vocoder, conditioner, tables, others; float32.
        averaged: averaged parameters of unet and global_encoder, likewise; empty where there are none.
        left_out: how many tensors nothing runs, by what they are of.
        config: the original's configuration; {} without one.
        step: optimizer steps trained, as far as the file or its name says.
    """

    path: Path
    layout: Layout
    parts: dict[str, State]
    averaged: dict[str, State] = field(default_factory=dict)
    left_out: dict[str, int] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    step: int = 0

    @property
    def is_mel_first(self) -> bool:
        """Whether the first image axis is the mel's, as in both of ProjectLily's."""
        return self.layout != "audiosr"

    @property
    def has_own_conditioner(self) -> bool:
        """Whether the conditioner's autoencoder is another one than the first stage's."""
        first = self.parts.get("vae", {})
        copy = self.parts.get(COPY, {})
        return any(key not in first or not torch.equal(first[key], value) for key, value in copy.items())

    @property
    def scale(self) -> Tensor:
        """Factor on latents."""
        return self.parts.get("tables", {}).get(SCALE, torch.tensor(1.0)).reshape(())

    def settings(self, name: str) -> dict[str, Any]:
        """A section of the configuration: that of `model.params`, and there the params of a class."""
        section = params(self.config).get(name) or {}
        return dict(section.get("params") or {})

    def condition_settings(self) -> dict[str, Any]:
        """`params` of the conditioner's own first stage; {} where the configuration has none."""
        for section in _table(params(self.config), "cond_stage_config").values():
            return _table(_table(_table(section, "params"), "first_stage_config"), "params")
        return {}


def params(config: Mapping[str, Any]) -> dict[str, Any]:
    """`model.params` of a configuration."""
    return dict((config.get("model") or {}).get("params") or {})


def read_config(path: Path) -> dict[str, Any]:
    """Read an original's config.yaml.

    Raises:
        FileNotFoundError: when there is no such file.
        ValueError: when it is none of AudioSR's or ProjectLily's.
    """
    if not path.is_file():
        raise FileNotFoundError(f"no configuration at {path}")
    try:
        config = safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not YAML: {error}") from error
    if not isinstance(config, dict) or "unet_config" not in _table(_table(config, "model"), "params"):
        found = ", ".join(map(str, list(config)[:6])) if isinstance(config, dict) else type(config).__name__
        raise ValueError(f"{path} is no configuration of AudioSR: expected model.params.unet_config, found {found}")
    return config


def _table(value: Any, key: str) -> dict[str, Any]:
    found = value.get(key) if isinstance(value, dict) else None
    return found if isinstance(found, dict) else {}


def read(path: Path, config: Mapping[str, Any] | Path | str | None = None) -> Original:
    """Read a file without executing anything in it.

    Args:
        path: `.pt` of ProjectLily, or AudioSR's `.bin`.
        config: the original's configuration or its path; None takes a config.yaml beside the file, if it is one.

    Raises:
        FileNotFoundError: when there is no such file or configuration.
        ValueError: when its layout is not known, or configuration and file do not belong together.
    """
    if not path.is_file():
        raise FileNotFoundError(f"no file at {path}")
    if isinstance(config, Mapping):
        settings = dict(config)
    elif config is not None:
        settings = read_config(Path(config))
    else:
        try:
            settings = read_config(path.with_name(CONFIG_NAME))
        except (FileNotFoundError, ValueError):
            settings = {}
    return interpret(load_foreign(path), path, settings)


def interpret(content: Any, path: Path, config: dict[str, Any]) -> Original:
    """Recognise what a loaded file holds.

    Raises:
        ValueError: when it is none of AudioSR's or ProjectLily's; the message lists a few keys.
    """
    known = "known are AudioSR's .bin and ProjectLily's .pt, with tensors named model.diffusion_model.* and the like"
    if not isinstance(content, Mapping):
        raise ValueError(f"{path} holds a {type(content).__name__}, not a dict of tensors; {known}")
    container = next((name for name in CONTAINERS if isinstance(content.get(name), Mapping)), None)
    flat = content if container is None else content[container]
    tensors = {str(key): value for key, value in flat.items() if isinstance(value, Tensor)}
    parts, left_out = split(tensors)
    unet, vae = parts.get("unet", {}), parts.get("vae", {})
    first = vae.get("encoder.conv_in.weight")
    is_known = "input_blocks.0.0.weight" in unet or (first is not None and first.dim() == 4 and first.shape[1] == 1)
    if "zoo" in content or not is_known:
        raise ValueError(f"{path}: unknown layout with keys {', '.join(map(str, list(flat)[:5]))}; {known}")
    match = STEP.search(path.name)
    step = content.get("global_step", int(match[1]) if match else 0)
    buffers = parts.pop("average", {})
    layout = _layout(tensors, parts, any(name in content for name in AVERAGES), config, path)
    given: Mapping[str, Any] = next((content[name] for name in AVERAGES if isinstance(content.get(name), Mapping)), {})
    averaged: dict[str, State] = {}
    if given:
        own = split({str(key): value for key, value in given.items() if isinstance(value, Tensor)})[0]
        averaged = {name: own[name] for name in ("unet", "global_encoder") if name in own}
    elif layout == "audiosr" and buffers:
        averaged = {"unet": {name: buffers[squashed(name)] for name in unet if squashed(name) in buffers}}
    if buffers and layout != "audiosr":
        left_out["averages that ProjectLily never updates"] = len(buffers)
    return Original(path, layout, parts, averaged, left_out, config, step if isinstance(step, int) else 0)


def _conditioner(name: str) -> str:
    """How a tensor's name calls the conditioner; empty for others."""
    steps = unwrapped(name).split(".")
    return steps[1] if steps[0] == "cond_stage_models" and len(steps) > 1 else ""


def _layout(
    tensors: Mapping[str, Tensor], parts: Mapping[str, State], has_average: bool, config: Mapping[str, Any], path: Path
) -> Layout:
    """By the names; for files without a global encoder also by the configuration.

    Raises:
        ValueError: when the configuration says another one.
    """
    copies = {_conditioner(key) for key in tensors} - {""}
    single = not copies and transformers_per_down_block(parts.get("unet", {})) == 1
    found: Layout = "audiosr"
    if "concat_lowpass_cond" in copies or single:
        found = "model.py"
    elif has_average or "global_encoder" in parts:
        found = "modelV1"
    target = str(_table(config, "model").get("target") or "")
    wanted = TARGETS.get(target.partition(".")[0], found)
    if wanted == found or (found == "audiosr" and wanted == "modelV1"):
        return wanted
    raise ValueError(
        f"{path} has the names of {found} and the configuration those of {wanted} (model.target: {target}); give the "
        "configuration that it was trained with"
    )


def describe_nets(original: Original) -> dict[str, tuple[type[nn.Module], dict[str, Any]]]:
    """Classes and arguments of the nets that a file holds, by component.

    Raises:
        ValueError: when sizes cannot be told, or the configuration says others.
    """
    parts, layout, path = original.parts, original.layout, original.path
    unet = {**_table(original.config, "data"), **original.settings("unet_config")}
    found: dict[str, tuple[type[nn.Module], dict[str, Any]]] = {}
    if "unet" in parts:
        found["unet"] = (UNet, unet_arguments(parts["unet"], layout, unet, path))
    if "global_encoder" in parts:
        found["global_encoder"] = (GlobalEncoder, encoder_arguments(parts["global_encoder"], layout, unet, path))
    if "vae" in parts:
        settings = original.settings("first_stage_config")
        found["vae"] = (Autoencoder, autoencoder_arguments(parts["vae"], settings, path))
    if original.has_own_conditioner:
        found[COPY] = (Autoencoder, autoencoder_arguments(parts[COPY], original.condition_settings(), path))
    if "vocoder" in parts:
        settings = original.config.get("vocoder") or {}
        found["vocoder"] = (Generator, generator_arguments(parts["vocoder"], layout, settings, path))
    return found
