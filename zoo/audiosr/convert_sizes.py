"""Arguments of our nets from AudioSR's and ProjectLily's tensors; a configuration says what shapes do not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from zoo.audiosr.convert_names import ADAPTIVE, Layout, State
from zoo.audiosr.global_encoder import REDUCTION

NORM_GROUPS = 32  # of every norm of the originals
VAE_DROPOUT = 0.1
# What ProjectLily's classes hold where no configuration of such an encoder says otherwise; modelV1 swallows the keys,
# so that of a model.py beside its file says nothing.
ENCODER_HEADS = {"modelV1": 4, "model.py": 8}
HEAD_CHANNELS = 32
N_MELS = 256
DILATIONS = [1, 3, 5]
# last_slope and output_padding of the vocoders' code
VOCODERS: dict[Layout, tuple[float, int]] = {"audiosr": (0.01, 0), "modelV1": (0.1, 1), "model.py": (0.1, 1)}


def unet_arguments(state: State, layout: Layout, settings: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Arguments of `UNet`.

    Args:
        state: its tensors.
        layout: of the file.
        settings: `unet_config.params` of the configuration; {} without one.
        path: named in errors.

    Raises:
        ValueError: when the shapes do not say the sizes, or the configuration says others.
    """
    found = _told(lambda: _unet(state, layout), path, "UNet")
    found["head_channels"] = int(settings.get("num_head_channels", HEAD_CHANNELS))
    names = {
        "in_channels": "in_channels",
        "out_channels": "out_channels",
        "model_channels": "channels",
        "channel_mult": "multipliers",
        "num_res_blocks": "blocks",
        "attention_resolutions": "attention_factors",
        "global_context_dim": "context_channels",
    }
    if found["context_channels"] is None:
        names.pop("global_context_dim")
    _agree(found, settings, names, path, "unet_config")
    return found


