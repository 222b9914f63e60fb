"""Restoring log-mels chunk by chunk: what the nets compute of one chunk, and the context of the whole clip."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from zoo.audio.io.chunking import Chunker, check_finite, split_windows
from zoo.audiosr.diffusion.samplers import Sampler, conditioned, row_noise
from zoo.audiosr.diffusion.schedule import CosineDiffusion
from zoo.audiosr.nets.denoiser import Denoiser
from zoo.audiosr.nets.features import MelFeatures
from zoo.audiosr.nets.frozen import FrozenAutoencoder, FrozenVocoder
from zoo.blocks.autoencoder import posterior_mean
from zoo.training.resume import item_seed

TAGS = 2  # values that follow the samples of a unit: its number in the clip, and its channel
CLIP_FRAMES = 1024  # most frames that the global encoder takes: those of a training crop of 10.24 s

_MEL_WINDOW = 512  # frames of a clip's mel at once
_VOCODER_WINDOW = 512  # frames vocoded at once


@dataclass(frozen=True)
class Settings:
    """How the nets are used."""

    sampler: Sampler
    guidance_scale: float
    guidance_rescale: float
    seed: int


def tagged(blocks: Iterable[np.ndarray], units: int, unit_samples: int) -> Iterator[np.ndarray]:
    """Cut a stream (C, n) into units (C, unit_samples + TAGS) float32, the last padded with zeros.

    A unit knows its place, so that a chunk can tell which noise is its own.
    """
    spans = [(number, number + 1) for number in range(units)]
    for number, window in enumerate(split_windows(blocks, spans, unit_samples)):
        channels = np.arange(len(window), dtype=np.float32)[:, None]
        yield np.concatenate([window, np.full_like(channels, number), channels], axis=1)


@dataclass(eq=False)
class Chunks:
    """The nets on chunks of tagged units."""

    net: Denoiser
    autoencoder: FrozenAutoencoder
    features: MelFeatures
    diffusion: CosineDiffusion
    settings: Settings
    copied: Tensor  # bands of the log-mel (units, n_mels) bool that are taken from the input, for each unit of the clip
    encoded: tuple[Tensor, Tensor] | None  # what the global encoder made of each channel of the clip; None without one
    condition_autoencoder: FrozenAutoencoder | None = None  # of the condition; None takes `autoencoder`

    @property
    def unit_samples(self) -> int:
        """Samples of a unit."""
        return unit_samples(self.net, self.autoencoder, self.features)

    @torch.inference_mode()
    def restore(self, chunks: np.ndarray, valid: Sequence[int]) -> np.ndarray:
        """Generate the log-mels (N, n_mels, F) float32 of chunks (N, units * (unit_samples + TAGS)) float32."""
        mel, tags = self._mel(chunks)
        copied = self.copied[tags[..., 0].long()]  # (N, units, n_mels)
        if copied.all():
            return _array(mel)
        scale = self.net.latent_scale
        condition = posterior_mean((self.condition_autoencoder or self.autoencoder).encode(mel).float())
        shape = (condition.shape[1], condition.shape[2] // tags.shape[1], condition.shape[3])
        seeds = [item_seed(self.settings.seed, 0, int(number)) for number in tags[..., 0].flatten().tolist()]
        noises = _in_time(row_noise(seeds, shape, condition.device), len(condition))
        channels, settings = tags[:, 0, 1].long(), self.settings
        encoded = None if self.encoded is None else (self.encoded[0][channels], self.encoded[1][channels])
        predict = conditioned(self.net, condition * scale, encoded, settings.guidance_scale, settings.guidance_rescale)
        latent = self.settings.sampler.sample(predict, next(noises), self.diffusion, noises)
        decoded = self.autoencoder.decode(latent / scale).float()
        copied = copied.repeat_interleave(mel.shape[2] // copied.shape[1], dim=1)[:, None]
        return _array(torch.where(copied, mel, decoded))

    @torch.inference_mode()
    def through(self, chunks: np.ndarray, valid: Sequence[int]) -> np.ndarray:
        """The log-mels of chunks through the autoencoder alone; see `restore`."""
        mel, _ = self._mel(chunks)
        latent = posterior_mean(self.autoencoder.encode(mel).float())
        return _array(self.autoencoder.decode(latent))

    def _mel(self, chunks: np.ndarray) -> tuple[Tensor, Tensor]:
        """Log-mels (N, 1, F, n_mels) and tags (N, units, TAGS)."""
        units = torch.from_numpy(np.ascontiguousarray(chunks)).to(self.copied.device)
        units = units.unflatten(1, (-1, self.unit_samples + TAGS))
        audio, tags = units[..., : self.unit_samples].flatten(1), units[..., self.unit_samples :]
        return self.features(audio[:, None])[:, :, : audio.shape[1] // self.features.hop_length], tags


def unit_samples(net: Denoiser, autoencoder: FrozenAutoencoder, features: MelFeatures) -> int:
    """Samples that make one step of the coarsest image inside the UNet."""
    return features.hop_length * autoencoder.factor * net.unet.factor


def copied_bands(features: MelFeatures, cutoffs_hz: np.ndarray) -> Tensor:
    """Bands (U, n_mels) bool that lie below frequencies (U,) in Hz with all that they cover; all of them for NaN."""
    tops = band_tops(features)
    limits = torch.stack([tops.new_full((), limit) for limit in np.nan_to_num(cutoffs_hz, nan=np.inf).tolist()])
    return tops <= limits[:, None]


def band_tops(features: MelFeatures) -> Tensor:
    """Highest frequencies (n_mels,) in Hz that the bands of a front end cover."""
    basis = features.mel.mel_basis
    bins = torch.arange(basis.shape[1], device=basis.device) * (features.sample_rate / features.n_fft)
    return (basis > 0).mul(bins).amax(dim=1)


@torch.inference_mode()
def clip_mel(
    features: MelFeatures, blocks: Iterable[np.ndarray], samples: int, device: torch.device, most: int = CLIP_FRAMES
) -> Tensor:
    """The log-mel (C, 1, F, n_mels) of a clip of any length in bounded memory, as the global encoder takes it.

    A clip of more than `most` frames is pooled: equal groups of neighbouring frames are averaged.
    """
    hop = features.hop_length
    overlap = math.ceil(math.ceil(features.n_fft / 2 / hop) * 8 / 3)
    chunker = Chunker(max(_MEL_WINDOW, 2 * overlap), overlap, hop)

    def compute(chunks: np.ndarray, valid: Sequence[int]) -> np.ndarray:
        audio = torch.from_numpy(np.ascontiguousarray(chunks)).to(device)
        return _array(features(audio[:, None])[:, :, : audio.shape[1] // hop])

    group = -(-chunker.units(samples) // most)
    sums, counts = np.zeros(0), np.zeros(-(-chunker.units(samples) // group))
    done = 0
    for piece in chunker.process(blocks, samples, compute):
        if not done:
            sums = np.zeros((len(counts), len(piece), features.n_mels))
        places = (done + np.arange(piece.shape[-1])) // group
        np.add.at(sums, places, piece.transpose(2, 0, 1))
        np.add.at(counts, places, 1)
        done += piece.shape[-1]
    pooled = (sums / counts[:, None, None]).swapaxes(0, 1)
    return torch.from_numpy(pooled).float().to(device)[:, None]


def vocoded(
    vocoder: FrozenVocoder, mels: Iterable[np.ndarray], frames: int, batch: int, device: torch.device
) -> Iterator[np.ndarray]:
    """Vocode log-mels, in pieces (C, n_mels, n), as one signal (C, n): windows overlap by what the vocoder sees."""
    overlap = math.ceil(vocoder.net.receptive_frames * 8 / 3)
    chunker = Chunker(max(_VOCODER_WINDOW, 2 * overlap), overlap, vocoder.n_mels, batch)

    @torch.inference_mode()
    def compute(chunks: np.ndarray, valid: Sequence[int]) -> np.ndarray:
        images = torch.from_numpy(np.ascontiguousarray(chunks)).to(device).unflatten(1, (-1, vocoder.n_mels))
        return check_finite(vocoder(images[:, None])[:, 0].float().cpu().numpy())

    rows = (piece.transpose(0, 2, 1).reshape(len(piece), -1) for piece in mels)
    yield from chunker.process(rows, frames * vocoder.n_mels, compute)


def _in_time(noises: Iterator[Tensor], count: int) -> Iterator[Tensor]:
    """Noise of units (count * units, C, n, M) as that of chunks (count, C, units * n, M)."""
    for noise in noises:
        yield noise.unflatten(0, (count, -1)).transpose(1, 2).flatten(2, 3)


def _array(mel: Tensor) -> np.ndarray:
    """Log-mel images (N, 1, F, n_mels) as (N, n_mels, F)."""
    return check_finite(mel[:, 0].transpose(1, 2).float().cpu().numpy())
