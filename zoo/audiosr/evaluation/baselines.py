"""Baselines of super-resolution: linear interpolation, and noise in the shape of the training set's spectrum."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import torch

from zoo.audio.io.resample import resample_array
from zoo.audiosr.data.cutoff import N_FFT
from zoo.audiosr.inference.crossover import crossover_gains, istft, stft

_QUIET_DB = 60.0  # frames so far below the loudest one of their clip say nothing about the envelope
_FLOOR = 1e-6  # of magnitudes
_EULER = 0.5772156649  # the mean logarithm of a Gaussian bin's power lies so far below that of its mean power


def linear(low: np.ndarray, sample_rate: int, cutoff_hz: float) -> np.ndarray:
    """Linear interpolation (T,) float32 of the samples that the band needs, two for each period of the cut-off.

    The images above the cut-off are what interpolation leaves.
    """
    narrow = max(round(2 * cutoff_hz), 1)
    samples = resample_array(low, sample_rate, narrow)
    places = np.arange(len(low)) / sample_rate
    return np.interp(places, np.arange(len(samples)) / narrow, samples).astype(np.float32)


def mean_envelope(clips: Iterable[np.ndarray]) -> np.ndarray:
    """Mean natural logarithm (1025,) float64 of the magnitude spectrum of full-band clips (T,) at one sample rate."""
    total, count = torch.zeros(N_FFT // 2 + 1, dtype=torch.float64), 0
    for clip in clips:
        magnitudes = stft(torch.from_numpy(np.ascontiguousarray(clip, np.float32))).abs()
        levels = magnitudes.square().sum(dim=0)
        loud = magnitudes[:, levels > levels.max() * 10 ** (-_QUIET_DB / 10)]
        total += loud.clamp(min=_FLOOR).log().sum(dim=1)
        count += loud.shape[1]
    if not count:
        raise ValueError("expected at least one clip that is not silent, found none: name a folder of training audio")
    return (total / count).numpy()


def shaped_noise(low: np.ndarray, sample_rate: int, cutoff_hz: float, envelope: np.ndarray) -> np.ndarray:
    """The input with noise above its cut-off that has a mean envelope, frame by frame at the level of the low band.

    A frame's level is that of the octave below the cut-off, compared with the envelope's (`mean_envelope` at this
    sample rate); levels are mean logarithms.
    """
    audio = torch.from_numpy(np.ascontiguousarray(low, np.float32))
    low_image = stft(audio)
    noise = stft(torch.randn(len(audio), generator=torch.Generator().manual_seed(0)))
    last = max(round(cutoff_hz / sample_rate * N_FFT), 2)
    band = slice(last // 2, last)
    shape = torch.from_numpy(envelope).float()[:, None]
    offset = (low_image[band].abs().clamp(min=_FLOOR).log() - shape[band]).mean(dim=0)
    spread = math.sqrt(float(torch.hann_window(N_FFT).square().sum()))
    below, above = (torch.from_numpy(gains)[:, None] for gains in crossover_gains(cutoff_hz, sample_rate))
    image = below * low_image + above * noise * torch.exp(shape + offset + _EULER / 2) / spread
    return istft(image, len(audio)).numpy()
