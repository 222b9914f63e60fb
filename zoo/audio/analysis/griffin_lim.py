"""Waveforms from log-mels without a trained model: the baseline that a vocoder has to beat."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from zoo.audio.analysis.mel import LogMel

_MEL_INVERSION_STEPS = 100
_MOMENTUM = 0.99  # Perraudin et al., section 4
_TINY = 1e-8


class Transform(Protocol):
    """Settings of a short-time Fourier transform in samples, as of a `LogMel`; the window is (win_length,)."""

    n_fft: int
    hop_length: int
    win_length: int
    padding_samples: int
    window: Tensor


def invert_mel(mel_magnitude: Tensor, mel: LogMel) -> Tensor:
    """Find the linear magnitudes (B, n_fft // 2 + 1, F) whose mel projection is nearest, by multiplicative updates.

    Mels are magnitudes, not logarithms; the result is 0 outside [f_min, f_max].

    Source: Lee and Seung, "Algorithms for Non-negative Matrix Factorization" (2000), equation 4, with fixed basis.
    """
    basis = mel.mel_basis
    back = basis.T @ mel_magnitude
    gram = basis.T @ basis
    # Start from the transpose, scaled band by band: positive where a filter reaches and zero elsewhere.
    magnitude = back / (gram.sum(1, keepdim=True) + _TINY)
    for _ in range(_MEL_INVERSION_STEPS):
        magnitude = magnitude * back / (gram @ magnitude + _TINY)
    return magnitude


def griffin_lim(log_mel: Tensor, mel: LogMel, iterations: int = 60, seed: int = 0) -> Tensor:
    """Turn log-mels (B, n_mels, F) into audio (B, F * hop_length) with the fast Griffin-Lim algorithm.

    Source: Griffin and Lim (1984); Perraudin et al., "A fast Griffin-Lim algorithm" (2013), algorithm 2.
    """
    if log_mel.dim() != 3 or log_mel.shape[1] != mel.n_mels:
        raise ValueError(f"expected log-mels (B, {mel.n_mels}, F), got shape {tuple(log_mel.shape)}")
    magnitude = invert_mel(log_mel.float().exp(), mel)
    generator = torch.Generator().manual_seed(seed)
    angles = torch.rand(magnitude.shape, generator=generator).to(magnitude.device) * (2 * torch.pi)
    phase = torch.polar(torch.ones_like(angles), angles)
    return synthesize(magnitude * find_phase(magnitude, phase, mel, iterations), mel)


def find_phase(magnitude: Tensor, phase: Tensor, transform: Transform, iterations: int) -> Tensor:
    """Find phases that make magnitudes (B, n_fft // 2 + 1, F) those of a signal, by the fast Griffin-Lim algorithm.

    Phases are complex of modulus 1, less where the signal is silent, as those to start from. Those of frame i depend on
    the frames that are at most iterations * (ceil(n_fft / hop_length) - 1) away.
    """
    previous = torch.zeros_like(phase)
    for _ in range(iterations):
        rebuilt = torch.stft(
            _overlap_add(magnitude * phase, transform),
            transform.n_fft, transform.hop_length, transform.win_length, transform.window,
            center=False, return_complex=True,
        )  # fmt: skip
        ahead = rebuilt + _MOMENTUM * (rebuilt - previous)
        previous = rebuilt
        phase = ahead / ahead.abs().clamp(min=_TINY)
    return phase


def synthesize(spectrum: Tensor, transform: Transform) -> Tensor:
    """Invert spectra (B, n_fft // 2 + 1, F) to the audio (B, F * hop_length) whose transform has these frames."""
    start = transform.padding_samples
    return _overlap_add(spectrum, transform)[:, start : start + spectrum.shape[-1] * transform.hop_length]


def _overlap_add(spectrum: Tensor, transform: Transform) -> Tensor:
    """Inverse of the uncentred STFT; torch.istft refuses it because the first Hann sample is zero."""
    n_fft, hop = transform.n_fft, transform.hop_length
    edge = (n_fft - transform.win_length) // 2
    window = functional.pad(transform.window, (edge, n_fft - transform.win_length - edge))
    frames = torch.fft.irfft(spectrum, n=n_fft, dim=1) * window[:, None]
    size = (1, (spectrum.shape[-1] - 1) * hop + n_fft)
    added = functional.fold(frames, size, (1, n_fft), stride=(1, hop))
    squares = window.square()[None, :, None].expand(1, -1, spectrum.shape[-1])
    weight = functional.fold(squares, size, (1, n_fft), stride=(1, hop))
    return (added / weight.clamp(min=1e-3))[:, 0, 0]  # the outermost samples carry no weight and are cut off later
