"""Reconstruction by an autoencoder: log-mels through the latents and back, as files for a vocoder's `predict`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from zoo.audio.analysis.features import write_features
from zoo.audio.inference import AudioInference, as_audio
from zoo.audio.io import files
from zoo.audio.io.chunking import Chunker, match_length, mix_to_mono, resample_blocks
from zoo.audiosr.nets.features import MelFeatures, crop_to_multiple
from zoo.blocks.autoencoder import AutoencoderKL, posterior_mean

BLOCK_SECONDS = 4  # read at once
OVERLAP_SHARE = 8  # a chunk shares this part of its length with its neighbour


class Reconstructor(AudioInference):
    """An autoencoder with its front end, the upper bound of all later stages.

    Long files are processed in overlapping chunks that are cross-faded.

    Args:
        autoencoder: trained, of stage 1.
        features: the front end that it was trained with.
        chunk_seconds: length of a chunk, > 0.
    """

    output_suffix: ClassVar[str] = ".npy"

    def __init__(self, autoencoder: AutoencoderKL, features: MelFeatures, chunk_seconds: float = 10.24) -> None:
        self.autoencoder = autoencoder
        self.features = features
        unit = features.hop_length * autoencoder.factor
        window = round(chunk_seconds * features.sample_rate / unit)
        if window * unit < features.n_fft:
            raise ValueError(f"chunk_seconds {chunk_seconds} is shorter than one frame of {features.n_fft} samples")
        self.chunker = Chunker(window, window // OVERLAP_SHARE, unit, batch=1)

    def __call__(self, audio: np.ndarray, sample_rate: int) -> np.ndarray:
        """Encode and decode (T,) or (C, T), its channels mixed, as a log-mel (n_mels, F) float32; see `as_audio`."""
        audio = np.atleast_2d(as_audio(audio, sample_rate))
        return np.concatenate(list(self._pieces([audio], audio.shape[1], sample_rate)), axis=1)

    def process_file(self, source: Path, target: Path) -> dict[str, Any]:
        """Write the reconstructed log-mel of an audio file as `.npy` (n_mels, F) float32, frame after frame.

        Returns:
            `audio_seconds` and `sample_rate` of the input, `frames`.
        """
        header = files.info(source)
        frames = self._frames(header.samples, header.sample_rate)
        blocks = files.read_blocks(source, BLOCK_SECONDS * header.sample_rate)
        pieces = self._pieces(blocks, header.samples, header.sample_rate)
        write_features(target, (self.features.n_mels, frames), "<f4", pieces)
        return {
            "audio_seconds": header.samples / header.sample_rate,
            "sample_rate": header.sample_rate,
            "frames": frames,
        }

    def _frames(self, samples: int, sample_rate: int) -> int:
        return -(-math.ceil(samples * self.features.sample_rate / sample_rate) // self.features.hop_length)

    def _pieces(self, blocks: Iterable[np.ndarray], samples: int, sample_rate: int) -> Iterator[np.ndarray]:
        """Log-mels (n_mels, m)."""
        length = math.ceil(samples * self.features.sample_rate / sample_rate)
        stream = match_length(resample_blocks(mix_to_mono(blocks), sample_rate, self.features.sample_rate), length)
        mels = self.chunker.process(stream, length, self._compute)
        yield from match_length((piece[0] for piece in mels), self._frames(samples, sample_rate))

    @torch.inference_mode()
    def _compute(self, chunks: np.ndarray, valid: Sequence[int]) -> np.ndarray:
        waveforms = torch.from_numpy(np.ascontiguousarray(chunks)).to(self.device)[:, None]
        mel = crop_to_multiple(self.features(waveforms), self.autoencoder.factor)
        decoded = self.autoencoder.decode(posterior_mean(self.autoencoder.encode(mel)))
        return decoded[:, 0].transpose(1, 2).float().cpu().numpy()
