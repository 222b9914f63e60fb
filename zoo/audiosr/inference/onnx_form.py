"""The nets of super-resolution as ONNX graphs, and what numpy needs to run them."""

from __future__ import annotations

import copy
import io
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.export import Dim

from zoo.audiosr.diffusion.samplers import DDIM, Sampler
from zoo.audiosr.diffusion.schedule import CosineDiffusion
from zoo.audiosr.inference import numpy_sampler
from zoo.audiosr.inference.chunks import Settings, band_tops, unit_samples
from zoo.audiosr.nets.denoiser import UNCONDITIONAL, Denoiser, concat
from zoo.audiosr.nets.features import LOG_FLOOR, MelFeatures
from zoo.audiosr.nets.frozen import FrozenAutoencoder, FrozenVocoder
from zoo.audiosr.nets.vae import split
from zoo.hifigan.inference import generator_graph
from zoo.runs.onnx_export import OnnxExport, OnnxGraph

MAX_STEPS = 50  # that the numpy sampler takes by itself
POWER_FLOOR = 1e-8  # of `stft_magnitude`, squared
SIZES = ((2, 2), (1, 3))  # (batch, units) of the examples


class _Encoder(nn.Module):
    def __init__(self, autoencoder: FrozenAutoencoder, scale: Tensor) -> None:
        super().__init__()
        self.net, self.scale = autoencoder.net, float(scale)

    def forward(self, mel: Tensor) -> Tensor:
        return split(self.net.encode(mel))[0] * self.scale


class _Decoder(nn.Module):
    def __init__(self, autoencoder: FrozenAutoencoder, scale: Tensor) -> None:
        super().__init__()
        self.net, self.scale = autoencoder.net, float(scale)

    def forward(self, latents: Tensor) -> Tensor:
        return self.net.decode(latents / self.scale)


class _ClipEncoder(nn.Module):
    def __init__(self, net: Denoiser) -> None:
        super().__init__()
        self.net = net.global_encoder

    def forward(self, mel: Tensor) -> tuple[Tensor, Tensor]:
        return self.net(mel.transpose(-1, -2))  # type: ignore[misc]


class _Step(nn.Module):
    def __init__(self, net: Denoiser) -> None:
        super().__init__()
        self.unet = net.unet

    def forward(
        self, x: Tensor, t: Tensor, condition: Tensor, context: Tensor | None = None, sequence: Tensor | None = None
    ) -> Tensor:
        return self.unet(concat(x, condition), t, context, sequence)


def default_steps(sampler: Sampler) -> int:
    """Steps of the numpy sampler where its caller names none: those of a sampler that it is, at most 50."""
    same = isinstance(sampler, DDIM) and sampler.grid == "trailing" and not sampler.eta
    return min(sampler.steps, MAX_STEPS) if same else MAX_STEPS


