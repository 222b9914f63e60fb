"""Vocoders of the Miipher-2 reproduction: the SSL vocoder's Lightning file and the older files with a prenet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from zoo.hifigan.convert.read import (
    PREFIXES,
    build_generator,
    renamed,
    split_prefixes,
    to_legacy_keys,
    with_weight_norm,
)
from zoo.hifigan.convert.read import Original as Nets
from zoo.hifigan.convert.recipe import CONFIG_NAME, GENERATOR_KEYS, read_config
from zoo.hifigan.convert.write import refuse_variants
from zoo.hifigan.nets.conditioners import Conditioner, ConformerConditioner, PrenetConditioner, sinusoids
from zoo.hifigan.nets.generator import Generator
from zoo.miipher.convert.names import State, unwrapped

SAMPLE_RATE = 22050  # of every published vocoder
# buffers of the prenet that ours computes
POSITIONS, SCALE = "pos_enc.pe", "scale"
MAX_POSITIONS = 10_000
# the file of 2025-06-17
BY_STATE_DICT = {"generator": "model_state_dict", "mpd": "mpd_state_dict", "msd": "msd_state_dict"}
# our argument, the original's key
CONFORMER_KEYS = {
    "dim": "conformer_dim",
    "heads": "conformer_num_heads",
    "ffn_dim": "conformer_ffn_dim",
    "kernel_size": "conformer_conv_kernel_size",
    "dropout": "conformer_dropout",
}
LAYOUTS = ("ssl-vocoder", "prenet", "prenet with EMA", "state dicts", "accelerate")


@dataclass
class Vocoder:
    """What a vocoder file holds.

    Attributes:
        layout: one of `LAYOUTS`.
        nets: generator (with its front end), mpd and msd by our names.
        settings: what the file itself says about the generator, in the original's words.
        ema: averaged parameters of the generator by our names; empty when the file has none.
        step: batches trained, as far as it says.
    """

    layout: str
    nets: Nets
    settings: dict[str, Any] = field(default_factory=dict)
    ema: State = field(default_factory=dict)
    step: int | None = None


def vocoder_of(content: Mapping[str, Any], source: Path) -> Vocoder | None:
    """Recognise a vocoder among what a file holds.

    Args:
        content: the loaded file, OmegaConf nodes already plain.
        source: named in errors.

    Returns:
        The vocoder, or None when it is none of Miipher-2's.

    Raises:
        ValueError: when a prenet's positions are not the sinusoids that ours computes.
    """
    step = content.get("steps", content.get("step", content.get("global_step")))
    if _is_state(content.get("generator_modules")):
        modules = unwrapped(content["generator_modules"])
        vocoder = _with_prenet("prenet with EMA", _below(modules), content, source)
        if _is_state(content.get("ema_g")):
            parts = _below(unwrapped(content["ema_g"]))
            vocoder.ema = _merged(parts, source).state
    elif _is_state(content.get("generator")) and _is_state(content.get("prenet")):
        vocoder = _with_prenet(
            "prenet", {name: unwrapped(content[name]) for name in ("prenet", "generator")}, content, source
        )
    elif _is_state(content.get("model_state_dict")) and _is_generator(content["model_state_dict"]):
        parts = {ours: unwrapped(content[name]) for ours, name in BY_STATE_DICT.items() if _is_state(content.get(name))}
        vocoder = Vocoder("state dicts", renamed("hifi-gan", parts))
    elif "zoo" not in content and _is_state(content.get("state_dict")):
        state = split_prefixes(content["state_dict"], PREFIXES["ssl-vocoder"])
        if not any(key.startswith("generator.conv_pre.") for key in state):
            return None
        vocoder = Vocoder("ssl-vocoder", renamed("ssl-vocoder", _below(state)), _lightning_settings(content))
    else:
        return None
    vocoder.step = int(step) if isinstance(step, int) else None
    return vocoder


def vocoder_of_parts(parts: Mapping[str, State], source: Path) -> Vocoder:
    """Put a vocoder together from the models of an Accelerate folder (prenet, generator, mpd, msd)."""
    return _with_prenet("accelerate", parts, parts, source)


def kind_of(state: Mapping[str, Tensor]) -> str | None:
    """Which net of a vocoder run a state dict is: generator, prenet, mpd, msd, or None for another."""
    if _is_generator(state):
        return "generator"
    names = unwrapped(state)
    if "proj.weight" in names and (SCALE in names or POSITIONS in names or set(names) == {"proj.weight", "proj.bias"}):
        return "prenet"
    weights = [
        value for name, value in names.items() if name.startswith("discriminators.0.convs.0.") and value.dim() > 2
    ]
    if not weights:
        return None
    return "mpd" if weights[-1].dim() == 4 else "msd"  # a period discriminator convolves in two dimensions


def build_vocoder(
    vocoder: Vocoder, source: Path, config: Mapping[str, Any] | Path | str | None, ema: bool
) -> Generator:
    """Build the generator of a vocoder file.

    Args:
        vocoder: what was read.
        source: the file; a config.json beside it is taken where it says nothing itself.
        config: the original's settings, or the path of its config.json.
        ema: take the averaged parameters where the file has them.

    Raises:
        FileNotFoundError: when nothing says the sizes.
        ValueError: when settings and weights do not fit.
    """
    nets = vocoder.nets
    if ema and vocoder.ema:
        nets = Nets(nets.layout, nets.state | vocoder.ema, nets.training, nets.reflect)
    return build_generator(nets, settings_of(vocoder, source, config), source)


def settings_of(vocoder: Vocoder, source: Path, config: Mapping[str, Any] | Path | str | None = None) -> dict[str, Any]:
    """The generator's settings in the original's words: those given, the file's own, config.json beside it.

    Raises:
        FileNotFoundError: when there are none.
    """
    if isinstance(config, Mapping):
        return vocoder.settings | dict(config)
    if config is not None:
        return vocoder.settings | read_config(Path(config))
    if "upsample_rates" in vocoder.settings:
        return vocoder.settings
    beside = (source if source.is_dir() else source.parent) / CONFIG_NAME
    if not beside.is_file():
        raise FileNotFoundError(
            f"{source} does not say the generator's sizes: put HiFi-GAN's {CONFIG_NAME} beside it or pass config="
        )
    return vocoder.settings | read_config(beside)


def vocoder_file(generator: Generator, others: Mapping[str, Tensor], sample_rate: int, step: int) -> dict[str, Any]:
    """What an original vocoder file holds for a generator of ours.

    Args:
        generator: with a Conformer front end or none, for the Lightning layout; with a prenet, for the older one.
        others: `mpd.*` and `msd.*` as far as they are to be written.
        sample_rate: of the audio, in Hz.
        step: batches trained.

    Returns:
        The content of the file.

    Raises:
        ValueError: when the generator is of another kind.
    """
    front = generator.conditioner
    if generator.padding_mode != "zeros" or (
        front is not None and type(front) not in (ConformerConditioner, PrenetConditioner)
    ):
        raise ValueError(
            f"Miipher-2's files hold no generator with front end {type(front).__name__} and padding_mode "
            f"{generator.padding_mode!r}; use `zoo export`"
        )
    refuse_variants(generator)
    own = with_weight_norm(generator.state_dict())  # an exported generator is fused
    state = to_legacy_keys({**{f"generator.{key}": value for key, value in own.items()}, **others})
    if isinstance(front, PrenetConditioner):
        return _prenet_file(state, front, step)
    theirs = {ours: name for name, ours in PREFIXES["ssl-vocoder"]}
    named = {}
    for key, value in state.items():
        part, _, rest = key.partition(".")
        named[theirs[f"{part}."] + rest.removeprefix("conditioner.")] = value
    return {
        "epoch": 0,
        "global_step": step,
        "pytorch-lightning_version": "2.5.1",  # of the original; Lightning migrates files by it
        "state_dict": named,
        "hyper_parameters": {"cfg": {"sample_rate": sample_rate, "model": {"generator": _settings(generator)}}},
    }


def hifigan_config(generator: Generator, sample_rate: int) -> dict[str, Any]:
    """The config.json beside an older vocoder file."""
    front = generator.conditioner
    channels = generator.in_channels if front is None else front.out_channels
    return {
        **_settings(generator),
        "num_mels": channels,
        "sampling_rate": sample_rate,
        "hop_size": generator.hop_length,
    }


def _settings(generator: Generator) -> dict[str, Any]:
    settings = {theirs: getattr(generator, ours) for theirs, ours in GENERATOR_KEYS.items() if theirs != "num_mels"}
    settings = {key: listed(value) for key, value in settings.items()} | {"num_input_channels": generator.in_channels}
    front = generator.conditioner
    if isinstance(front, ConformerConditioner):
        settings |= {CONFORMER_KEYS[name]: value for name, value in front_arguments(front).items()}
    return settings


def front_arguments(front: Conditioner | None) -> dict[str, Any]:
    """Sizes of an original's front end as constructor arguments of ours."""
    if isinstance(front, ConformerConditioner):
        layer: Any = front.conformer1.conformer_layers[0]
        return {
            "dim": front.input_projection.out_features,
            "heads": layer.self_attn.num_heads,
            "ffn_dim": layer.ffn1.sequential[1].out_features,
            "kernel_size": layer.conv_module.sequential[2].kernel_size[0],
            "dropout": layer.self_attn_dropout.p,
        }
    if not isinstance(front, PrenetConditioner):
        return {}
    arguments = {"layers": len(front.layers), "scale": front.scale}
    for first in front.layers[:1]:
        sizes: Any = first
        arguments |= {"heads": sizes.mha.num_heads, "kernel_size": sizes.conv.depthwise.kernel_size[0]}
    return arguments


