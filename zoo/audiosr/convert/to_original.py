"""AudioSR's and ProjectLily's files from our runs, checkpoints and exports."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor, nn

from zoo.audiosr.convert import layouts, net_sizes
from zoo.audiosr.convert.autoencoder_names import to_original_autoencoder
from zoo.audiosr.convert.from_original import FEATURES, PREDICTIONS, STEPS, describe_features
from zoo.audiosr.diffusion import CosineDiffusion
from zoo.audiosr.nets.denoiser import Denoiser
from zoo.audiosr.nets.features import MelFeatures
from zoo.audiosr.nets.frozen import FrozenVocoder
from zoo.blocks.autoencoder import AutoencoderKL
from zoo.common.atomic_files import write_atomic
from zoo.common.build import build
from zoo.convert.engine import read_zoo_checkpoint
from zoo.convert.tensor_names import State, add_prefix, select_prefix
from zoo.hifigan.nets.base import WaveformGenerator
from zoo.hifigan.nets.generator import Generator
from zoo.runs.checkpoints import best_checkpoint, find_checkpoint, find_checkpoints, load_checkpoint, parse_step
from zoo.runs.components import is_export, read_components
from zoo.runs.load import build_components
from zoo.runs.run_info import read_run

INFERENCE = "zoo.audiosr.Restorer"
FINAL = "final_ema.pt"
MODELV1_ENCODER = (128, 2, 1024)  # channels, layers and positions of its class
PREFIX = {component: prefix for prefix, component in layouts.PREFIXES.items()}
# A first stage's and a UNet's configuration in their order; None stands for a value of the nets.
FIRST_STAGE: dict[str, Any] = {
    "double_z": True, "z_channels": None, "resolution": 256, "in_channels": 1, "out_ch": 1, "ch": None, "ch_mult": None,
    "num_res_blocks": None, "attn_resolutions": [], "dropout": None,
}  # fmt: skip
TRANSFORMER = {"use_spatial_transformer": True, "transformer_depth": 1, "context_dim": None}


@dataclass
class Nets:
    """The nets of a file, time first."""

    autoencoder: AutoencoderKL
    net: Denoiser
    features: MelFeatures
    vocoder: WaveformGenerator | None = None
    averaged: State = field(default_factory=dict)  # parameters of the denoiser by name; empty without
    diffusion: CosineDiffusion = field(default_factory=CosineDiffusion)


def choose_layout(net: Denoiser, autoencoder: AutoencoderKL, suffix: str) -> str:
    """Choose the layout that can hold the nets, or ValueError; the suffix ".bin" asks for AudioSR's."""
    unet, encoder = net.unet, net.global_encoder
    norms = next(module.num_groups for module in autoencoder.modules() if isinstance(module, nn.GroupNorm))
    for name, groups in (("UNet", unet.norm_groups), ("autoencoder", norms)):
        if groups != net_sizes.NORM_GROUPS:
            raise ValueError(
                f"norm_groups of the {name} is {groups}; the originals have {net_sizes.NORM_GROUPS}: use `zoo export`"
            )
    down = layouts.transformers_per_down_block(unet.state_dict()) or 2
    if down > 2 or not len(autoencoder.encoder.mid_block.attentions):
        raise ValueError(
            "the originals' UNets have 1 or 2 transformers per down block, their autoencoders attention in the middle: "
            "use `zoo export`"
        )
    if suffix == ".bin" and down != 2:
        raise ValueError("AudioSR's .bin has 2 transformers per down block: name a .pt file")
    layout = "modelV1" if down == 2 else "model.py"
    if encoder is None and suffix == ".bin" and down == 2:
        return "audiosr"
    if (scale := float(net.latent_scale)) != 1.0:
        raise ValueError(
            f"latent_scale is {scale:g}; ProjectLily does not apply it to the condition: train with latent_scale: 1.0, "
            "or use `zoo export` (a net without a global encoder and 2 transformers per down block fits AudioSR's .bin)"
        )
    if encoder is None:
        return layout
    if unet.fusion != layouts.LAYOUTS[layout].fusion or suffix == ".bin":
        raise ValueError(
            f"fusion is {unet.fusion!r} with {down} transformers per down block and suffix {suffix!r}; expected "
            "replace with 2 (modelV1) or residual with 1 (model.py), both in a .pt file"
        )
    sizes = (encoder.pos_encoding.shape[2], len(encoder.transformer.layers), encoder.pos_encoding.shape[1])
    if layout == "modelV1" and sizes != MODELV1_ENCODER:
        raise ValueError(
            f"channels, layers and positions of the global encoder are {sizes}; modelV1's are {MODELV1_ENCODER}"
        )
    return layout


