"""The original's configuration of nets of ours."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from zoo.audiosr.convert_names import COPY, Layout
from zoo.audiosr.convert_ours import FEATURES, PREDICTIONS
from zoo.audiosr.convert_sizes import VOCODERS
from zoo.audiosr.denoiser import Denoiser
from zoo.audiosr.diffusion import CosineDiffusion
from zoo.audiosr.features import MelFeatures
from zoo.audiosr.global_encoder import GlobalEncoder
from zoo.hifigan.generator import Generator

MODULES: dict[Layout, str] = {"modelV1": "modelV1", "model.py": "model", "audiosr": "audiosr"}


def heads_of(encoder: GlobalEncoder) -> int:
    """Heads of a global encoder's attention, which the shapes of its weights do not show."""
    layers: Any = encoder.transformer.layers
    return layers[0].self_attn.num_heads


def vocoder_section(vocoder: Generator) -> dict[str, Any]:
    """What the shapes of a vocoder's weights do not show; for reading it here, the original's code has the numbers."""
    return {
        "upsample_rates": list(vocoder.upsample_rates),
        "resblock_dilation_sizes": [list(dilations) for dilations in vocoder.resblock_dilation_sizes],
    }


def unfit(vocoder: Generator, layout: Layout) -> str:
    """Why a layout cannot hold a vocoder; empty where it can."""
    slope, padding = VOCODERS[layout]
    if vocoder.last_slope != slope or vocoder.output_padding not in (None, padding):
        return (
            f"{layout} computes with last_slope {slope} and output_padding {padding}, it was trained with "
            f"{vocoder.last_slope} and {vocoder.output_padding}"
        )
    if vocoder.conditioner is not None or vocoder.padding_mode != "zeros":
        return f"{layout}'s has no conditioner and pads with zeros, this one with {vocoder.padding_mode}"
    return ""


def check_heads(read: Mapping[str, Any], encoder: GlobalEncoder, beside: Path) -> None:
    """Refuse a file that would be read with another number of attention heads than its global encoder's.

    Args:
        read: arguments that the file is read with.
        encoder: that is written.
        beside: the configuration beside the file.

    Raises:
        ValueError: when they differ.
    """
    if read["heads"] != heads_of(encoder):
        raise ValueError(
            f"the global encoder has {heads_of(encoder)} heads, with {beside} they would be read as {read['heads']}; "
            "name a target in another folder"
        )


def check_vocoder(read: Mapping[str, Any], vocoder: Generator, beside: Path) -> None:
    """Refuse a file that would be read with other rates or dilations than the vocoder's.

    Args:
        read: arguments that the file is read with.
        vocoder: that is written.
        beside: the configuration beside the file.

    Raises:
        ValueError: when they differ.
    """
    for key, value in vocoder_section(vocoder).items():
        if read[key] != value:
            raise ValueError(
                f"the vocoder's {key} are {value}, with {beside} they would be read as {read[key]}; name a target in "
                "another folder"
            )


def original_config(
    nets: Mapping[str, tuple[type[nn.Module], Mapping[str, Any]]],
    net: Denoiser,
    layout: Layout,
    diffusion: CosineDiffusion,
    features: MelFeatures | None,
) -> dict[str, Any]:
    """The sections `model` and `data` that the original builds such nets from.

    Args:
        nets: classes and arguments by component, as `zoo.audiosr.convert_files.describe_nets` tells them.
        net: the denoiser.
        layout: of the file.
        diffusion: the process.
        features: the front end; None leaves `data` out.
    """
    module = MODULES[layout]
    first_stage = _first_stage(nets["vae"][1], module, features.n_mels if features else None)
    keys = {"cond_stage_key": "lowpass_mel", "conditioning_key": "concat"}
    own = nets.get(COPY, nets["vae"])[1]
    inner = {"first_stage_config": _first_stage(own, module, features.n_mels if features else None)}
    condition: dict[str, Any] = {"target": f"{module}.VAEFeatureExtract"}
    # modelV1's class refuses these two as arguments
    condition |= {**keys, "params": inner} if layout == "modelV1" else {"params": {**keys, **inner}}
    model = {
        "first_stage_config": first_stage,
        "beta_schedule": "cosine",
        "timesteps": diffusion.steps,
        "parameterization": {ours: theirs for theirs, ours in PREDICTIONS.items()}[diffusion.prediction],
        "scale_factor": float(net.latent_scale),
        "cond_stage_config": {"concat_lowpass_cond": condition},
        "unet_config": {"target": f"{module}.UNetModel", "params": _unet(nets, net)},
    }
    config: dict[str, Any] = {"model": {"target": f"{module}.LatentDiffusion", "params": model}}
    if features is not None:
        mel = features.mel
        values = {
            "sample_rate": features.sample_rate,
            "n_fft": features.n_fft,
            "hop_length": features.hop_length,
            "n_mels": features.n_mels,
            "f_min": mel.f_min,
            "f_max": mel.f_max,
        }
        config["data"] = {theirs: values[ours] for ours, theirs in FEATURES.items()}
    return config


def _first_stage(arguments: Mapping[str, Any], module: str, n_mels: int | None) -> dict[str, Any]:
    latents = arguments["latent_channels"]
    sizes = {
        "double_z": True,
        "z_channels": latents,
        "resolution": 256,
        "in_channels": 1,
        "out_ch": 1,
        "ch": arguments["channels"],
        "ch_mult": list(arguments["multipliers"]),
        "num_res_blocks": arguments["blocks"],
        "attn_resolutions": [],
        "dropout": arguments["dropout"],
        **({"mel_bins": n_mels} if n_mels else {}),
    }
    return {"target": f"{module}.AudioSRAutoEncoderKL", "params": {"ddconfig": sizes, "embed_dim": latents}}


def _unet(nets: Mapping[str, tuple[type[nn.Module], Mapping[str, Any]]], net: Denoiser) -> dict[str, Any]:
    arguments, encoder = nets["unet"][1], net.global_encoder
    more: dict[str, Any] = {"use_global_encoder": encoder is not None}
    if encoder is not None:
        sizes = nets["global_encoder"][1]
        more |= {
            "global_context_dim": sizes["context_channels"],
            "global_encoder_hidden_dim": sizes["channels"],
            "global_encoder_heads": heads_of(encoder),
            "global_encoder_layers": sizes["layers"],
        }
    return {
        "image_size": 64,
        "in_channels": arguments["in_channels"],
        "out_channels": arguments["out_channels"],
        "model_channels": arguments["channels"],
        "attention_resolutions": list(arguments["attention_factors"]),
        "num_res_blocks": arguments["blocks"],
        "channel_mult": list(arguments["multipliers"]),
        "num_head_channels": net.unet.head_channels,
        "use_spatial_transformer": True,
        "transformer_depth": 1,
        "context_dim": None,
        **more,
    }
