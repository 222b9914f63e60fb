"""AudioSR's and ProjectLily's files from our runs, checkpoints and exports."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors.torch import load_file
from torch import Tensor, nn

from zoo.audiosr.convert.ours import CONDITION, FEATURES, INFERENCE, PREDICTIONS, OriginalModel, transpose_kernels
from zoo.audiosr.convert.read import (
    AVERAGE,
    CONDITIONER,
    CONFIG_NAME,
    COPY,
    NORM_GROUPS,
    PREFIXES,
    VOCODERS,
    Layout,
    State,
    describe_nets,
    interpret,
    read_config,
    squashed,
    tables,
    transformers_per_down_block,
    transposed,
)
from zoo.audiosr.diffusion.schedule import CosineDiffusion
from zoo.audiosr.nets.denoiser import Denoiser
from zoo.audiosr.nets.features import MelFeatures
from zoo.audiosr.nets.frozen import FrozenVocoder
from zoo.audiosr.nets.global_encoder import GlobalEncoder
from zoo.common.atomic import write_atomic
from zoo.convert.checkpoints import read_ours
from zoo.hifigan.nets.generator import Generator
from zoo.runs.checkpoints import find_checkpoints, step_of
from zoo.runs.export import WEIGHTS_NAME, export_config, is_export, parts_state
from zoo.runs.folder import find_checkpoint
from zoo.runs.load import build_parts

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
        nets: classes and arguments by component, as `zoo.audiosr.convert.read.describe_nets` tells them.
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


FINAL = "final_ema.pt"
MODELV1_ENCODER = (128, 2, 1024)  # channels, layers, positions that its class insists on
_BEST = re.compile(r"best-step_(\d+)-")
_FUSIONS = {"replace": "modelV1", "residual": "model.py"}


@dataclass
class Nets:
    """What goes into a file.

    Attributes:
        vae: autoencoder, in the axis order of the layout.
        net: denoiser, likewise.
        vocoder: or None.
        averaged: averaged parameters of the denoiser by name, likewise; empty without.
        diffusion: the process.
        features: the front end; None where it is not known.
        condition_vae: the condition's autoencoder, likewise; None where the first serves both.
    """

    vae: nn.Module
    net: Denoiser
    vocoder: Generator | None
    averaged: State = field(default_factory=dict)
    diffusion: CosineDiffusion = field(default_factory=CosineDiffusion)
    features: MelFeatures | None = None
    condition_vae: nn.Module | None = None


def layout_of(net: Denoiser, vae: nn.Module, suffix: str) -> Layout:
    """The layout that can hold a denoiser and its autoencoder.

    Args:
        net: the denoiser.
        vae: its autoencoder.
        suffix: of the file; ".bin" asks for AudioSR's.

    Raises:
        ValueError: when none can; the message says why.
    """
    unet, encoder = net.unet, net.global_encoder
    if unet.fusion not in ("none", *_FUSIONS):
        raise ValueError(
            f"the originals know no fusion {unet.fusion!r}, only none, replace (modelV1) and residual (model.py); use "
            "`zoo export`"
        )
    norms = next(module.num_groups for module in vae.modules() if isinstance(module, nn.GroupNorm))
    for name, groups in (("UNet", unet.norm_groups), ("autoencoder", norms)):
        if groups != NORM_GROUPS:
            raise ValueError(
                f"the originals' norms have {NORM_GROUPS} groups, those of this {name} {groups}; use `zoo export`"
            )
    down = transformers_per_down_block(unet.state_dict()) or 2
    layout: Layout = "modelV1" if down == 2 else "model.py"
    if encoder is None and suffix == ".bin" and down == 2:
        return "audiosr"
    if (scale := float(net.latent_scale)) != 1.0:
        raise ValueError(
            f"latent_scale is {scale:g}; ProjectLily does not apply it to the condition, so the net would hear another "
            "one in its files: train with latent_scale: 1.0, or use `zoo export` (a net without a global encoder, with "
            "2 transformers per down block, fits AudioSR's .bin)"
        )
    if encoder is None:
        return layout
    if _FUSIONS[unet.fusion] != layout or suffix == ".bin":
        raise ValueError(
            f"fusion {unet.fusion!r} with {down} transformers per down block and suffix {suffix!r} is no original's: "
            "modelV1 is replace with 2, model.py residual with 1, both in a .pt file"
        )
    layers: Any = encoder.transformer.layers
    sizes = (encoder.pos_encoding.shape[2], len(layers), encoder.pos_encoding.shape[1])
    if layout == "modelV1" and sizes != MODELV1_ENCODER:
        raise ValueError(
            f"modelV1's global encoder has {MODELV1_ENCODER} channels, layers and positions, this one {sizes}"
        )
    return layout


def content_of(nets: Nets, layout: Layout) -> dict[str, Any]:
    """What a file of the original holds, with the names of its layout.

    Args:
        nets: in the axis order of the layout.
        layout: of the file.

    Returns:
        `state_dict` and, for ProjectLily's, `ema`: float32 on the CPU.
    """
    net = nets.net
    parts: dict[str, nn.Module | None] = {
        "global_encoder": net.global_encoder,
        "unet": net.unet,
        "vae": nets.vae,
        "vocoder": nets.vocoder,
    }
    state = tables(nets.diffusion.steps, net.latent_scale, layout)
    weights: State = {}
    for name, part in parts.items():
        if part is not None:
            state |= _named(part.state_dict(), PREFIXES[name])
            weights |= _named(dict(part.named_parameters()), PREFIXES[name])
    conditioner = nets.condition_vae or nets.vae
    state |= _named(conditioner.state_dict(), CONDITIONER[layout])
    weights |= _named(dict(conditioner.named_parameters()), CONDITIONER[layout])
    averaged = {_theirs(name): value for name, value in nets.averaged.items()}
    if layout == "audiosr":
        start = PREFIXES["unet"]
        buffers = {AVERAGE + squashed(key.removeprefix(start)): value for key, value in averaged.items()}
        return {"state_dict": state | buffers}
    return {"state_dict": state, "ema": {**weights, **averaged} if averaged else {}}


def write(nets: Nets, layout: Layout, path: Path, config: dict[str, Any] | None = None) -> list[str]:
    """Write a file, and the configuration beside it where there is none.

    Args:
        nets: in the axis order of the layout.
        layout: of the file.
        path: of the file.
        config: the original's configuration; one is made of the nets without.

    Returns:
        Notes.

    Raises:
        ValueError: when the configuration that is already there is another net's.
    """
    notes = []
    if nets.vocoder is not None and (reason := unfit(nets.vocoder, layout)):
        notes.append(f"vocoder left out: {reason}")
        nets.vocoder = None
    content = content_of(nets, layout)
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(CONFIG_NAME)
    if not beside.exists():
        described = describe_nets(interpret(content, path, {}))
        for name, vae in (("vae", nets.vae), (COPY, nets.condition_vae)):
            if name in described and vae is not None:
                described[name][1]["dropout"] = next(m.p for m in vae.modules() if isinstance(m, nn.Dropout))
        settings = config or original_config(described, nets.net, layout, nets.diffusion, nets.features)
        if nets.vocoder is not None:
            settings = {**settings, "vocoder": vocoder_section(nets.vocoder)}
        text = yaml.safe_dump(settings, sort_keys=False)
        write_atomic(beside, lambda file: file.write(text.encode()))
    else:
        if not (is_theirs := _is_theirs(beside)):
            notes.append(f"{beside} is another program's: the original needs its own configuration with this file")
        described = describe_nets(interpret(content, path, read_config(beside) if is_theirs else {}))
        if nets.net.global_encoder is not None:
            check_heads(described["global_encoder"][1], nets.net.global_encoder, beside)
        if nets.vocoder is not None:
            check_vocoder(described["vocoder"][1], nets.vocoder, beside)
    write_atomic(path, lambda file: torch.save(content, file))
    return notes


def to_original(model: OriginalModel, path: Path) -> None:
    """Write the nets of a file again, in its layout; see `zoo.audiosr.convert.to_original`."""
    nets = Nets(model.vae, model.unet.net, model.vocoder, condition_vae=model.condition_vae)
    if model.layout != "audiosr":
        nets.averaged = {name: value.detach() for name, value in model.unet.net.named_parameters()}
    write(nets, model.layout, path, model.config)


def from_ours(source: Path, target: Path) -> dict[str, Any]:
    """Write a run, checkpoint or export of ours; see `zoo.audiosr.convert.convert`."""
    jobs = _jobs(source, target)
    notes: list[str] = []
    layout = ""
    for file, origin in jobs.items():
        nets, config = _read(origin)
        layout = layout_of(nets.net, nets.vae, file.suffix)
        if layout != "audiosr":
            nets = _mel_first(nets)
        notes += write(nets, layout, file, config)
        if not nets.averaged:
            notes.append(f"{origin.name} has no averaged weights: {file.name} holds the live ones alone")
    return {
        "system": "audiosr",
        "source": str(source),
        "layout": layout,
        "target": [str(file) for file in jobs],
        "notes": list(dict.fromkeys(notes)),
    }


def _jobs(source: Path, target: Path) -> dict[Path, Path]:
    """Files to write, each with the checkpoint or export that it is made of."""
    whole = is_export(source)
    newest = source if whole else find_checkpoint(source)
    if target.suffix in (".pt", ".bin"):
        return {target: newest}
    if target.suffix:
        raise ValueError(f"{target}: the originals' files end in .pt (ProjectLily) or .bin (AudioSR); or name a folder")
    if whole:
        return {target / FINAL: source}
    if source.is_file():
        return {target / original_name(source): source}
    best = find_checkpoints(source, "best-step_*.ckpt")[:1]
    steps = find_checkpoints(source, "step_*.ckpt")[:1]
    return {**{target / original_name(path): path for path in (*best, *steps)}, target / FINAL: newest}


def original_name(checkpoint: Path) -> str:
    """The original's name of a checkpoint of ours."""
    best = _BEST.match(checkpoint.name)
    return f"best_step_{int(best[1])}.pt" if best else f"step_{step_of(checkpoint)}.pt"


