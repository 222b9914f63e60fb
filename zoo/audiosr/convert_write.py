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

from zoo.atomic import write_atomic
from zoo.audiosr.convert_files import CONFIG_NAME, describe_nets, interpret, read_config
from zoo.audiosr.convert_names import (
    AVERAGE,
    CONDITIONER,
    COPY,
    PREFIXES,
    Layout,
    State,
    squashed,
    tables,
    transposed,
)
from zoo.audiosr.convert_nets import OriginalModel, transpose_kernels
from zoo.audiosr.convert_ours import CONDITION, INFERENCE
from zoo.audiosr.convert_settings import check_heads, check_vocoder, original_config, unfit, vocoder_section
from zoo.audiosr.convert_sizes import NORM_GROUPS, transformers_per_down_block
from zoo.audiosr.denoiser import Denoiser
from zoo.audiosr.diffusion import CosineDiffusion
from zoo.audiosr.features import MelFeatures
from zoo.audiosr.parts import FrozenVocoder
from zoo.hifigan.generator import Generator
from zoo.loading import build_parts
from zoo.training.checkpoint_files import find_checkpoints, step_of
from zoo.training.converted import read_ours
from zoo.training.export import WEIGHTS_NAME, export_config, is_export, parts_state
from zoo.training.run import find_checkpoint

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
