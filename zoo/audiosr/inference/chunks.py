"""Restoring log-mels chunk by chunk, and the context of the clip."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from zoo.audio.io.chunking import Chunker, check_finite, split_windows
from zoo.audiosr.diffusion import row_noise
from zoo.audiosr.nets.features import MelFeatures
from zoo.audiosr.nets.frozen import FrozenVocoder
from zoo.audiosr.samplers import conditional_predictor
from zoo.blocks.autoencoder import posterior_mean
from zoo.training.resume import item_seed

if TYPE_CHECKING:
    from zoo.audiosr.inference.restore import Restorer

TAGS = 2  # values that follow the samples of a unit: its number in the clip, and its channel
CLIP_FRAMES = 1024  # most frames that the global encoder takes: those of a training crop of 10.24 s

_MEL_WINDOW = 512  # frames of a clip's mel at once
_VOCODER_WINDOW = 512  # frames vocoded at once


def tag_units(blocks: Iterable[np.ndarray], units: int, unit_samples: int) -> Iterator[np.ndarray]:
    """Cut a stream (C, n) into units (C, unit_samples + TAGS) float32, the last padded with zeros.

    The tags say the position of a unit, from which its noise follows in whatever chunk it is.
    """
    spans = [(number, number + 1) for number in range(units)]
    for number, window in enumerate(split_windows(blocks, spans, unit_samples)):
        channels = np.arange(len(window), dtype=np.float32)[:, None]
        yield np.concatenate([window, np.full_like(channels, number), channels], axis=1)


@dataclass(eq=False)
class ChunkRestorer:
    """The nets of a restorer on chunks of tagged units."""

    restorer: Restorer
    input_bands: Tensor  # bands of the log-mel (n_mels,) bool that come from the input
    context: Tensor | None  # of each channel of the clip (C, G), see `Denoiser.encode_clip`; None without an encoder

    @torch.inference_mode()
    def restore(self, chunks: np.ndarray, valid: Sequence[int]) -> np.ndarray:
        """Generate the log-mels (N, n_mels, F) float32 of chunks (N, units * (unit_samples + TAGS)) float32."""
        restorer, options = self.restorer, self.restorer.restore
        mel, tags = self._mel(chunks)
        scale = restorer.net.latent_scale
        condition = posterior_mean(restorer.autoencoder.encode(mel).float())
        shape = (condition.shape[1], condition.shape[2] // tags.shape[1], condition.shape[3])
        seeds = [item_seed(options.seed, 0, int(number)) for number in tags[..., 0].flatten().tolist()]
        # of units (N * units, C, n, M), joined to that of chunks (N, C, units * n, M)
        noises = (
            noise.unflatten(0, (len(condition), -1)).transpose(1, 2).flatten(2, 3)
            for noise in row_noise(seeds, shape, condition.device)
        )
        context = None if self.context is None else self.context[tags[:, 0, 1].long()]
        predict = conditional_predictor(
            restorer.net, condition * scale, context, options.guidance_scale, options.guidance_rescale
        )
        latent = restorer.sampler.sample(predict, next(noises), restorer.diffusion, noises)
        decoded = restorer.autoencoder.decode(latent / scale).float()
        return _to_array(torch.where(self.input_bands, mel, decoded))

    @torch.inference_mode()
    def autoencode(self, chunks: np.ndarray, valid: Sequence[int]) -> np.ndarray:
        """Pass the log-mels of chunks through the autoencoder alone; see `restore`."""
        latent = posterior_mean(self.restorer.autoencoder.encode(self._mel(chunks)[0]).float())
        return _to_array(self.restorer.autoencoder.decode(latent))

    def _mel(self, chunks: np.ndarray) -> tuple[Tensor, Tensor]:
        """Log-mels (N, 1, F, n_mels) and tags (N, units, TAGS)."""
        samples, features = self.restorer.unit_samples, self.restorer.features
        units = torch.from_numpy(np.ascontiguousarray(chunks)).to(self.input_bands.device)
        units = units.unflatten(1, (-1, samples + TAGS))
        audio, tags = units[..., :samples].flatten(1), units[..., samples:]
        return features(audio[:, None])[:, :, : audio.shape[1] // features.hop_length], tags


def bands_below(features: MelFeatures, cutoff_hz: float) -> Tensor:
    """Tell which mel bands (n_mels,) lie below a frequency in Hz completely."""
    basis = features.mel.mel_basis
    bins = torch.arange(basis.shape[1], device=basis.device) * (features.sample_rate / features.n_fft)
    return (basis > 0).mul(bins).amax(dim=1) <= cutoff_hz


@torch.inference_mode()
def clip_mel(
    features: MelFeatures, blocks: Iterable[np.ndarray], samples: int, device: torch.device, most: int = CLIP_FRAMES
) -> Tensor:
    """Compute the log-mel (C, 1, F, n_mels) of a clip of any length in bounded memory, for the global encoder.

    A clip of more than `most` frames is pooled: equal groups of neighbouring frames are averaged.
    """
    hop = features.hop_length
    overlap = math.ceil(math.ceil(features.n_fft / 2 / hop) * 8 / 3)
    chunker = Chunker(max(_MEL_WINDOW, 2 * overlap), overlap, hop)

    def compute(chunks: np.ndarray, valid: Sequence[int]) -> np.ndarray:
        audio = torch.from_numpy(np.ascontiguousarray(chunks)).to(device)
        return _to_array(features(audio[:, None])[:, :, : audio.shape[1] // hop])

    frames = chunker.units(samples)
    group = -(-frames // most)
    counts = np.bincount(np.arange(frames) // group)
    sums = np.zeros((len(counts), 1, features.n_mels))
    done = 0
    for piece in chunker.process(blocks, samples, compute):
        if not done:
            sums = np.zeros((len(counts), len(piece), features.n_mels))
        groups = (done + np.arange(piece.shape[-1])) // group
        np.add.at(sums, groups, piece.transpose(2, 0, 1))
        done += piece.shape[-1]
    pooled = (sums / counts[:, None, None]).swapaxes(0, 1)
    return torch.from_numpy(pooled).float().to(device)[:, None]


def vocode(
    vocoder: FrozenVocoder, mels: Iterable[np.ndarray], frames: int, batch: int, device: torch.device
) -> Iterator[np.ndarray]:
    """Vocode log-mels, in pieces (C, n_mels, n), as one signal (C, n): windows overlap by what the vocoder sees."""
    overlap = math.ceil((vocoder.net.receptive_frames or 0) * 8 / 3)
    chunker = Chunker(max(_VOCODER_WINDOW, 2 * overlap), overlap, vocoder.n_mels, batch)

    @torch.inference_mode()
    def compute(chunks: np.ndarray, valid: Sequence[int]) -> np.ndarray:
        images = torch.from_numpy(np.ascontiguousarray(chunks)).to(device).unflatten(1, (-1, vocoder.n_mels))
        return check_finite(vocoder(images[:, None])[:, 0].float().cpu().numpy())

    rows = (piece.transpose(0, 2, 1).reshape(len(piece), -1) for piece in mels)
    yield from chunker.process(rows, frames * vocoder.n_mels, compute)


def _to_array(mel: Tensor) -> np.ndarray:
    """Turn log-mel images (N, 1, F, n_mels) into (N, n_mels, F)."""
    return check_finite(mel[:, 0].transpose(1, 2).float().cpu().numpy())