def _read(source: Path) -> tuple[Nets, dict[str, Any]]:
    """The nets of a checkpoint or export, time first, and the original's configuration it remembers."""
    averaged: State = {}
    if is_export(source):
        specs, folder = export_config(source), source
        state: Mapping[str, Tensor] = load_file(source / WEIGHTS_NAME)
        if specs["inference"] != INFERENCE:
            raise ValueError(f"{source}: expected an export for {INFERENCE}, found {specs['inference']}")
    else:
        ours = read_ours(source, INFERENCE)
        specs = {**ours.specs, "frozen": ours.checkpoint.get("frozen", {})}
        state, folder = ours.checkpoint["state_dict"], source.parent
        averaged = parts_state((ours.checkpoint.get("ema") or {}).get("shadow", {}), "net")
    parts = build_parts(specs, folder)
    net = parts["net"]
    net.load_state_dict(parts_state(dict(state), "net"))
    kept = dict(net.named_parameters())
    vocoder = parts["vocoder"].net if isinstance(parts.get("vocoder"), FrozenVocoder) else None
    averaged = {name: value for name, value in averaged.items() if name in kept}
    own = parts[CONDITION].net if parts.get(CONDITION) is not None else None
    nets = Nets(parts["autoencoder"].net, net, vocoder, averaged, parts["diffusion"], parts["features"], own)
    return nets, dict(specs.get("original_config") or {})


def _mel_first(nets: Nets) -> Nets:
    """The same nets for images with the mel axis first; in place."""
    for net in (nets.vae, nets.net.unet, nets.condition_vae):
        if net is not None:
            transpose_kernels(net)
    unet = {name: value for name, value in nets.averaged.items() if name.startswith("unet.")}
    nets.averaged = {**nets.averaged, **transposed(unet)}
    return nets


def _named(state: Mapping[str, Tensor], prefix: str) -> State:
    return {
        prefix + name: (value.detach().cpu().float() if value.is_floating_point() else value.cpu()).clone()
        for name, value in state.items()
    }


def _theirs(name: str) -> str:
    """A denoiser's name (`unet.out.2.bias`) in the original."""
    part, _, rest = name.partition(".")
    return PREFIXES[part] + rest


def _is_theirs(path: Path) -> bool:
    try:
        read_config(path)
    except ValueError:
        return False
    return True
