"""Arguments of our nets from the tensors of an original's file and its configuration."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from zoo.audiosr.convert.layouts import LAYOUTS, PROJECTION, AudioSRFile, count_transformers
from zoo.audiosr.nets.denoiser import REDUCTION
from zoo.convert.engine import OriginalFile
from zoo.convert.network_description import (
    component,
    count_blocks,
    fill_description,
    setting,
    size_of_axis,
    sizes_of_axis,
)

# Keys of the configuration -> arguments of our nets.
UNET_KEYS = {
    "in_channels": "in_channels",
    "out_channels": "out_channels",
    "model_channels": "channels",
    "attention_resolutions": "attention_factors",
    "num_res_blocks": "blocks",
    "channel_mult": "multipliers",
    "num_head_channels": "head_channels",
}
ENCODER_KEYS = {
    "global_context_dim": "context_channels",
    "global_encoder_hidden_dim": "channels",
    "global_encoder_heads": "heads",
    "global_encoder_layers": "layers",
}
ENCODER_SIZES = ("global_encoder_hidden_dim", "global_encoder_layers")
VOCODER_KEYS = {key: key for key in ("upsample_kernel_sizes", "resblock_kernel_sizes")}
NORM_GROUPS, HEAD_CHANNELS, VAE_DROPOUT, N_MELS = 32, 32, 0.1, 256  # where no configuration says it


def _levels(unet: OriginalFile) -> list[list[int]]:
    """Numbers of the UNet's residual blocks on the way down, level by level."""
    levels: list[list[int]] = [[]]
    for index in range(1, count_blocks("input_blocks.")(unet)):
        if f"input_blocks.{index}.0.op.weight" in unet.state:
            levels.append([])
        else:
            levels[-1].append(index)
    return levels


def _transformers_per_level(unet: OriginalFile) -> list[int]:
    return [count_transformers(unet.state, level[0]) for level in _levels(unet)]