def find_incompatibility(vocoder: WaveformGenerator, layout: str) -> str:
    """Return why a layout cannot hold a vocoder; empty where it can."""
    if not isinstance(vocoder, Generator):
        return f"{layout}'s is HiFi-GAN's generator, this one is a {type(vocoder).__name__}"
    slope, padding = layouts.LAYOUTS[layout].last_slope, layouts.LAYOUTS[layout].output_padding
    if vocoder.last_slope != slope or vocoder.output_padding not in (None, padding):
        return (
            f"{layout} computes with last_slope {slope} and output_padding {padding}, it was trained with "
            f"{vocoder.last_slope} and {vocoder.output_padding}"
        )
    if vocoder.conditioner is not None or vocoder.padding_mode != "zeros":
        return f"{layout}'s has no conditioner and pads with zeros, this one with {vocoder.padding_mode}"
    return ""


def diffusion_buffers(steps: int, scale: Tensor, layout: str) -> State:
    """Compute the buffers of the original's diffusion, bit by bit, and the scale of the latents.

    ProjectLily took a flag for the weight of the posterior's variance, so that it is 0.
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
    tables = {
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
    return {layouts.SCALE: scale.detach().cpu().float(), **{name: table.float() for name, table in tables.items()}}


def to_original_state(nets: Nets, layout: str) -> dict[str, Any]:
    """Return what a file holds, float32 on the CPU: `state_dict` and, for ProjectLily's, `ema`."""
    modules = {
        "global_encoder": nets.net.global_encoder,
        "unet": nets.net.unet,
        "vae": nets.autoencoder,
        "vocoder": nets.vocoder,
    }
    states = {name: _copy_state(module.state_dict()) for name, module in modules.items() if module is not None}
    averaged = {name: _copy_state(select_prefix(nets.averaged, f"{name}.")) for name in ("unet", "global_encoder")}
    tables = diffusion_buffers(nets.diffusion.steps, nets.net.latent_scale, layout)
    if layout == "audiosr":
        buffers = {PREFIX["average"] + layouts.ema_buffer_name(name): value for name, value in averaged["unet"].items()}
        return {"state_dict": {**tables, **_join(states, layout), **buffers}}
    ema = {
        name: _copy_state(dict(module.named_parameters())) | averaged.get(name, {})
        for name, module in modules.items()
        if module is not None and nets.averaged
    }
    return {
        "state_dict": {**tables, **_join(layouts.transpose_images(states), layout)},
        "ema": _join(layouts.transpose_images(ema), layout),
    }


def _copy_state(state: Mapping[str, Tensor]) -> State:
    return {
        name: (value.detach().cpu().float() if value.is_floating_point() else value.cpu()).clone()
        for name, value in state.items()
    }


def _join(states: Mapping[str, State], layout: str) -> State:
    """Join the states of the nets under the original's names; the conditioner holds a copy of the autoencoder."""
    joined: State = {}
    for name, state in states.items():
        named = to_original_autoencoder(state) if name == "vae" else state
        joined |= add_prefix(named, PREFIX[name])
        if name == "vae":
            joined |= add_prefix(named, layouts.LAYOUTS[layout].conditioner)
    return joined


