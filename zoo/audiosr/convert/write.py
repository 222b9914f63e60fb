"""AudioSR's and ProjectLily's files from our runs, checkpoints and exports."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors.torch import load_file
from torch import Tensor, nn

from zoo.audiosr.convert.autoencoder_names import to_original_autoencoder
from zoo.audiosr.convert.ours import CONDITION, FEATURES, INFERENCE, PREDICTIONS, OriginalModel, transpose_kernels
from zoo.audiosr.convert.read import (
    CONFIG_NAME,
    COPY,
    ENCODER_KEYS,
    LAYOUTS,
    NORM_GROUPS,
    PREFIXES,
    SCALE,
    UNET_KEYS,
    State,
    autoencoder_settings,
    interpret,
    read_config,
    squashed,
    transformers_per_down_block,
    transposed,
)
from zoo.audiosr.diffusion.schedule import CosineDiffusion
from zoo.audiosr.nets.denoiser import Denoiser
from zoo.audiosr.nets.features import MelFeatures
from zoo.audiosr.nets.frozen import FrozenVocoder
from zoo.blocks.autoencoder import AutoencoderKL
from zoo.common.atomic_files import write_atomic
from zoo.convert.engine import read_zoo_checkpoint
from zoo.convert.tensor_names import add_prefix, select_prefix
from zoo.hifigan.nets.base import WaveformGenerator
from zoo.hifigan.nets.generator import Generator
from zoo.runs.checkpoints import find_checkpoint, find_checkpoints, parse_step
from zoo.runs.components import WEIGHTS_NAME, is_export, read_export_config
from zoo.runs.load import build_components

FINAL = "final_ema.pt"
MODELV1_ENCODER = (128, 2, 1024)  # channels, layers, positions that its class insists on
PREFIX = {component: prefix for prefix, component in PREFIXES.items()}
_BEST = re.compile(r"best-step_(\d+)-")
# A first stage's and a UNet's configuration in their order; None stands for what the nets say.
FIRST_STAGE: dict[str, Any] = {
    "double_z": True, "z_channels": None, "resolution": 256, "in_channels": 1, "out_ch": 1, "ch": None, "ch_mult": None,
    "num_res_blocks": None, "attn_resolutions": [], "dropout": None,
}  # fmt: skip
TRANSFORMER = {"use_spatial_transformer": True, "transformer_depth": 1, "context_dim": None}


@dataclass
class Nets:
    """What goes into a file, with the image axes of its layout."""

    vae: nn.Module
    net: Denoiser
    vocoder: WaveformGenerator | None
    averaged: State = field(default_factory=dict)  # parameters of the denoiser by name; empty without
    diffusion: CosineDiffusion = field(default_factory=CosineDiffusion)
    features: MelFeatures | None = None  # None where they are not known
    condition_vae: nn.Module | None = None  # None where the first serves both


def layout_of(net: Denoiser, vae: nn.Module, suffix: str) -> str:
    """The layout that can hold a denoiser and its autoencoder; the suffix ".bin" asks for AudioSR's.

    Raises:
        ValueError: when none can; the message says why.
    """
    unet, encoder = net.unet, net.global_encoder
    if unet.fusion not in ("none", "replace", "residual"):
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
    layout = "modelV1" if down == 2 else "model.py"
    if encoder is None and suffix == ".bin" and down == 2:
        return "audiosr"
    if (scale := float(net.latent_scale)) != 1.0:
        raise ValueError(
            f"latent_scale is {scale:g}; ProjectLily does not apply it to the condition, so the net would get another "
            "one in its files: train with latent_scale: 1.0, or use `zoo export` (a net without a global encoder, with "
            "2 transformers per down block, fits AudioSR's .bin)"
        )
    if encoder is None:
        return layout
    if unet.fusion != LAYOUTS[layout].fusion or suffix == ".bin":
        raise ValueError(
            f"fusion {unet.fusion!r} with {down} transformers per down block and suffix {suffix!r} is no original's: "
            "modelV1 is replace with 2, model.py residual with 1, both in a .pt file"
        )
    sizes = (encoder.pos_encoding.shape[2], len(encoder.transformer.layers), encoder.pos_encoding.shape[1])
    if layout == "modelV1" and sizes != MODELV1_ENCODER:
        raise ValueError(
            f"modelV1's global encoder has {MODELV1_ENCODER} channels, layers and positions, this one {sizes}"
        )
    return layout


def _unfit(vocoder: WaveformGenerator, layout: str) -> str:
    """Why a layout cannot hold a vocoder; empty where it can."""
    if not isinstance(vocoder, Generator):
        return f"{layout}'s is HiFi-GAN's generator, this one is a {type(vocoder).__name__}"
    slope, padding = LAYOUTS[layout].last_slope, LAYOUTS[layout].output_padding
    if vocoder.last_slope != slope or vocoder.output_padding not in (None, padding):
        return (
            f"{layout} computes with last_slope {slope} and output_padding {padding}, it was trained with "
            f"{vocoder.last_slope} and {vocoder.output_padding}"
        )
    if vocoder.conditioner is not None or vocoder.padding_mode != "zeros":
        return f"{layout}'s has no conditioner and pads with zeros, this one with {vocoder.padding_mode}"
    return ""


def tables(steps: int, scale: Tensor, layout: str) -> State:
    """The buffers of the original's diffusion, equal to the last bit, and the scale of the latents.

    ProjectLily took a switch for the weight of the posterior's variance, which makes it 0.
    """
    times = torch.arange(steps + 1, dtype=torch.float64)
    raw = torch.cos((times / steps + 0.008) / (1 + 0.008) * math.pi * 0.5) ** 2
    raw = raw / raw[0]
    betas = 1 - raw[1:] / raw[:-1]
    alphas = 1 - betas
    product = torch.cumprod(alphas, 0)
    before = torch.cat([torch.ones(1, dtype=torch.float64), product[:-1]])
    rest = 1 - product
    variance = betas * (1 - before) / rest if layout == "audiosr" else torch.zeros_like(betas)
    found = {
        "betas": betas,
        "alphas_cumprod": product,
        "alphas_cumprod_prev": before,
        "sqrt_alphas_cumprod": product.sqrt(),
        "sqrt_one_minus_alphas_cumprod": rest.sqrt(),
        "log_one_minus_alphas_cumprod": rest.log(),
        "sqrt_recip_alphas_cumprod": (1 / product).sqrt(),
        "sqrt_recipm1_alphas_cumprod": (1 / product - 1).sqrt(),
        "posterior_variance": variance,
        "posterior_log_variance_clipped": variance.clamp(min=1e-20).log(),
        "posterior_mean_coef1": betas * before.sqrt() / rest,
        "posterior_mean_coef2": (1 - before) * alphas.sqrt() / rest,
        "logvar": torch.zeros_like(betas),
    }
    return {SCALE: scale.detach().cpu().float(), **{name: table.float() for name, table in found.items()}}


def content_of(nets: Nets, layout: str) -> dict[str, Any]:
    """What a file holds, float32 on the CPU: `state_dict` and, for ProjectLily's, `ema`."""
    net = nets.net
    state, weights = tables(nets.diffusion.steps, net.latent_scale, layout), State()
    for prefix, part in (
        (PREFIX["global_encoder"], net.global_encoder),
        (PREFIX["unet"], net.unet),
        (PREFIX["vae"], nets.vae),
        (PREFIX["vocoder"], nets.vocoder),
        (LAYOUTS[layout].conditioner, nets.condition_vae or nets.vae),
    ):
        if part is not None:
            rename = to_original_autoencoder if isinstance(part, AutoencoderKL) else dict
            state |= add_prefix(rename(_plain(part.state_dict())), prefix)
            weights |= add_prefix(rename(_plain(dict(part.named_parameters()))), prefix)
    averaged = {}
    for name, value in nets.averaged.items():
        part_name, _, rest = name.partition(".")
        averaged[PREFIX["average"] + squashed(rest) if layout == "audiosr" else PREFIX[part_name] + rest] = value
    if layout == "audiosr":
        return {"state_dict": state | averaged}
    return {"state_dict": state, "ema": {**weights, **averaged} if averaged else {}}


