"""Our nets, checkpoints and exports from AudioSR's and ProjectLily's files."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from zoo.audiosr.convert.read import COPY, AudioSRFile, Report, State, check, compare, in_words, section, transposed
from zoo.audiosr.nets.denoiser import Denoiser
from zoo.audiosr.nets.global_encoder import GlobalEncoder
from zoo.blocks.autoencoder import AutoencoderKL
from zoo.common.build import build
from zoo.convert.engine import ConvertedModel
from zoo.convert.network_description import component
from zoo.convert.tensor_names import add_prefix
from zoo.hifigan.nets.generator import Generator

log = logging.getLogger(__name__)

INFERENCE = "zoo.audiosr.Restorer"
CONDITION = "condition_autoencoder"  # our part
FROZEN = {"autoencoder": "vae", "vocoder": "vocoder", CONDITION: COPY}  # our part -> component of a file
STEPS = 1000  # of the diffusion
PREDICTIONS = {"v": "v", "eps": "noise"}
# argument of the mel front end -> ProjectLily's key in `data`, AudioSR's in `preprocessing`
FEATURES = {
    "sample_rate": ("sample_rate", ("audio", "sampling_rate")),
    "n_fft": ("n_fft", ("stft", "filter_length")),
    "hop_length": ("hop_length", ("stft", "hop_length")),
    "n_mels": ("n_mels", ("mel", "n_mel_channels")),
    "f_min": ("fmin", ("mel", "mel_fmin")),
    "f_max": ("fmax", ("mel", "mel_fmax")),
}
WITHOUT_VOCODER = "the file holds no vocoder: no sound comes out before model.init_args.vocoder names one"
EXPONENTIAL = (
    "ProjectLily ran its vocoder on exp(log-mel), with AudioSR's weights for log-mels; here it runs on log-mels"
)


class OriginalUNet(nn.Module):
    """A denoiser that takes the whole clip's mel in the axis order of its file: mel first, or time first."""

    def __init__(self, net: Denoiser, is_mel_first: bool) -> None:
        super().__init__()
        self.net = net
        self.is_mel_first = is_mel_first

    def forward(self, x: Tensor, t: Tensor, full_audio: Tensor | None = None) -> Tensor:
        """Predict v (or the noise); arguments as of `Denoiser`, the clip's log-mel in the order of the file."""
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
        layout: of the file, like `config` ({} without one) and `step` (optimizer steps trained).
        report: how its tensors matched, by component.
        notes: what was passed over.
    """

    def __init__(
        self, file: AudioSRFile, nets: Mapping[str, Any], unet: OriginalUNet, report: Report, notes: list[str]
    ) -> None:
        super().__init__()
        self.condition_vae: AutoencoderKL | None = nets.get(COPY)
        self.vae: AutoencoderKL = nets["vae"]
        self.unet = unet
        self.vocoder: Generator | None = nets.get("vocoder")
        self.layout, self.config, self.step = file.layout, file.settings, file.step
        self.report, self.notes = report, notes

    @property
    def global_encoder(self) -> GlobalEncoder | None:
        """`global_encoder(mel)` gives the clip's vector and its tokens, of mels (B, 1, n_mels, F)."""
        return self.unet.net.global_encoder


def build_model(file: AudioSRFile, ema: bool, min_matched: float, allow_partial: bool) -> OriginalModel:
    """Build the nets of a file and load their weights; arguments as those of `from_original`.

    Returns:
        The nets in evaluation mode.

    Raises:
        ValueError: when the autoencoder or the UNet is missing or not whole.
    """
    specs = file.specs()
    report = compare(file, specs)
    notes = check(file, report, min_matched, allow_partial)
    if missing := [name for name in ("vae", "unet") if name not in specs]:
        raise ValueError(f"{file.path} holds no {' and no '.join(missing)}, without which nothing is computed")
    averaged = file.averaged if ema else {}
    built = {name: _loaded(build(spec), file.parts[name] | averaged.get(name, {})) for name, spec in specs.items()}
    denoiser = Denoiser(built["unet"], built.get("global_encoder"))
    denoiser.latent_scale.copy_(file.scale)
    return OriginalModel(file, built, OriginalUNet(denoiser, file.is_mel_first), report, notes).eval()


def _loaded(net: Any, state: State) -> Any:
    """Load what fits; `check` has judged the rest."""
    if isinstance(net, Generator):
        net.remove_weight_norm_()
    own = net.state_dict()
    fitting = {name: value for name, value in state.items() if name in own and own[name].shape == value.shape}
    net.load_state_dict(fitting, strict=False)
    return net


def transpose_kernels(*nets: nn.Module | None) -> None:
    """Turn nets for mel-first images into ones for time-first images, or back, in place."""
    for net in nets:
        if net is not None:
            net.load_state_dict(transposed(net.state_dict()))


def features_spec(config: Mapping[str, Any], kind: str, n_mels: int | None = None) -> dict[str, Any]:
    """Describe the mel front end of an original's configuration; `n_mels` is for one that does not say them."""
    data, preprocessing = section(config, "data"), section(config, "preprocessing")
    found = {
        ours: value
        for ours, (key, (table, inner)) in FEATURES.items()
        if (value := data.get(key, section(preprocessing, table).get(inner))) is not None
    }
    if n_mels is not None:
        found.setdefault("n_mels", n_mels)
    return component("zoo.audiosr.MelFeatures", kind=kind, **found)


