"""A constant-Q transform by one octave's kernels on a signal whose rate is halved again and again."""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

LOWEST_HZ = 32.7
_TAPS = 256


class ConstantQ(nn.Module):
    """Complex constant-Q transform of all octaves from 32.7 Hz on, in hops of samples; scaled as librosa's.

    ValueError when the hop cannot be halved for every octave, or the highest bin is above half the sample rate.
    Source: Schörkhuber and Klapuri, "Constant-Q Transform Toolbox" (2010).
    """

    kernels: Tensor
    half_band: Tensor
    early: Tensor
    gains: Tensor

    def __init__(self, sample_rate: int, hop_length: int, octaves: int, bins_per_octave: int) -> None:
        super().__init__()
        if hop_length % 2 ** (octaves - 1):
            raise ValueError(f"hop_length {hop_length} cannot be halved {octaves - 1} times, for {octaves} octaves")
        quality = 1 / (2 ** (1 / bins_per_octave) - 1)
        lowest = LOWEST_HZ * 2 ** (octaves - 1)
        highest = lowest * 2 ** ((bins_per_octave - 1) / bins_per_octave)
        if highest > sample_rate / 2:
            raise ValueError(f"{octaves} octaves reach {highest:.0f} Hz, above half of {sample_rate} Hz")
        self.factor = _early_factor(sample_rate, hop_length, octaves, highest * (1 + 0.75 / quality))
        rate = sample_rate / self.factor
        self.hop_length, self.octaves = hop_length // self.factor, octaves
        kernels = _kernels(quality, rate, lowest * 2 ** (np.arange(bins_per_octave) / bins_per_octave))
        parts = np.concatenate([kernels.real, -kernels.imag])[:, None]
        frequencies = LOWEST_HZ * 2 ** (np.arange(octaves * bins_per_octave) / bins_per_octave)
        gains = self.factor * np.sqrt(np.ceil(quality * rate / frequencies))
        for name, value in (
            ("kernels", parts), ("half_band", _low_pass(0.5, 0.001)), ("gains", gains[:, None, None]),
            ("early", _low_pass(1 / self.factor, 0.03) if self.factor > 1 else np.zeros((1, 1, 0))),
        ):  # fmt: skip
            self.register_buffer(name, torch.from_numpy(np.ascontiguousarray(value)).float(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Transform audio (B, T) to (B, octaves * bins_per_octave, F, 2), real and imaginary, lowest bin first."""
        x = x[:, None]
        if self.factor > 1:
            x = F.conv1d(x, self.early, stride=self.factor, padding=(_TAPS - 1) // 2)
        bins, hop = [], self.hop_length
        for octave in range(self.octaves):
            if octave:
                hop //= 2
                x = F.conv1d(x, self.half_band, stride=2, padding=(_TAPS - 1) // 2)
            size = self.kernels.shape[-1]
            parts = F.conv1d(x, self.kernels, stride=hop, padding=size // 2)  # (B, 2 * bins_per_octave, F)
            bins.append(torch.stack(parts.chunk(2, 1), -1))
        return torch.cat(bins[::-1], 1) * self.gains


def _early_factor(sample_rate: int, hop_length: int, octaves: int, highest: float) -> int:
    """Compute by how much the rate may be lowered before the first octave."""
    room = max(0, math.ceil(math.log2(0.85 * (sample_rate // 2) / highest)) - 2)
    halvings = max(0, (hop_length & -hop_length).bit_length() - octaves)  # that leave whole hops
    return int(2 ** min(room, halvings))


def _kernels(quality: float, rate: float, frequencies: np.ndarray) -> np.ndarray:
    """Windowed complex exponentials, each in the middle of a row and of absolute sum one."""
    lengths = np.ceil(quality * rate / frequencies).astype(int)
    size = 2 ** math.ceil(math.log2(lengths.max()))
    rows = np.zeros((len(frequencies), size), np.complex64)
    for row, length, frequency in zip(rows, lengths, frequencies, strict=True):
        start = math.ceil(size / 2 - length / 2) - length % 2
        time = np.arange(-length // 2, length // 2)
        window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(length) / length)
        wave = window * np.exp(2j * np.pi * frequency / rate * time) / length
        row[start : start + length] = wave / np.abs(wave).sum()
    return rows


def _low_pass(edge: float, transition: float) -> np.ndarray:
    """Taps (1, 1, 256) of a low-pass filter, its edge as a share of half the rate."""
    from scipy.signal import firwin2

    taps = firwin2(_TAPS, [0.0, edge / (1 + transition), edge * (1 + transition), 1.0], [1.0, 1.0, 0.0, 0.0])
    return taps[None, None]
