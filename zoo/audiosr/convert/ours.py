"""Our checkpoints and exports from AudioSR's and ProjectLily's files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import zoo
from zoo.audiosr.convert.read import (
    COPY,
    Layout,
    Original,
    Report,
    State,
    check,
    compare,
    describe_nets,
    params,
    told,
    transposed,
)
from zoo.audiosr.diffusion.schedule import CosineDiffusion
from zoo.audiosr.nets.denoiser import Denoiser
from zoo.audiosr.nets.features import MelFeatures
from zoo.audiosr.nets.frozen import FrozenAutoencoder, FrozenVocoder
from zoo.audiosr.nets.global_encoder import GlobalEncoder
from zoo.audiosr.nets.vae import Autoencoder
from zoo.common.build import build
from zoo.common.registry import public_name
from zoo.convert.checkpoints import loop_state, write_converted
from zoo.hifigan.nets.generator import Generator
from zoo.runs import frozen
from zoo.runs.export import write_export


class OriginalUNet(nn.Module):
    """A denoiser that takes the whole clip's mel in the axis order of its file.

    Args:
        net: UNet and, if there is one, global encoder.
        is_mel_first: whether mels and latents are (B, C, n_mels, F).
    """

    def __init__(self, net: Denoiser, is_mel_first: bool) -> None:
        super().__init__()
        self.net = net
        self.is_mel_first = is_mel_first

    def forward(self, x: Tensor, t: Tensor, full_audio: Tensor | None = None) -> Tensor:
        """Predict v (or the noise).

        Args:
            x: noisy latents and condition side by side (B, in_channels, H, W).
            t: diffusion steps (B,).
            full_audio: log-mel of the whole clip, in the order of the file; None leaves the global context out.

        Returns:
            (B, out_channels, H, W).
        """
        if full_audio is not None and self.is_mel_first:
            full_audio = full_audio.transpose(-1, -2)
        return self.net(x, t, full_audio)


class OriginalModel(nn.Module):
    """All nets of a file.

    Attributes:
        vae: `encode(mel)` gives moments, `decode(z)` a mel.
        unet: `unet(x, t, full_audio=None)`.
        condition_vae: encodes the condition where the file has another autoencoder for it; None where one serves both.
        vocoder: weight norm folded; None where the file has none. ProjectLily runs it on exp(log-mel), AudioSR on the
            log-mel.
        layout: of the file.
        config: the original's configuration; {} without one.
        step: optimizer steps trained.
        report: how its tensors matched, by component.
        notes: what was passed over.
    """

    def __init__(
        self,
        vae: Autoencoder,
        unet: OriginalUNet,
        vocoder: Generator | None,
        layout: Layout,
        condition_vae: Autoencoder | None = None,
    ) -> None:
        super().__init__()
        self.condition_vae = condition_vae
        self.vae = vae
        self.unet = unet
        self.vocoder = vocoder
        self.layout: Layout = layout
        self.config: dict[str, Any] = {}
        self.step = 0
        self.report: Report = {}
        self.notes: list[str] = []

    @property
    def global_encoder(self) -> GlobalEncoder | None:
        """`global_encoder(mel)` gives the clip's vector and its tokens, of mels (B, 1, n_mels, F)."""
        return self.unet.net.global_encoder


def build_model(original: Original, ema: bool, min_matched: float, allow_partial: bool) -> OriginalModel:
    """Build the nets of a file and load their weights.

    Args:
        original: what was read.
        ema: take the averaged parameters where the file has them.
        min_matched: share of each component's tensors that must match, 0 to 1.
        allow_partial: see `zoo.audiosr.convert.read.check`.

    Returns:
        The nets in evaluation mode.

    Raises:
        ValueError: when the autoencoder or the UNet is missing or not whole.
    """
    nets = describe_nets(original)
    report = compare(original, nets)
    notes = check(original, report, min_matched, allow_partial)
    if missing := [name for name in ("vae", "unet") if name not in nets]:
        raise ValueError(f"{original.path} holds no {' and no '.join(missing)}, without which nothing is computed")
    states = dict(original.parts)
    if ema:
        states |= {name: {**original.parts[name], **own} for name, own in original.averaged.items()}
    built: dict[str, Any] = {name: _loaded(cls(**arguments), states[name]) for name, (cls, arguments) in nets.items()}
    denoiser = Denoiser(built["unet"], built.get("global_encoder"))
    denoiser.latent_scale.copy_(original.scale)
    unet = OriginalUNet(denoiser, original.is_mel_first)
    model = OriginalModel(built["vae"], unet, built.get("vocoder"), original.layout, built.get(COPY))
    model.config, model.step, model.report, model.notes = original.config, original.step, report, notes
    return model.eval()