def _unet(state: State, layout: Layout) -> dict[str, Any]:
    channels, in_channels = state["input_blocks.0.0.weight"].shape[:2]
    levels: list[list[int]] = [[]]
    for index in range(1, _count(state, "input_blocks")):
        if f"input_blocks.{index}.0.op.weight" in state:
            levels.append([])
        else:
            levels[-1].append(index)
    transformers = {level[0]: _transformers(state, level[0]) for level in levels}
    counts = [count for count in transformers.values() if count]
    context = [value.shape[1] for name, value in state.items() if name.endswith(".global_proj.weight")]
    fusion = "none" if not context else "residual" if layout == "model.py" else "replace"
    return {
        "in_channels": in_channels,
        "out_channels": len(state["out.2.weight"]),
        "channels": channels,
        "multipliers": [len(state[f"input_blocks.{level[0]}.0.in_layers.2.weight"]) // channels for level in levels],
        "blocks": len(levels[0]),
        "attention_factors": [2**i for i, level in enumerate(levels) if transformers[level[0]]],
        "transformers_per_down_block": counts[0] if counts else 1 if layout == "model.py" else 2,
        "fusion": fusion,
        "context_channels": context[0] if context else None,
        "norm_groups": NORM_GROUPS,
        "checkpointing": False,
    }


def _transformers(state: State, block: int) -> int:
    return sum(name.startswith(f"input_blocks.{block}.") and name.endswith(".proj_in.weight") for name in state)


def transformers_per_down_block(state: State) -> int:
    """Transformers in a row on the way down; 0 where there is none."""
    return max((_transformers(state, block) for block in range(_count(state, "input_blocks"))), default=0)


def autoencoder_arguments(state: State, settings: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Arguments of `Autoencoder`.

    Args:
        state: its tensors.
        settings: `first_stage_config.params` of the configuration; {} without one.
        path: named in errors.

    Raises:
        ValueError: when the shapes do not say the sizes, or the configuration says others.
    """
    found = _told(lambda: _autoencoder(state), path, "autoencoder")
    sizes = settings.get("ddconfig") or {}
    found["dropout"] = float(sizes.get("dropout", VAE_DROPOUT))
    names = {"ch": "channels", "ch_mult": "multipliers", "num_res_blocks": "blocks", "z_channels": "latent_channels"}
    _agree(found, sizes, names, path, "first_stage_config: ddconfig")
    return found


def _autoencoder(state: State) -> dict[str, Any]:
    channels = len(state["encoder.conv_in.weight"])
    levels = _count(state, "encoder.down")
    return {
        "channels": channels,
        "multipliers": [len(state[f"encoder.down.{i}.block.0.conv1.weight"]) // channels for i in range(levels)],
        "blocks": _count(state, "encoder.down.0.block"),
        "latent_channels": len(state["post_quant_conv.weight"]),
        "norm_groups": NORM_GROUPS,
    }


def encoder_arguments(state: State, layout: Layout, settings: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Arguments of `GlobalEncoder`.

    Args:
        state: its tensors.
        layout: of the file.
        settings: `unet_config.params` of the configuration, and `n_mels`; {} without one.
        path: named in errors.

    Raises:
        ValueError: when the shapes do not say the sizes, or the configuration says others.
    """
    found = _told(lambda: _encoder(state, int(settings.get("n_mels", N_MELS))), path, "global encoder")
    heads = ENCODER_HEADS["model.py" if layout == "model.py" else "modelV1"]
    sizes = {"global_encoder_hidden_dim": found["channels"], "global_encoder_layers": found["layers"]}
    if all(settings.get(key, size) == size for key, size in sizes.items()):
        heads = int(settings.get("global_encoder_heads", heads))
    if layout == "model.py":
        names = {"global_encoder_hidden_dim": "channels", "global_encoder_layers": "layers"}
        _agree(found, settings, names, path, "unet_config")
    if heads < 1 or found["channels"] % heads:
        raise ValueError(
            f"{path}: global_encoder_heads {heads} cannot divide the encoder's {found['channels']} channels"
        )
    return {**found, "heads": heads, "dropout": 0.1}


def _encoder(state: State, n_mels: int) -> dict[str, Any]:
    _, positions, channels = state["pos_encoding"].shape
    projection = state.get(f"{ADAPTIVE}weight")
    return {
        "n_mels": n_mels if projection is None else projection.shape[1] // channels * REDUCTION,
        "channels": channels,
        "layers": _count(state, "transformer.layers"),
        "context_channels": len(state["global_proj.weight"]),
        "positions": positions,
    }


def generator_arguments(state: State, layout: Layout, settings: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Arguments of the vocoder's `Generator`; rates that no configuration says are half their kernels.

    Args:
        state: its tensors.
        layout: of the file.
        settings: of HiFi-GAN under their usual keys; {} without.
        path: named in errors.

    Raises:
        ValueError: when the shapes do not say the sizes, or the settings say others.
    """
    found = _told(lambda: _generator(state), path, "vocoder")
    kernels = found["upsample_kernel_sizes"]
    rates = settings.get("upsample_rates") or [kernel // 2 for kernel in kernels]
    count = len(found["resblock_kernel_sizes"])
    dilations = settings.get("resblock_dilation_sizes") or [DILATIONS] * count
    names = {"upsample_kernel_sizes": "upsample_kernel_sizes", "resblock_kernel_sizes": "resblock_kernel_sizes"}
    _agree(found, settings, names, path, "vocoder")
    slope, padding = VOCODERS[layout]
    more = {"upsample_rates": list(rates), "resblock_dilation_sizes": [list(each) for each in dilations]}
    return {**found, **more, "last_slope": slope, "output_padding": padding}


def _generator(state: State) -> dict[str, Any]:
    initial, in_channels = state["conv_pre.weight"].shape[:2]
    stages = _count(state, "ups")
    parallel = _count(state, "resblocks") // stages
    kind = "1" if "resblocks.0.convs1.0.weight" in state else "2"
    first = "convs1" if kind == "1" else "convs"
    return {
        "in_channels": in_channels,
        "initial_channels": initial,
        "upsample_kernel_sizes": [state[f"ups.{i}.weight"].shape[2] for i in range(stages)],
        "resblock": kind,
        "resblock_kernel_sizes": [state[f"resblocks.{i}.{first}.0.weight"].shape[2] for i in range(parallel)],
    }


def _count(state: Mapping[str, Tensor], prefix: str) -> int:
    """One more than the largest number behind a prefix."""
    start = len(prefix) + 1
    numbers = [name[start:].partition(".")[0] for name in state if name.startswith(f"{prefix}.")]
    return 1 + max((int(number) for number in numbers if number.isdigit()), default=-1)


def _told(read: Callable[[], dict[str, Any]], path: Path, what: str) -> dict[str, Any]:
    try:
        return read()
    except (KeyError, IndexError, ValueError, ZeroDivisionError) as error:
        raise ValueError(f"{path}: its tensors do not say the sizes of its {what}, it lacks {error}") from error


def _agree(
    found: Mapping[str, Any], settings: Mapping[str, Any], names: Mapping[str, str], path: Path, where: str
) -> None:
    """Refuse a configuration of another net."""
    for theirs, ours in names.items():
        wanted, value = settings.get(theirs), found[ours]
        if wanted is None:
            continue
        if ours == "attention_factors":
            wanted = sorted(wanted)
        if wanted != value:
            raise ValueError(f"{path}: its tensors say {theirs} {value}, the configuration's {where} {wanted}")