def listed(value: Any) -> Any:
    """Tuples as lists, also within."""
    return [listed(entry) for entry in value] if isinstance(value, tuple) else value


def _prenet_file(state: State, front: PrenetConditioner, step: int) -> dict[str, Any]:
    """The layout of the older training script: a dict of nets."""
    parts = _below(state)
    prefix = "conditioner."
    generator = {key: value for key, value in parts.pop("generator").items() if not key.startswith(prefix)}
    prenet: State = {SCALE: torch.tensor(front.scale)}
    if len(front.layers):
        prenet[POSITIONS] = sinusoids(MAX_POSITIONS, front.in_channels)
    prenet |= {key.removeprefix(f"generator.{prefix}"): value for key, value in state.items() if f".{prefix}" in key}
    return {"prenet": prenet, "generator": generator, **parts, "steps": step}


def _with_prenet(layout: str, parts: Mapping[str, State], content: Mapping[str, Any], source: Path) -> Vocoder:
    prenet = parts.get("prenet", {})
    settings = {"prenet_scale": float(prenet[SCALE])} if SCALE in prenet else {}
    extra = {name: unwrapped(content[name]) for name in ("mpd", "msd") if _is_state(content.get(name))}
    return Vocoder(layout, _merged({**parts, **extra}, source), settings)