def hidden_settings(nets: Nets) -> dict[str, dict[str, Any]]:
    """Return arguments of each net that the shapes of its weights do not show."""
    hidden: dict[str, dict[str, Any]] = {"unet": {"head_channels": nets.net.unet.head_channels}}
    if nets.net.global_encoder is not None:
        hidden["global_encoder"] = {"heads": nets.net.global_encoder.heads}
    dropout = next(module.p for module in nets.autoencoder.modules() if isinstance(module, nn.Dropout))
    hidden["vae"] = {"dropout": dropout}
    if isinstance(nets.vocoder, Generator):
        hidden["vocoder"] = {
            "upsample_rates": list(nets.vocoder.upsample_rates),
            "resblock_dilation_sizes": [list(dilations) for dilations in nets.vocoder.resblock_dilation_sizes],
        }
    return hidden


def original_config(nets: Nets, layout: str, arguments: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the configuration from which the original builds nets with these arguments, by component."""
    module, features = layouts.LAYOUTS[layout].module, nets.features
    vae = arguments["vae"]
    sizes = FIRST_STAGE | net_sizes.autoencoder_settings(vae)
    sizes |= {"dropout": vae["dropout"], "mel_bins": features.n_mels}
    first_stage = {
        "target": f"{module}.AudioSRAutoEncoderKL",
        "params": {"ddconfig": sizes, "embed_dim": vae["latent_channels"]},
    }
    keys = {"cond_stage_key": "lowpass_mel", "conditioning_key": "concat"}
    inner = {"first_stage_config": copy.deepcopy(first_stage)}  # YAML would write a reference
    # modelV1's class refuses the two keys as arguments
    condition = {**keys, "params": inner} if layout == "modelV1" else {"params": {**keys, **inner}}
    encoder = arguments.get("global_encoder")
    unet = {
        "image_size": 64,
        **net_sizes.original_settings(arguments["unet"], net_sizes.UNET_KEYS),
        **TRANSFORMER,
        "use_global_encoder": encoder is not None,
        **(net_sizes.original_settings(encoder, net_sizes.ENCODER_KEYS) if encoder is not None else {}),
    }
    params = {
        "first_stage_config": first_stage,
        "beta_schedule": "cosine",
        "timesteps": nets.diffusion.steps,
        "parameterization": {name: key for key, name in PREDICTIONS.items()}[nets.diffusion.prediction],
        "scale_factor": float(nets.net.latent_scale),
        "cond_stage_config": {"concat_lowpass_cond": {"target": f"{module}.VAEFeatureExtract", **condition}},
        "unet_config": {"target": f"{module}.UNetModel", "params": unet},
    }
    values = {**vars(features), "f_min": features.mel.f_min, "f_max": features.mel.f_max}
    config: dict[str, Any] = {
        "model": {"target": f"{module}.LatentDiffusion", "params": params},
        "data": {key: values[name] for name, (key, _) in FEATURES.items()},
    }
    if "vocoder" in arguments:
        names = ("upsample_rates", "resblock_dilation_sizes")
        config["vocoder"] = {name: arguments["vocoder"][name] for name in names}
    return config


def write_original(nets: Nets, layout: str, path: Path) -> list[str]:
    """Write a file and, next to it, its configuration where there is none; returns notes.

    ValueError where the configuration of other nets is there.
    """
    notes = []
    if nets.vocoder is not None and (reason := find_incompatibility(nets.vocoder, layout)):
        notes.append(f"vocoder left out: {reason}")
        nets.vocoder = None
    content, hidden = to_original_state(nets, layout), hidden_settings(nets)
    descriptions = net_sizes.describe_nets(layouts.parse_content(content, path, {}))
    arguments = {name: {**spec["init_args"], **hidden.get(name, {})} for name, spec in descriptions.items()}
    companion = path.with_name(layouts.CONFIG_NAME)
    path.parent.mkdir(parents=True, exist_ok=True)
    config = original_config(nets, layout, arguments)
    if companion.exists():
        other = layouts.companion_config(path)
        described = net_sizes.describe_nets(layouts.parse_content(content, path, other))
        if {name: spec["init_args"] for name, spec in described.items()} != arguments:
            raise ValueError(f"{companion} is the configuration of other nets: name another folder")
        if not _has_same_features(config, other, nets.features.n_mels):
            raise ValueError(f"{companion} has other mels or another diffusion: name another folder")
    else:
        text = yaml.safe_dump(config, sort_keys=False)
        write_atomic(companion, lambda file: file.write(text.encode()))
    write_atomic(path, lambda file: torch.save(content, file))
    return notes


def _has_same_features(config: Mapping[str, Any], other: Mapping[str, Any], n_mels: int) -> bool:
    """Whether two configurations, usual values where they are silent, have the same mels, steps and prediction."""
    params = [layouts.section(each, "model", "params") for each in (config, other)]
    processes = [(each.get("timesteps", STEPS), each.get("parameterization", "v")) for each in params]
    mels = [build(describe_features(each, "projectlily", n_mels)) for each in (config, other)]
    return processes[0] == processes[1] and mels[0].equals(mels[1])


def from_zoo(source: Path, target: Path) -> dict[str, Any]:
    """Write a run, checkpoint or export of ours; see `zoo.audiosr.convert.convert`."""
    targets = list_targets(source, target)
    notes: list[str] = []
    layout = ""
    for file, origin in targets.items():
        nets = _read_zoo(origin)
        layout = choose_layout(nets.net, nets.autoencoder, file.suffix)
        notes += write_original(nets, layout, file)
        kind = "audiosr" if layout == "audiosr" else "projectlily"
        if nets.features.kind != kind:
            notes.append(f"features.kind is {nets.features.kind}, the layout's programs compute the mels of {kind}")
        if not nets.averaged:
            notes.append(f"{origin.name} has no averaged weights: {file.name} holds the live ones alone")
    return {"target": list(targets), "layout": layout, "notes": list(dict.fromkeys(notes))}


def list_targets(source: Path, target: Path) -> dict[Path, Path]:
    """List the files to write, each with the checkpoint or export that it is made of."""
    newest = source if is_export(source) else find_checkpoint(source)
    if target.suffix in (".pt", ".bin"):
        return {target: newest}
    if target.suffix:
        raise ValueError(f"{target}: the originals' files end in .pt (ProjectLily) or .bin (AudioSR); or name a folder")
    if is_export(source):
        return {target / FINAL: source}
    if source.is_file():
        return {target / original_name(source): source}
    best = best_checkpoint(source, read_run(source, source).mode)
    chosen = [*([best] if best else []), *find_checkpoints(source, "step_*.ckpt")[:1]]
    return {**{target / original_name(path): path for path in chosen}, target / FINAL: newest}


def original_name(checkpoint: Path) -> str:
    """Return the original's name of a checkpoint of ours; the step is the file's where its name has none."""
    step = parse_step(checkpoint)
    if step < 0:
        step = load_checkpoint(checkpoint, mmap=True)["global_step"]
    return f"{'best_' if checkpoint.name.startswith('best-') else ''}step_{step}.pt"


def _read_zoo(source: Path) -> Nets:
    """Read the nets of a checkpoint or export."""
    averaged: State = {}
    if is_export(source):
        specs, state, _ = read_components(source)
        folder = source
        if specs["inference"] != INFERENCE:
            raise ValueError(f"{source}: expected an export for {INFERENCE}, found {specs['inference']}")
    else:
        saved = read_zoo_checkpoint(source, INFERENCE)
        specs = {**saved.specs, "frozen": saved.checkpoint.get("frozen", {})}
        state, folder = saved.checkpoint["state_dict"], source.parent
        averaged = select_prefix((saved.checkpoint.get("ema") or {}).get("shadow", {}), "net.")
    components = build_components(specs, folder)
    net = components["net"]
    net.load_state_dict(select_prefix(state, "net."))
    parameters = dict(net.named_parameters())
    vocoder = components["vocoder"].net if isinstance(components.get("vocoder"), FrozenVocoder) else None
    averaged = {name: value for name, value in averaged.items() if name in parameters}
    autoencoder = components["autoencoder"].net
    return Nets(autoencoder, net, components["features"], vocoder, averaged, components["diffusion"])