def describe_parts(file: AudioSRFile) -> dict[str, Any]:
    """Describe the parts of our task that a file fills.

    Raises:
        ValueError: when the net predicts what ours does not.
    """
    specs, params = file.specs(), section(file.settings, "model", "params")
    prediction = str(params.get("parameterization", "v"))
    if prediction not in PREDICTIONS:
        known = ", ".join(PREDICTIONS)
        raise ValueError(f"{file.path}: parameterization {prediction!r} is not supported; known are {known}")
    exact = file.parts.get("tables", {}).get("alphas_cumprod")
    steps = len(exact) if exact is not None else int(params.get("timesteps", STEPS))
    encoder = specs.get("global_encoder")
    bands = encoder["init_args"]["n_mels"] if encoder else file.settings_of("vae").get("mel_bins")
    frozen: dict[str, Any] = {"autoencoder": None, "vocoder": None}
    for name, net in FROZEN.items():
        if net in specs:
            cls = "FrozenVocoder" if name == "vocoder" else "FrozenAutoencoder"
            frozen[name] = component(f"zoo.audiosr.{cls}", source=None, config=specs[net]["init_args"])
    return {
        "net": component("zoo.audiosr.Denoiser", unet=specs["unet"], global_encoder=encoder),
        **frozen,
        "features": features_spec(file.settings, "projectlily" if file.is_mel_first else "audiosr", bands),
        "diffusion": component("zoo.audiosr.CosineDiffusion", steps=steps, prediction=PREDICTIONS[prediction]),
    }


def as_ours(file: AudioSRFile, is_checkpoint: bool, allow_partial: bool) -> ConvertedModel:
    """A file as our parts with their weights, time first.

    Raises:
        ValueError: when a component is not whole, an export would be without vocoder, or the scale of the latents would
            be another one's.
    """
    if file.is_mel_first and float(file.scale) != 1.0:
        raise ValueError(
            f"{file.path}: scale_factor is {float(file.scale):g}; ProjectLily does not apply it to the condition, "
            "AudioSR and our task do, so the net would get another condition"
        )
    model = build_model(file, not is_checkpoint, 1.0, allow_partial)
    parts = describe_parts(file)
    if file.is_mel_first:
        transpose_kernels(model.vae, model.unet.net.unet, model.condition_vae)
    nets: dict[str, nn.Module] = {"net": model.unet.net}
    for name, net in (("autoencoder", model.vae), ("vocoder", model.vocoder), (CONDITION, model.condition_vae)):
        if net is not None:
            nets[name] = frozen = build(parts[name])
            frozen.net.load_state_dict(net.state_dict())
    nets |= {name: build(parts[name]) for name in ("features", "diffusion")}
    notes = [*model.notes, *(f"{count} tensors left out: {what}" for what, count in file.left_out.items())]
    if model.vocoder is None:
        if not is_checkpoint:
            raise ValueError(f"{file.path} holds no vocoder and restores nothing by itself: convert it to a .ckpt")
        notes.append(WITHOUT_VOCODER)
    elif file.is_mel_first:
        notes.append(EXPONENTIAL)
    facts = {"layout": file.layout, "step": file.step, **in_words(model.report)}
    specs = {"original_config": file.settings}
    made = ConvertedModel(parts, nets, step=file.step, specs=specs, facts=facts, notes=notes)
    made.state = state = made.tensors()
    if file.averaged:
        live = {key: value for key, value in state.items() if key.startswith("net.") and value.is_floating_point()}
        averaged = {key: value for key, value in _denoiser_state(file, file.averaged).items() if key in live}
        made.averaged = live | averaged
    return made


def _denoiser_state(file: AudioSRFile, parts: Mapping[str, State]) -> State:
    """UNet and global encoder under our task's names, time first."""
    unet = parts.get("unet", {})
    state = add_prefix(transposed(unet) if file.is_mel_first else unet, "net.unet.")
    return state | add_prefix(parts.get("global_encoder", {}), "net.global_encoder.")


def task_state(file: AudioSRFile) -> State:
    """All tensors under the names of our tasks, time first: of the diffusion's and of the autoencoder's."""
    path, parts = file.path, file.parts
    if file.lacks_projection:
        log.warning("%s has no projection of the global encoder: random here, train it (trains: global_encoder)", path)
    state = _denoiser_state(file, parts)
    if "unet" in parts:
        state["net.latent_scale"] = file.scale
    vae, own = (transposed(net) if file.is_mel_first else net for net in (parts.get("vae", {}), parts.get(COPY, {})))
    for prefix in ("autoencoder.net.", "autoencoder."):  # frozen in the diffusion's task, trained in its own
        state |= add_prefix(vae, prefix)
    if file.has_own_conditioner:
        state |= add_prefix(own, f"{CONDITION}.net.")
    return state | add_prefix(parts.get("vocoder", {}), "vocoder.net.")
