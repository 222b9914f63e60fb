"""Vocoders of the Miipher-2 reproduction: the SSL vocoder's Lightning file and the older files with a prenet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from zoo.convert import tensor_names
from zoo.convert.settings import to_plain_value
from zoo.convert.tensor_names import State, group_by_component, is_state_dict, strip_state_wrappers
from zoo.hifigan.convert import layouts
from zoo.hifigan.convert.config import GENERATOR_KEYS
from zoo.hifigan.convert.layouts import SSL_VOCODER, HifiganFile, rename_tensors
from zoo.hifigan.nets.conditioners import ConformerConditioner, PrenetConditioner, sinusoids
from zoo.hifigan.nets.generator import Generator

SAMPLE_RATE = 22050  # of every published vocoder
# buffers of the prenet that ours computes
POSITIONS, SCALE = "pos_enc.pe", "scale"
MAX_POSITIONS = 10_000
# the file of 2025-06-17
BY_STATE_DICT = {"generator": "model_state_dict", "mpd": "mpd_state_dict", "msd": "msd_state_dict"}


@dataclass
class VocoderFile(HifiganFile):
    """Contents of a vocoder file: generator (with its front end), mpd and msd by our names.

    The layout is "ssl-vocoder", "prenet", "prenet with EMA", "state dicts" or "accelerate"; `settings` are the file's
    on the generator, by the original's keys, and `training` has the batches trained as `step`.
    """

    ema: State = field(default_factory=dict)  # averaged parameters of the generator by our names


def detect_vocoder(content: Mapping[str, Any], source: Path) -> VocoderFile | None:
    """Recognise a vocoder of Miipher-2 among the plain contents of a file, or return None."""
    if is_state_dict(content.get("generator_modules")):
        parts = group_by_component(strip_state_wrappers(content["generator_modules"]))
        vocoder = with_prenet("prenet with EMA", parts, content, source)
        if is_state_dict(content.get("ema_g")):
            vocoder.ema = _merge_prenet(group_by_component(strip_state_wrappers(content["ema_g"])), source).state
    elif is_state_dict(content.get("generator")) and is_state_dict(content.get("prenet")):
        parts = {name: strip_state_wrappers(content[name]) for name in ("prenet", "generator")}
        vocoder = with_prenet("prenet", parts, content, source)
    elif is_state_dict(content.get("model_state_dict")) and _is_generator(content["model_state_dict"]):
        states = {net: content[name] for net, name in BY_STATE_DICT.items() if is_state_dict(content.get(name))}
        nets = {net: strip_state_wrappers(state) for net, state in states.items()}
        vocoder = _vocoder_file("state dicts", rename_tensors("", nets))
    elif "zoo" not in content and is_state_dict(content.get("state_dict")):
        state = SSL_VOCODER.read(content["state_dict"])[0]
        if not any(key.startswith("generator.conv_pre.") for key in state):
            return None
        config = (content.get("hyper_parameters") or {}).get("cfg") or {}
        settings = dict((config.get("model") or {}).get("generator") or {})
        if "sample_rate" in config:
            settings["sampling_rate"] = config["sample_rate"]
        vocoder = _vocoder_file("ssl-vocoder", rename_tensors("", group_by_component(state)), settings)
    else:
        return None
    step = content.get("steps", content.get("step", content.get("global_step")))
    if isinstance(step, int):
        vocoder.training["step"] = int(step)
    return vocoder


def vocoder_part(state: Mapping[str, Tensor]) -> str | None:
    """Recognise a state dict of a vocoder run: generator, prenet, mpd, msd, or None for another."""
    if _is_generator(state):
        return "generator"
    names = strip_state_wrappers(state)
    if "proj.weight" in names and (SCALE in names or POSITIONS in names or set(names) == {"proj.weight", "proj.bias"}):
        return "prenet"
    weights = [
        value for name, value in names.items() if name.startswith("discriminators.0.convs.0.") and value.dim() > 2
    ]
    if not weights:
        return None
    return "mpd" if weights[-1].dim() == 4 else "msd"  # a period discriminator convolves in two dimensions


def write_vocoder(
    generator: Generator, discriminators: Mapping[str, Tensor], sample_rate: int, step: int
) -> dict[str, Any]:
    """Return the contents of an original's vocoder file for a generator of ours, by its front end.

    With a Conformer or none the layout is Lightning's, with a prenet the older one; others are a ValueError.
    """
    front = generator.conditioner
    if generator.padding_mode != "zeros" or (
        front is not None and type(front) not in (ConformerConditioner, PrenetConditioner)
    ):
        raise ValueError(
            f"Miipher-2's files hold no generator with front end {type(front).__name__} and padding_mode "
            f"{generator.padding_mode!r}; use `zoo export`"
        )
    layouts.check_convertible(generator)
    weights = layouts.with_weight_norm(generator.state_dict())  # an exported generator has none
    state = layouts.to_original_names({**tensor_names.add_prefix(weights, "generator."), **discriminators})
    if isinstance(front, PrenetConditioner):
        parts = group_by_component(state)
        state = parts.pop("generator")
        prenet: State = {SCALE: torch.tensor(front.scale)}
        if len(front.layers):
            prenet[POSITIONS] = sinusoids(MAX_POSITIONS, front.in_channels)
        prenet |= tensor_names.select_prefix(state, "conditioner.")
        plain = {key: value for key, value in state.items() if not key.startswith("conditioner.")}
        return {"prenet": prenet, "generator": plain, **parts, "steps": step}
    original_state = SSL_VOCODER.write(
        {key.replace("generator.conditioner.", "generator.", 1): value for key, value in state.items()}
    )
    return {
        "epoch": 0,
        "global_step": step,
        "pytorch-lightning_version": "2.5.1",  # of the original; Lightning migrates files by it
        "state_dict": original_state,
        "hyper_parameters": {"cfg": {"sample_rate": sample_rate, "model": {"generator": _settings(generator)}}},
    }


def hifigan_config(generator: Generator, sample_rate: int) -> dict[str, Any]:
    """Return the contents of config.json next to an older vocoder file."""
    front = generator.conditioner
    channels = generator.in_channels if front is None else front.out_channels
    return {
        **_settings(generator),
        "num_mels": channels,
        "sampling_rate": sample_rate,
        "hop_size": generator.hop_length,
    }


def _settings(generator: Generator) -> dict[str, Any]:
    settings = {key: getattr(generator, zoo) for key, zoo in GENERATOR_KEYS.items() if key != "num_mels"}
    settings = to_plain_value(settings) | {"num_input_channels": generator.in_channels}
    front = generator.conditioner
    if isinstance(front, ConformerConditioner):
        layer: Any = front.conformer1.conformer_layers[0]
        settings |= {
            "conformer_dim": front.input_projection.out_features,
            "conformer_num_heads": layer.self_attn.num_heads,
            "conformer_ffn_dim": layer.ffn1.sequential[1].out_features,
            "conformer_conv_kernel_size": layer.conv_module.sequential[2].kernel_size[0],
            "conformer_dropout": layer.self_attn_dropout.p,
        }
    return settings


def _vocoder_file(layout: str, nets: HifiganFile, settings: Mapping[str, Any] | None = None) -> VocoderFile:
    return VocoderFile(layout, nets.state, dict(settings or {}), reflect=nets.reflect)


def with_prenet(layout: str, parts: Mapping[str, State], content: Mapping[str, Any], source: Path) -> VocoderFile:
    """Join the nets of a vocoder; the discriminators are among `content` where there are any."""
    prenet = parts.get("prenet", {})
    settings = {"prenet_scale": float(prenet[SCALE])} if SCALE in prenet else {}
    extra = {name: strip_state_wrappers(content[name]) for name in ("mpd", "msd") if is_state_dict(content.get(name))}
    return _vocoder_file(layout, _merge_prenet({**parts, **extra}, source), settings)


def _merge_prenet(parts: Mapping[str, State], source: Path) -> HifiganFile:
    """Put the prenet into the generator's slot for a front end; its buffers are computed by ours."""
    prenet = dict(parts.get("prenet", {}))
    prenet.pop(SCALE, None)
    positions = prenet.pop(POSITIONS, None)
    if positions is not None and not torch.allclose(positions, sinusoids(*positions.shape), atol=1e-4):
        raise ValueError(f"{source}: the prenet's {POSITIONS} are no sinusoids, which is all that our prenet computes")
    generator = tensor_names.add_prefix(prenet, "conditioner.") | parts.get("generator", {})
    return rename_tensors("", {**parts, "generator": generator})


def _is_generator(state: Mapping[str, Any]) -> bool:
    names = strip_state_wrappers(state)
    return any(name.startswith("conv_pre.") for name in names) and any(name.startswith("ups.") for name in names)
