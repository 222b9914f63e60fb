"""Our components, checkpoints and exports from AudioSR's and ProjectLily's files."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from torch import nn

from zoo.audiosr.convert.layouts import PROJECTION, AudioSRFile, section
from zoo.audiosr.convert.net_sizes import describe_nets
from zoo.common.build import build, check_state_dict
from zoo.convert.engine import ConvertedModel
from zoo.convert.network_description import component
from zoo.convert.tensor_names import State, add_prefix

log = logging.getLogger(__name__)

FROZEN = {"autoencoder": "vae", "vocoder": "vocoder"}  # our component -> that of a file
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
UNTRAINED_PROJECTION = (
    "ProjectLily built the projection of the global encoder in the first forward pass, at random in each process, so "
    "that its output cannot be reproduced"
)
WITHOUT_VOCODER = "the file holds no vocoder: set model.init_args.vocoder for sound"
EXPONENTIAL = (
    "ProjectLily ran its vocoder on exp(log-mel), with AudioSR's weights for log-mels; here it runs on log-mels"
)


def describe_features(config: Mapping[str, Any], kind: str, n_mels: int | None = None) -> dict[str, Any]:
    """Describe the mel front end of an original's configuration; `n_mels` is for one that lacks them."""
    data, preprocessing = section(config, "data"), section(config, "preprocessing")
    arguments = {
        name: value
        for name, (key, (table, inner)) in FEATURES.items()
        if (value := data.get(key, section(preprocessing, table).get(inner))) is not None
    }
    if n_mels is not None:
        arguments.setdefault("n_mels", n_mels)
    return component("zoo.audiosr.MelFeatures", kind=kind, **arguments)


def describe_components(file: AudioSRFile) -> dict[str, Any]:
    """Describe the components of our Inference; ValueError without autoencoder or UNet."""
    nets = describe_nets(file)
    if missing := [name for name in ("vae", "unet") if name not in nets]:
        raise ValueError(f"{file.path} holds no {' and no '.join(missing)}; expected both")
    params = section(file.settings, "model", "params")
    prediction = params.get("parameterization", "v")
    if prediction not in PREDICTIONS:
        raise ValueError(f"{file.path}: parameterization is {prediction!r}; expected {' or '.join(PREDICTIONS)}")
    exact = file.parts.get("tables", {}).get("alphas_cumprod")
    steps = len(exact) if exact is not None else int(params.get("timesteps", STEPS))
    encoder = nets.get("global_encoder")
    bands = encoder["init_args"]["n_mels"] if encoder else file.component_settings("vae").get("mel_bins")
    vocoder = None
    if "vocoder" in nets:
        vocoder = component("zoo.audiosr.FrozenVocoder", source=None, config=nets["vocoder"]["init_args"])
    return {
        "net": component("zoo.audiosr.Denoiser", unet=nets["unet"], global_encoder=encoder),
        "autoencoder": component("zoo.audiosr.FrozenAutoencoder", source=None, config=nets["vae"]["init_args"]),
        "vocoder": vocoder,
        "features": describe_features(file.settings, "projectlily" if file.is_mel_first else "audiosr", bands),
        "diffusion": component("zoo.audiosr.CosineDiffusion", steps=steps, prediction=PREDICTIONS[prediction]),
    }


def denoiser_state(file: AudioSRFile, parts: Mapping[str, State]) -> State:
    """Return UNet and global encoder under the names of `Denoiser`."""
    state = add_prefix(parts.get("unet", {}), "unet.") | add_prefix(parts.get("global_encoder", {}), "global_encoder.")
    return {"latent_scale": file.scale, **state} if "unet" in parts else state


def build_components(file: AudioSRFile, averaged: bool = False, allow_partial: bool = False) -> dict[str, nn.Module]:
    """Build the components of a file in evaluation mode, by averaged parameters where asked for and present.

    ValueError where a net's tensors are not complete; `allow_partial` keeps a random projection of the global encoder.
    """
    file.check_supported()
    components = {name: build(spec) for name, spec in describe_components(file).items() if spec is not None}
    parts = {name: {**state, **(file.averaged.get(name, {}) if averaged else {})} for name, state in file.parts.items()}
    state = denoiser_state(file, parts)
    if file.lacks_projection:
        if not allow_partial:
            raise ValueError(f"{file.path}: {UNTRAINED_PROJECTION}; --allow_partial true takes the rest")
        fresh = components["net"].state_dict()
        state |= {name: value for name, value in fresh.items() if name.startswith(f"global_encoder.{PROJECTION}")}
    for name, net, tensors in [("net", components["net"], state)] + [
        (name, components[name].net, file.parts[part]) for name, part in FROZEN.items() if name in components
    ]:
        check_state_dict(net, tensors, str(file.path), f"the {name}")
        net.load_state_dict(tensors)
    return {name: each.eval() for name, each in components.items()}


def to_zoo_model(file: AudioSRFile, is_checkpoint: bool, allow_partial: bool) -> ConvertedModel:
    """Convert a file to the contents of a checkpoint or an export; ValueError where a component is not complete."""
    components = build_components(file, not is_checkpoint, allow_partial)
    notes = [f"{count} tensors left out: {kind}" for kind, count in file.left_out.items()]
    if file.lacks_projection:
        notes.insert(0, f"{UNTRAINED_PROJECTION}: random here, train the encoder (trains: global_encoder)")
    if "vocoder" not in components:
        if not is_checkpoint:
            raise ValueError(f"{file.path} holds no vocoder and cannot restore by itself: convert it to a .ckpt")
        notes.append(WITHOUT_VOCODER)
    elif file.is_mel_first:
        notes.append(EXPONENTIAL)
    model = ConvertedModel(
        describe_components(file), components, step=file.step, facts={"layout": file.layout, "step": file.step},
        notes=notes,
    )  # fmt: skip
    if file.averaged:
        state = model.tensors()
        live = {key: value for key, value in state.items() if key.startswith("net.") and value.is_floating_point()}
        averaged = add_prefix(denoiser_state(file, file.averaged), "net.")
        model.averaged = live | {key: value for key, value in averaged.items() if key in live}
    return model


def task_state(file: AudioSRFile) -> State:
    """Return all tensors under the names of our tasks: of the diffusion's and of the autoencoder's."""
    file.check_supported()
    if file.lacks_projection:
        log.warning("%s: %s: random here, train the encoder (trains: global_encoder)", file.path, UNTRAINED_PROJECTION)
    state = add_prefix(denoiser_state(file, file.parts), "net.")
    autoencoder = file.parts.get("vae", {})
    for prefix in ("autoencoder.net.", "autoencoder."):  # frozen in the diffusion's task, trained in its own
        state |= add_prefix(autoencoder, prefix)
    return state | add_prefix(file.parts.get("vocoder", {}), "vocoder.net.")