def _loaded(net: nn.Module, state: State) -> nn.Module:
    """Load what fits; `check` has judged the rest."""
    if isinstance(net, Generator):
        net.fuse_()
    own = net.state_dict()
    fitting = {name: value for name, value in state.items() if name in own and own[name].shape == value.shape}
    net.load_state_dict(fitting, strict=False)
    return net


@torch.no_grad()
def transpose_kernels(net: nn.Module) -> None:
    """Turn a net for mel-first images into one for time-first images, or back, in place."""
    for layer in net.modules():
        if isinstance(layer, nn.Conv2d):
            layer.weight.copy_(layer.weight.transpose(-1, -2).clone())


TASK = "zoo.audiosr.DiffusionTask"
INFERENCE = "zoo.audiosr.Restorer"
CONDITION = "condition_autoencoder"  # our part
STEPS = 1000  # of the diffusion
PREDICTIONS = {"v": "v", "eps": "noise"}
# our argument, ProjectLily's key in `data`
FEATURES = {
    "sample_rate": "sample_rate",
    "n_fft": "n_fft",
    "hop_length": "hop_length",
    "n_mels": "n_mels",
    "f_min": "fmin",
    "f_max": "fmax",
}
WITHOUT_VOCODER = "the file holds no vocoder: no sound comes out before model.init_args.vocoder names one"
EXPONENTIAL = (
    "ProjectLily ran its vocoder on exp(log-mel), with AudioSR's weights for log-mels; here it runs on log-mels"
)


