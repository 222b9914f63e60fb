"""Distances between a predicted and a reference signal: audio (T,) or (B, T) float of equal shape; float32 scalars."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

import torch
from torch import Tensor

from zoo.audio.analysis.mel import LogMel
from zoo.audio.analysis.pitch import PitchTrack
from zoo.audio.analysis.spectral import stft_magnitude

_LSD_FFT, _LSD_HOP = 2048, 512  # samples, as in the super-resolution literature at any sample rate
_CEPSTRA = 13  # without c0, the level
MCD_SCALE = 10 / math.log(10) * math.sqrt(2)  # dB


def _check_shapes(prediction: Tensor, target: Tensor) -> None:
    if prediction.shape != target.shape or prediction.dim() not in (1, 2):
        shapes = f"{tuple(prediction.shape)}, {tuple(target.shape)}"
        raise ValueError(f"expected two signals (T,) or (B, T) of equal shape, got {shapes}")


def _log_power_difference(prediction: Tensor, target: Tensor) -> Tensor:
    _check_shapes(prediction, target)
    predicted, expected = (stft_magnitude(x, _LSD_FFT, _LSD_HOP, _LSD_FFT) for x in (prediction, target))
    return 2 * (expected.log10() - predicted.log10())


def lsd(prediction: Tensor, target: Tensor) -> Tensor:
    """Log-spectral distance: RMS over bins of the difference of log10 power, mean over frames and items.

    It follows the level; 1 is a factor 10 in power everywhere.

    Source: Liu et al., "AudioSR" (2024), section 4; power floor 1e-8.
    """
    return _log_power_difference(prediction, target).square().mean(-2).sqrt().mean()


def lsd_bands(prediction: Tensor, target: Tensor, sample_rate: int, edges_hz: Sequence[float]) -> list[Tensor]:
    """The log-spectral distance of each band between neighbouring edges, which rise; NaN of a band without a bin."""
    squares = _log_power_difference(prediction, target).square()
    bins = [math.ceil(edge * _LSD_FFT / sample_rate) for edge in edges_hz]
    bins[-1] = math.floor(edges_hz[-1] * _LSD_FFT / sample_rate) + 1
    return [squares[..., low:high, :].mean(-2).sqrt().mean() for low, high in pairwise(bins)]


@lru_cache(maxsize=8)
def _mel_for(sample_rate: int, device: torch.device) -> LogMel:
    n_fft = 2 ** round(math.log2(0.046 * sample_rate))  # 46 ms: 1024 at 22,050 Hz, 2048 at 48,000 Hz
    with torch.inference_mode(False):  # buffers born in inference mode could not be used with gradients later
        return LogMel(sample_rate, n_fft, n_fft // 4, n_fft, n_mels=80, f_min=0.0, f_max=None).to(device)


def mel_cepstra(x: Tensor, sample_rate: int) -> Tensor:
    """Mel cepstra c1..c13 (B, 13, F) of audio (B, T), scaled as in ln|H(w)| = sum of c_m cos(m w)."""
    log_mel = _mel_for(sample_rate, x.device)(x)
    bands = log_mel.shape[1]
    order = torch.arange(1, _CEPSTRA + 1, device=x.device)[:, None]
    angle = torch.pi * order * (torch.arange(bands, device=x.device) + 0.5) / bands
    return (2 / bands) * angle.cos() @ log_mel


def mcd(prediction: Tensor, target: Tensor, sample_rate: int) -> Tensor:
    """Mel-cepstral distortion in dB over 13 coefficients without the level, mean over frames and items.

    Source: Kubichek, "Mel-cepstral distance measure for objective speech quality assessment" (1993), equation 1.
    """
    _check_shapes(prediction, target)
    predicted, expected = (mel_cepstra(torch.atleast_2d(x), sample_rate) for x in (prediction, target))
    return MCD_SCALE * (predicted - expected).square().sum(1).sqrt().mean()


def si_sdr(prediction: Tensor, target: Tensor) -> Tensor:
    """Scale-invariant signal-to-distortion ratio in dB, mean over items; higher is better.

    Source: Le Roux et al., "SDR - half-baked or well done?" (2019), equation 4, on zero-mean signals.
    """
    _check_shapes(prediction, target)
    signal = prediction.float() - prediction.float().mean(-1, keepdim=True)
    reference = target.float() - target.float().mean(-1, keepdim=True)
    tiny = torch.finfo(torch.float32).eps
    level = reference.square().mean(-1, keepdim=True).sqrt()
    level = torch.where(level > 0, level, 1.0)  # so that the result of quiet signals is that of loud ones
    signal, reference = signal / level, reference / level
    scale = (signal * reference).sum(-1, keepdim=True) / (reference.square().sum(-1, keepdim=True) + tiny)
    projected = scale * reference
    noise = (signal - projected).square().sum(-1)
    return (10 * torch.log10((projected.square().sum(-1) + tiny) / (noise + tiny))).mean()


def f0_rmse_cents(prediction: PitchTrack, target: PitchTrack) -> Tensor:
    """RMS pitch error in cents over the frames voiced in both; NaN when there is none."""
    both = prediction.voiced & target.voiced
    return (1200 * torch.log2(prediction.f0[both] / target.f0[both])).square().mean().sqrt()


def vuv_f1(prediction: PitchTrack, target: PitchTrack) -> Tensor:
    """F1 score of the voicing decision with voiced as the positive class; 1 when both tracks are wholly unvoiced.

    Source: Morrison et al., "Chunked autoregressive GAN" (2022), section 4.
    """
    hits = (prediction.voiced & target.voiced).sum().float()
    total = (prediction.voiced.sum() + target.voiced.sum()).float()
    return torch.where(total > 0, 2 * hits / total.clamp(min=1), 1.0)


def vuv_error(prediction: PitchTrack, target: PitchTrack) -> Tensor:
    """Share of frames whose voicing decision differs."""
    return (prediction.voiced != target.voiced).float().mean()


def periodicity_rmse(prediction: PitchTrack, target: PitchTrack) -> Tensor:
    """RMS difference of the periodicity over all frames, in [0, 1].

    Source: Morrison et al., "Chunked autoregressive GAN" (2022), section 4; our own tracker in place of theirs.
    """
    return (prediction.periodicity - target.periodicity).square().mean().sqrt()
