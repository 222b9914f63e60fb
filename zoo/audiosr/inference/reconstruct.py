"""Reconstruction by an autoencoder: log-mels through the latents and back, as files for a vocoder's `predict`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from zoo.audio.inference import FeatureInference, FeatureLayout
from zoo.audio.io.chunking import Chunker
from zoo.audiosr.nets.features import MelFeatures, crop_to_multiple
from zoo.blocks.autoencoder import AutoencoderKL, posterior_mean

OVERLAP_SHARE = 8  # a chunk shares this part of its length with its neighbour


class Reconstructor(FeatureInference):
    """An autoencoder with its front end, the upper bound of all later stages.

    Long files are processed in overlapping chunks that are cross-faded.

    Args:
        autoencoder: trained, of stage 1.
        features: the front end that it was trained with.
        chunk_seconds: length of a chunk, > 0.
    """

    def __init__(self, autoencoder: AutoencoderKL, features: MelFeatures, chunk_seconds: float = 10.24) -> None:
        self.autoencoder = autoencoder
        self.features = features
        unit = features.hop_length * autoencoder.factor
        window = round(chunk_seconds * features.sample_rate / unit)
        if window * unit < features.n_fft:
            raise ValueError(f"chunk_seconds {chunk_seconds} is shorter than one frame of {features.n_fft} samples")
        self.chunker = Chunker(window, window // OVERLAP_SHARE, unit, batch=1)

    @property
    def layout(self) -> FeatureLayout:
        """Log-mels, float32."""
        return FeatureLayout(self.features.sample_rate, self.features.hop_length, self.features.n_mels, "<f4")

    @torch.inference_mode()
    def compute(self, chunks: np.ndarray, valid: Sequence[int]) -> np.ndarray:
        """Decode the latents of chunks' log-mels."""
        waveforms = torch.from_numpy(np.ascontiguousarray(chunks)).to(self.device)[:, None]
        mel = crop_to_multiple(self.features(waveforms), self.autoencoder.factor)
        decoded = self.autoencoder.decode(posterior_mean(self.autoencoder.encode(mel)))
        return decoded[:, 0].transpose(1, 2).float().cpu().numpy()