def spec_of(cls: type, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """`class_path` and `init_args`."""
    return {"class_path": public_name(cls), "init_args": dict(arguments)}


def features_spec(config: Mapping[str, Any], kind: str, n_mels: int | None = None) -> dict[str, Any]:
    """Describe the mel front end of a configuration.

    Args:
        config: the original's; AudioSR's own keeps the numbers in `preprocessing`.
        kind: "audiosr" or "projectlily".
        n_mels: where the configuration does not say them.
    """
    data = dict(config.get("data") or {})
    preprocessing = config.get("preprocessing") or {}
    stft, mel = preprocessing.get("stft") or {}, preprocessing.get("mel") or {}
    theirs = {
        "sample_rate": (preprocessing.get("audio") or {}).get("sampling_rate"),
        "n_fft": stft.get("filter_length"),
        "hop_length": stft.get("hop_length"),
        "n_mels": mel.get("n_mel_channels"),
        "fmin": mel.get("mel_fmin"),
        "fmax": mel.get("mel_fmax"),
    }
    data = {key: value for key, value in theirs.items() if value is not None} | data
    found = {ours: data[key] for ours, key in FEATURES.items() if data.get(key) is not None}
    if n_mels is not None:
        found.setdefault("n_mels", n_mels)
    return spec_of(MelFeatures, {"kind": kind, **found})


def diffusion_spec(original: Original) -> dict[str, Any]:
    """Describe the diffusion of a file.

    Raises:
        ValueError: when the net predicts what ours does not.
    """
    said = params(original.config)
    prediction = str(said.get("parameterization", "v"))
    if prediction not in PREDICTIONS:
        known = ", ".join(PREDICTIONS)
        raise ValueError(f"{original.path}: parameterization {prediction!r} is not supported; known are {known}")
    exact = original.parts.get("tables", {}).get("alphas_cumprod")
    steps = len(exact) if exact is not None else int(said.get("timesteps", STEPS))
    return spec_of(CosineDiffusion, {"steps": steps, "prediction": PREDICTIONS[prediction]})


def describe_parts(original: Original) -> dict[str, Any]:
    """Describe the parts of our task that a file fills."""
    nets = describe_nets(original)
    described = {name: spec_of(cls, arguments) for name, (cls, arguments) in nets.items()}
    encoder = described.get("global_encoder")
    denoiser = {"unet": described["unet"], "global_encoder": encoder}
    frozen_parts = {
        name: None if part not in nets else spec_of(cls, {"source": None, "config": nets[part][1]})
        for name, part, cls in (("autoencoder", "vae", FrozenAutoencoder), ("vocoder", "vocoder", FrozenVocoder))
    }
    if COPY in nets:
        frozen_parts[CONDITION] = spec_of(FrozenAutoencoder, {"source": None, "config": nets[COPY][1]})
    kind = "projectlily" if original.is_mel_first else "audiosr"
    sizes = original.settings("first_stage_config").get("ddconfig") or {}
    bands = encoder["init_args"]["n_mels"] if encoder else sizes.get("mel_bins")
    return {
        "net": spec_of(Denoiser, denoiser),
        **frozen_parts,
        "features": features_spec(original.config, kind, bands),
        "diffusion": diffusion_spec(original),
    }


def to_ours(original: Original, target: Path, allow_partial: bool) -> dict[str, Any]:
    """Write a checkpoint (`.ckpt`) or an export folder; see `zoo.audiosr.convert.convert`."""
    if original.is_mel_first and float(original.scale) != 1.0:
        raise ValueError(
            f"{original.path}: scale_factor is {float(original.scale):g}; ProjectLily does not apply it to the "
            "condition, AudioSR and our task do, so the net would hear another condition"
        )
    is_checkpoint = target.suffix == ".ckpt"
    model = build_model(original, not is_checkpoint, 1.0, allow_partial)
    parts = describe_parts(original)
    specs = {
        "version": zoo.__version__,
        "system": "audiosr",
        "task": TASK,
        "inference": INFERENCE,
        "parts": parts,
        "original_config": original.config,
    }
    modules = _modules(model, parts)
    notes = [*model.notes, *(f"{count} tensors left out: {what}" for what, count in original.left_out.items())]
    if modules["vocoder"] is None:
        notes.append(WITHOUT_VOCODER)
    elif original.is_mel_first:
        notes.append(EXPONENTIAL)
    nets = {name: module for name, module in modules.items() if module is not None}
    if is_checkpoint:
        notes += _write_checkpoint(original, specs, nets, target)
    elif modules["vocoder"] is None:
        raise ValueError(f"{original.path} holds no vocoder and restores nothing by itself: convert it to a .ckpt")
    else:
        write_export(target, specs, nets, original.path.name, original.step or None)
    return {
        "system": "audiosr",
        "source": str(original.path),
        "layout": original.layout,
        "target": [str(target)],
        "step": original.step,
        **told(model.report),
        "notes": notes,
    }


def _modules(model: OriginalModel, parts: Mapping[str, Any]) -> dict[str, nn.Module | None]:
    """Our parts with the weights of an original, time first."""
    if model.unet.is_mel_first:
        for images in (model.vae, model.unet.net.unet, model.condition_vae):
            if images is not None:
                transpose_kernels(images)
    modules: dict[str, nn.Module | None] = {"net": model.unet.net, "autoencoder": None, "vocoder": None}
    for name, net in (("autoencoder", model.vae), ("vocoder", model.vocoder), (CONDITION, model.condition_vae)):
        if net is not None:
            part = build(parts[name])
            part.net.load_state_dict(net.state_dict())
            modules[name] = part
    return {**modules, "features": build(parts["features"]), "diffusion": build(parts["diffusion"])}


def _write_checkpoint(
    original: Original, specs: Mapping[str, Any], nets: Mapping[str, nn.Module], target: Path
) -> list[str]:
    modules = frozen.frozen_modules(nets)
    left_out = frozen.frozen_keys(modules)
    whole = {f"{name}.{key}": value for name, net in nets.items() for key, value in net.state_dict().items()}
    state = {key: value for key, value in whole.items() if key not in left_out}
    records = frozen.records(modules)
    target.parent.mkdir(parents=True, exist_ok=True)
    frozen.save_copies(modules, records, target.parent)
    training: dict[str, Any] = {"frozen": records, "loops": loop_state(original.step, 0, automatic=True)}
    if original.averaged:
        shadow = {key: value for key, value in state.items() if key.startswith("net.") and value.is_floating_point()}
        shadow |= {key: value for key, value in averaged_state(original).items() if key in shadow}
        training["ema"] = {"shadow": shadow, "updates": max(original.step, 1)}
    write_converted(target, specs, state, original.step, training=training)
    copies = [f"for training, {name}.init_args.source: {target.parent / r['folder']}" for name, r in records.items()]
    return [*copies, "no training state: start from it with init_from"]


def averaged_state(original: Original) -> State:
    """Averaged parameters under our task's names, time first."""
    return denoiser_state(original, original.averaged)


def denoiser_state(original: Original, parts: Mapping[str, State]) -> State:
    """UNet and global encoder under our task's names, time first."""
    unet = parts.get("unet", {})
    state = {f"net.unet.{key}": value for key, value in (transposed(unet) if original.is_mel_first else unet).items()}
    return state | {f"net.global_encoder.{key}": value for key, value in parts.get("global_encoder", {}).items()}


def task_state(original: Original) -> dict[str, Tensor]:
    """All tensors under the names of our tasks, time first: of the diffusion's and of the autoencoder's."""
    parts = original.parts
    state = denoiser_state(original, parts)
    if "unet" in parts:
        state["net.latent_scale"] = original.scale
    vae = parts.get("vae", {})
    vae = transposed(vae) if original.is_mel_first else vae
    for prefix in ("autoencoder.net.", "autoencoder."):  # frozen in the diffusion's task, trained in its own
        state |= {f"{prefix}{key}": value for key, value in vae.items()}
    if original.has_own_conditioner:
        own = parts[COPY]
        own = transposed(own) if original.is_mel_first else own
        state |= {f"{CONDITION}.net.{key}": value for key, value in own.items()}
    return state | {f"vocoder.net.{key}": value for key, value in parts.get("vocoder", {}).items()}