def onnx_form(
    net: Denoiser,
    autoencoder: FrozenAutoencoder,
    condition_autoencoder: FrozenAutoencoder | None,
    vocoder: FrozenVocoder,
    features: MelFeatures,
    diffusion: CosineDiffusion,
    settings: Settings,
) -> OnnxExport:
    """The parts of a restorer: see `numpy_sampler.AudioSR`, which is written beside them as `onnx_audiosr.py`.

    A clip's frames are a multiple of those of the UNet's coarsest image, and at most as many as the global encoder has
    positions.

    Raises:
        ValueError: when condition and data have latents of different sizes.
    """
    if condition_autoencoder is not None and condition_autoencoder.factor != autoencoder.factor:
        raise ValueError("no ONNX form: the condition's latents are of another size than the data's")
    net, autoencoder, conditions = copy.deepcopy((net, autoencoder, condition_autoencoder or autoencoder))
    for each in (net, autoencoder, conditions):
        each.cpu().float().eval().requires_grad_(False)
    scale, coarse = net.latent_scale, net.unet.factor
    random = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=random)

    def images(channels: int, height: int, width: int) -> list[Tensor]:
        return [draw(batch, channels, units * height, width) for batch, units in SIZES]

    bands, size = features.n_mels, autoencoder.factor
    mels = [(each,) for each in images(1, size * coarse, bands)]
    latents = images(autoencoder.latent_channels, coarse, bands // size)
    condition = images(conditions.latent_channels, coarse, bands // size)
    steps = [torch.randint(diffusion.steps, (batch,), generator=random) for batch, _ in SIZES]
    units, most = coarse * Dim("units"), np.iinfo(np.int64).max
    image = {0: "batch", 2: units}
    inputs = {"x": image, "t": {0: "batch"}, "condition": image}
    examples: list[tuple[Tensor, ...]] = list(zip(latents, steps, condition, strict=True))
    graphs = [
        OnnxGraph(_Encoder(conditions, scale), {"mel": {0: "batch", 2: size * Dim("rows")}}, ["condition"], mels,
              "encoder"),
        OnnxGraph(_Decoder(autoencoder, scale), {"latents": {0: "batch", 2: "rows"}}, ["mel"],
              [(each,) for each in latents], "decoder"),
        generator_graph(vocoder.net, "vocoder"),
    ]  # fmt: skip
    if net.global_encoder is not None:
        frames = net.global_encoder.pos_encoding.shape[1]
        most = frames * features.hop_length
        clips = [(draw(batch, 1, number, bands),) for batch, number in ((2, frames // 2), (1, frames // 3 + 1))]
        graphs.append(
            OnnxGraph(_ClipEncoder(net), {"mel": {0: "batch", 2: Dim("frames", max=frames)}},
                  ["context", "sequence"], clips, "clip_encoder")
        )  # fmt: skip
        with torch.no_grad():
            encoded = [net.encode_clip(clip[0]) for clip in clips]
        inputs |= {"context": {0: "batch"}, "sequence": {0: "batch", 1: "tokens"}}
        examples = [(*given, *more) for given, more in zip(examples, encoded, strict=True) if more is not None]
    graphs.append(OnnxGraph(_Step(net), inputs, ["output"], examples, "denoiser"))
    unit = unit_samples(net, autoencoder, features)
    tables = _tables(features, diffusion, settings, float(scale), unit, most)
    file = io.BytesIO()
    np.savez(file, **{name: np.asarray(value) for name, value in tables.items()})  # type: ignore[arg-type]
    runtime = Path(numpy_sampler.__file__).read_bytes()
    return OnnxExport(graphs, {"onnx_audiosr.npz": file.getvalue(), "onnx_audiosr.py": runtime})


def _tables(
    features: MelFeatures, diffusion: CosineDiffusion, settings: Settings, scale: float, unit: int, most_samples: int
) -> dict[str, Any]:
    """What `numpy_sampler.AudioSR` reads: the front end, the noise levels, and the options of the sampler."""
    powers = features.kind == "projectlily"
    return {
        "sample_rate": features.sample_rate,
        "n_fft": features.n_fft,
        "hop": features.hop_length,
        "padding": features.n_fft // 2 if powers else features.mel.padding_samples,
        "window": features.mel.window.cpu().numpy(),
        "mel_basis": features.mel.mel_basis.cpu().numpy(),
        "of_powers": powers,
        "floor_inside": POWER_FLOOR if powers else features.mel.magnitude_floor,
        "floor": LOG_FLOOR if powers else features.mel.floor,
        "band_tops_hz": band_tops(features).cpu().numpy(),
        "unit": unit,
        "most_samples": most_samples,
        "signal": [diffusion.levels(t)[0] for t in range(diffusion.steps)],
        "sigma": [diffusion.levels(t)[1] for t in range(diffusion.steps)],
        "predicts_noise": diffusion.prediction == "noise",
        "unconditional": np.float32(UNCONDITIONAL * scale),
        "steps": default_steps(settings.sampler),
        "guidance_scale": settings.guidance_scale,
        "guidance_rescale": settings.guidance_rescale,
    }