def _multipliers(unet: OriginalFile) -> list[int]:
    widths = [len(unet.state[f"input_blocks.{level[0]}.0.in_layers.2.weight"]) for level in _levels(unet)]
    return [width // len(unet.state["input_blocks.0.0.weight"]) for width in widths]


def _context_channels(unet: OriginalFile) -> int | None:
    return next((value.shape[1] for name, value in unet.state.items() if name.endswith(".global_proj.weight")), None)


def _n_mels(encoder: OriginalFile) -> int:
    projection = encoder.state.get(f"{PROJECTION}weight")
    if projection is None:
        return int(encoder.settings.get("n_mels", N_MELS))
    return projection.shape[1] // encoder.state["pos_encoding"].shape[2] * REDUCTION


def _heads(encoder: OriginalFile) -> int:
    """Heads by the configuration of such an encoder; modelV1 ignores its keys, so another's sizes mean nothing."""
    sizes = (encoder.state["pos_encoding"].shape[2], count_blocks("transformer.layers.")(encoder))
    applies = all(encoder.settings.get(key, value) == value for key, value in zip(ENCODER_SIZES, sizes, strict=True))
    heads = LAYOUTS[encoder.layout].encoder[1]
    return int(encoder.settings.get("global_encoder_heads", heads)) if applies else heads


_upsample_kernels = sizes_of_axis("ups.{}.weight", 2)


def _resblock_kernels(vocoder: OriginalFile) -> list[int]:
    first = "convs1" if "resblocks.0.convs1.0.weight" in vocoder.state else "convs"
    parallel = count_blocks("resblocks.")(vocoder) // count_blocks("ups.")(vocoder)
    return [vocoder.state[f"resblocks.{i}.{first}.0.weight"].shape[2] for i in range(parallel)]


def _dilations(vocoder: OriginalFile) -> list[list[int]]:
    kernels = _resblock_kernels(vocoder)
    return [list(each) for each in vocoder.settings.get("resblock_dilation_sizes") or [[1, 3, 5]] * len(kernels)]


UNET = component(
    "zoo.audiosr.UNet",
    in_channels=size_of_axis("input_blocks.0.0.weight", 1),
    out_channels=size_of_axis("out.2.weight"),
    channels=size_of_axis("input_blocks.0.0.weight"),
    multipliers=_multipliers,
    blocks=lambda unet: len(_levels(unet)[0]),
    attention_factors=lambda unet: [2**level for level, count in enumerate(_transformers_per_level(unet)) if count],
    transformers_per_down_block=lambda unet: next(
        filter(None, _transformers_per_level(unet)), LAYOUTS[unet.layout].transformers
    ),
    fusion=lambda unet: "none" if _context_channels(unet) is None else LAYOUTS[unet.layout].fusion,
    context_channels=_context_channels,
    norm_groups=NORM_GROUPS,
    checkpointing=False,
    head_channels=setting("num_head_channels", HEAD_CHANNELS, int),
)
ENCODER = component(
    "zoo.audiosr.GlobalEncoder",
    n_mels=_n_mels,
    channels=size_of_axis("pos_encoding", 2),
    layers=count_blocks("transformer.layers."),
    context_channels=size_of_axis("global_proj.weight"),
    positions=size_of_axis("pos_encoding", 1),
    heads=_heads,
    dropout=0.1,
)
AUTOENCODER = component(
    "zoo.blocks.AutoencoderKL",
    in_channels=1,
    out_channels=1,
    block_out_channels=sizes_of_axis("encoder.down_blocks.{}.resnets.0.conv1.weight"),
    layers_per_block=count_blocks("encoder.down_blocks.0.resnets."),
    latent_channels=size_of_axis("post_quant_conv.weight"),
    norm_num_groups=NORM_GROUPS,
    dropout=setting("dropout", VAE_DROPOUT, float),
)
VOCODER = component(
    "zoo.hifigan.Generator",
    in_channels=size_of_axis("conv_pre.weight", 1),
    initial_channels=size_of_axis("conv_pre.weight"),
    upsample_kernel_sizes=_upsample_kernels,
    resblock=lambda vocoder: "1" if "resblocks.0.convs1.0.weight" in vocoder.state else "2",
    resblock_kernel_sizes=_resblock_kernels,
    upsample_rates=lambda vocoder: list(
        vocoder.settings.get("upsample_rates") or [kernel // 2 for kernel in _upsample_kernels(vocoder)]
    ),
    resblock_dilation_sizes=_dilations,
    last_slope=lambda vocoder: LAYOUTS[vocoder.layout].last_slope,
    output_padding=lambda vocoder: LAYOUTS[vocoder.layout].output_padding,
)


def original_settings(arguments: Mapping[str, Any], keys: Mapping[str, str]) -> dict[str, Any]:
    """Return an original's settings of a net with these arguments."""
    return {key: arguments[name] for key, name in keys.items()}


def autoencoder_settings(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the original's settings of an `AutoencoderKL` with these arguments; ValueError where it has none."""
    widths = list(arguments["block_out_channels"])
    if any(width % widths[0] for width in widths):
        raise ValueError(f"block_out_channels {widths}: the original's are multiples of the first; use `zoo export`")
    return {
        "ch": widths[0],
        "ch_mult": [width // widths[0] for width in widths],
        "num_res_blocks": arguments["layers_per_block"],
        "z_channels": arguments["latent_channels"],
    }


class Net(NamedTuple):
    """A net of a file: its description, whose leaves read the file, and keys of the configuration that must agree."""

    description: dict[str, Any]
    keys: dict[str, str] | None  # to arguments of the net; None for `autoencoder_settings`
    section: str


NETS = {
    "unet": Net(UNET, {**UNET_KEYS, "global_context_dim": "context_channels"}, "unet_config"),
    "global_encoder": Net(ENCODER, {key: ENCODER_KEYS[key] for key in ENCODER_SIZES}, "unet_config"),
    "vae": Net(AUTOENCODER, None, "first_stage_config: ddconfig"),
    "vocoder": Net(VOCODER, VOCODER_KEYS, "vocoder"),
}


def describe_nets(file: AudioSRFile) -> dict[str, dict[str, Any]]:
    """Describe the nets of a file by component; ValueError where shapes and configuration disagree."""
    descriptions = {}
    for name, net in NETS.items():
        if name not in file.parts:
            continue
        source = OriginalFile(file.layout, file.parts[name], file.component_settings(name))
        descriptions[name] = fill_description(net.description, source, f"{file.path} ({name})")
        if name != "global_encoder" or file.layout == "model.py":
            _check_settings(descriptions[name]["init_args"], source.settings, net, file.path)
    encoder = descriptions.get("global_encoder", {}).get("init_args")
    if encoder and (encoder["heads"] < 1 or encoder["channels"] % encoder["heads"]):
        raise ValueError(
            f"{file.path}: global_encoder_heads {encoder['heads']} cannot divide the encoder's {encoder['channels']} "
            "channels"
        )
    return descriptions


def _check_settings(arguments: Mapping[str, Any], settings: Mapping[str, Any], net: Net, path: Path | None) -> None:
    """Refuse a configuration that differs from what the tensors' shapes say."""
    values = autoencoder_settings(arguments) if net.keys is None else original_settings(arguments, net.keys)
    for key, value in values.items():
        expected = settings.get(key)
        if key == "attention_resolutions" and expected is not None:
            expected = sorted(expected)
        if None not in (value, expected) and value != expected:
            raise ValueError(
                f"{path}: {key} is {value} by its tensors, {expected} in the configuration's {net.section}"
            )