def _merged(parts: Mapping[str, State], source: Path) -> Nets:
    """Put the prenet into the generator's slot for a front end; its buffers are computed by ours."""
    prenet = dict(parts.get("prenet", {}))
    prenet.pop(SCALE, None)
    positions = prenet.pop(POSITIONS, None)
    if positions is not None and not torch.allclose(positions, sinusoids(*positions.shape), atol=1e-4):
        raise ValueError(f"{source}: the prenet's {POSITIONS} are no sinusoids, which is all that our prenet computes")
    generator = {**{f"conditioner.{key}": value for key, value in prenet.items()}, **parts.get("generator", {})}
    nets = {"generator": generator, **{name: parts[name] for name in ("mpd", "msd") if name in parts}}
    return renamed("hifi-gan", nets)


def _lightning_settings(content: Mapping[str, Any]) -> dict[str, Any]:
    """The generator's section of the SSL vocoder's saved configuration."""
    config = (content.get("hyper_parameters") or {}).get("cfg") or {}
    settings = dict((config.get("model") or {}).get("generator") or {})
    if "sample_rate" in config:
        settings["sampling_rate"] = config["sample_rate"]
    return settings


def _below(state: Mapping[str, Tensor]) -> dict[str, State]:
    parts: dict[str, State] = {}
    for key, value in state.items():
        part, _, rest = key.partition(".")
        parts.setdefault(part, {})[rest] = value
    return parts


def _is_state(value: Any) -> bool:
    return isinstance(value, Mapping) and bool(value) and all(isinstance(tensor, Tensor) for tensor in value.values())


def _is_generator(state: Mapping[str, Any]) -> bool:
    names = unwrapped(state)
    return any(name.startswith("conv_pre.") for name in names) and any(name.startswith("ups.") for name in names)