def _plain(state: Mapping[str, Tensor]) -> State:
    return {
        name: (value.detach().cpu().float() if value.is_floating_point() else value.cpu()).clone()
        for name, value in state.items()
    }


def _unshown(nets: Nets) -> dict[str, dict[str, Any]]:
    """Arguments of each net that the shapes of its weights do not show."""
    found: dict[str, dict[str, Any]] = {"unet": {"head_channels": nets.net.unet.head_channels}}
    if nets.net.global_encoder is not None:
        found["global_encoder"] = {"heads": nets.net.global_encoder.heads}
    for name, vae in (("vae", nets.vae), (COPY, nets.condition_vae)):
        if vae is not None:
            found[name] = {"dropout": next(module.p for module in vae.modules() if isinstance(module, nn.Dropout))}
    if isinstance(nets.vocoder, Generator):
        found["vocoder"] = {
            "upsample_rates": list(nets.vocoder.upsample_rates),
            "resblock_dilation_sizes": [list(dilations) for dilations in nets.vocoder.resblock_dilation_sizes],
        }
    return found


def original_config(nets: Nets, layout: str, arguments: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The configuration that the original builds nets with these arguments, by component, from."""
    module, features = LAYOUTS[layout].module, nets.features
    mel_bins = {"mel_bins": features.n_mels} if features else {}

    def first_stage(vae: Mapping[str, Any]) -> dict[str, Any]:
        sizes = {**FIRST_STAGE, **autoencoder_settings(vae), "dropout": vae["dropout"], **mel_bins}
        params = {"ddconfig": sizes, "embed_dim": vae["latent_channels"]}
        # copied, for YAML writes a list that stands twice as a reference
        return {"target": f"{module}.AudioSRAutoEncoderKL", "params": copy.deepcopy(params)}

    keys = {"cond_stage_key": "lowpass_mel", "conditioning_key": "concat"}
    inner = {"first_stage_config": first_stage(arguments.get(COPY, arguments["vae"]))}
    # modelV1's class refuses the two keys as arguments
    condition = {**keys, "params": inner} if layout == "modelV1" else {"params": {**keys, **inner}}
    encoder = arguments.get("global_encoder")
    unet = {
        "image_size": 64,
        **_theirs(arguments["unet"], UNET_KEYS),
        **TRANSFORMER,
        "use_global_encoder": encoder is not None,
        **(_theirs(encoder, ENCODER_KEYS) if encoder is not None else {}),
    }
    params = {
        "first_stage_config": first_stage(arguments["vae"]),
        "beta_schedule": "cosine",
        "timesteps": nets.diffusion.steps,
        "parameterization": {ours: theirs for theirs, ours in PREDICTIONS.items()}[nets.diffusion.prediction],
        "scale_factor": float(nets.net.latent_scale),
        "cond_stage_config": {"concat_lowpass_cond": {"target": f"{module}.VAEFeatureExtract", **condition}},
        "unet_config": {"target": f"{module}.UNetModel", "params": unet},
    }
    config: dict[str, Any] = {"model": {"target": f"{module}.LatentDiffusion", "params": params}}
    if features is not None:
        values = {**vars(features), "f_min": features.mel.f_min, "f_max": features.mel.f_max}
        config["data"] = {key: values[ours] for ours, (key, _) in FEATURES.items()}
    return config


def _theirs(arguments: Mapping[str, Any], keys: Mapping[str, str]) -> dict[str, Any]:
    return {key: arguments[ours] for key, ours in keys.items()}


def write(nets: Nets, layout: str, path: Path, config: dict[str, Any] | None = None) -> list[str]:
    """Write a file, and the configuration beside it where there is none; returns notes.

    Args:
        nets: in the axis order of the layout.
        config: the original's configuration; one is made of the nets without.

    Raises:
        ValueError: when the configuration that is already there is another net's.
    """
    notes = []
    if nets.vocoder is not None and (reason := _unfit(nets.vocoder, layout)):
        notes.append(f"vocoder left out: {reason}")
        nets.vocoder = None
    content, unshown = content_of(nets, layout), _unshown(nets)
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(CONFIG_NAME)
    if beside.exists():
        try:
            said = read_config(beside)
        except ValueError:
            said = {}
            notes.append(f"{beside} is another program's: the original needs its own configuration with this file")
        _check_beside(interpret(content, path, said).specs(), unshown, beside)
    else:
        specs = interpret(content, path, {}).specs()
        arguments = {name: {**spec["init_args"], **unshown.get(name, {})} for name, spec in specs.items()}
        settings = config or original_config(nets, layout, arguments)
        if "vocoder" in unshown:
            settings = {**settings, "vocoder": unshown["vocoder"]}
        text = yaml.safe_dump(settings, sort_keys=False)
        write_atomic(beside, lambda file: file.write(text.encode()))
    write_atomic(path, lambda file: torch.save(content, file))
    return notes


def _check_beside(specs: Mapping[str, Any], unshown: Mapping[str, Mapping[str, Any]], beside: Path) -> None:
    """Refuse a file that would be read with other heads, rates or dilations than its nets have."""
    advice = f"with {beside} they would be read as {{}}; name a target in another folder"
    for name in ("global_encoder", "vocoder"):
        for key, value in unshown.get(name, {}).items():
            if (read := specs[name]["init_args"][key]) != value:
                what = f"global encoder has {value} heads" if key == "heads" else f"vocoder's {key} are {value}"
                raise ValueError(f"the {what}, {advice.format(read)}")


def write_model(model: OriginalModel, path: Path) -> None:
    """Write the nets of a file again, in its layout."""
    nets = Nets(model.vae, model.unet.net, model.vocoder, condition_vae=model.condition_vae)
    if model.layout != "audiosr":
        nets.averaged = {name: value.detach() for name, value in model.unet.net.named_parameters()}
    write(nets, model.layout, path, model.config)


def from_ours(source: Path, target: Path) -> dict[str, Any]:
    """Write a run, checkpoint or export of ours; see `zoo.audiosr.convert.convert`."""
    files = _files(source, target)
    notes: list[str] = []
    layout = ""
    for file, origin in files.items():
        nets, config = _read(origin)
        layout = layout_of(nets.net, nets.vae, file.suffix)
        if layout != "audiosr":
            transpose_kernels(nets.vae, nets.net.unet, nets.condition_vae)
            unet = {name: value for name, value in nets.averaged.items() if name.startswith("unet.")}
            nets.averaged |= transposed(unet)
        notes += write(nets, layout, file, config)
        if not nets.averaged:
            notes.append(f"{origin.name} has no averaged weights: {file.name} holds the live ones alone")
    return {"target": list(files), "layout": layout, "notes": list(dict.fromkeys(notes))}


def _files(source: Path, target: Path) -> dict[Path, Path]:
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
    return f"best_step_{int(best[1])}.pt" if best else f"step_{parse_step(checkpoint)}.pt"


def _read(source: Path) -> tuple[Nets, dict[str, Any]]:
    """The nets of a checkpoint or export, time first, and the original's configuration it remembers."""
    averaged: State = {}
    if is_export(source):
        specs, folder = read_export_config(source), source
        state = load_file(source / WEIGHTS_NAME)
        if specs["inference"] != INFERENCE:
            raise ValueError(f"{source}: expected an export for {INFERENCE}, found {specs['inference']}")
    else:
        ours = read_zoo_checkpoint(source, INFERENCE)
        specs = {**ours.specs, "frozen": ours.checkpoint.get("frozen", {})}
        state, folder = ours.checkpoint["state_dict"], source.parent
        averaged = select_prefix((ours.checkpoint.get("ema") or {}).get("shadow", {}), "net.")
    parts = build_components(specs, folder)
    net = parts["net"]
    net.load_state_dict(select_prefix(state, "net."))
    kept = dict(net.named_parameters())
    vocoder = parts["vocoder"].net if isinstance(parts.get("vocoder"), FrozenVocoder) else None
    averaged = {name: value for name, value in averaged.items() if name in kept}
    own = parts[CONDITION].net if parts.get(CONDITION) is not None else None
    nets = Nets(parts["autoencoder"].net, net, vocoder, averaged, parts["diffusion"], parts["features"], own)
    return nets, dict(specs.get("original_config") or {})
