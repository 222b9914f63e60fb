"""Where the band of a recording ends."""

from __future__ import annotations

import numpy as np

N_FFT = 2048
HOP_LENGTH = 480  # samples
SHARE = 0.985  # of the summed magnitude that must lie below the cut-off, AudioSR's
_BLOCK_FRAMES = 1024


def spectrum(audio: np.ndarray) -> np.ndarray:
    """Magnitude per frequency, summed over time; sums of a recording's pieces add up.

    Args:
        audio: (T,) float; the end is zero-padded to whole frames of 2048 samples.

    Returns:
        (1025,) float64, from 0 Hz to half the sample rate.

    Raises:
        ValueError: the array has another shape.
    """
    if audio.ndim != 1:
        raise ValueError(f"expected audio (T,), found shape {audio.shape}")
    count = max(0, -(-(len(audio) - N_FFT) // HOP_LENGTH)) + 1
    padded = np.pad(audio.astype(np.float32), (0, (count - 1) * HOP_LENGTH + N_FFT - len(audio)))
    frames = np.lib.stride_tricks.sliding_window_view(padded, N_FFT)[::HOP_LENGTH]
    window = np.hanning(N_FFT + 1)[:-1].astype(np.float32)
    total = np.zeros(N_FFT // 2 + 1)
    for start in range(0, count, _BLOCK_FRAMES):
        total += np.abs(np.fft.rfft(frames[start : start + _BLOCK_FRAMES] * window)).sum(axis=0)
    return total


def cutoff(magnitudes: np.ndarray, sample_rate: int, share: float = SHARE) -> float:
    """The frequency below which a share of the magnitude lies.

    Args:
        magnitudes: (N,) from 0 Hz to half the sample rate, as `spectrum` gives them.
        sample_rate: Hz.
        share: 0 to 1.

    Returns:
        Hz, 0 to sample_rate / 2; 0 for silence.

    Raises:
        ValueError: the share is out of range.
    """
    if not 0 < share < 1:
        raise ValueError(f"share lies between 0 and 1, not {share}")
    below = np.cumsum(magnitudes)
    last = int(np.count_nonzero(below < share * below[-1])) - 1
    return max(last, 0) / (len(magnitudes) - 1) * sample_rate / 2


def detect(audio: np.ndarray, sample_rate: int, share: float = SHARE) -> float:
    """Find where the band of a recording ends.

    The measure is the magnitude and not the power, so that a quiet upper band counts; weak noise up to half the sample
    rate raises the result.

    Args:
        audio: (T,) float.
        sample_rate: Hz.
        share: of the magnitude, summed over time, that lies below the cut-off; 0 to 1.

    Returns:
        Hz, 0 to sample_rate / 2; 0 for silence.

    Raises:
        ValueError: the shape or the share does not fit.

    Source: AudioSR's inference code; its axis is frequency (ProjectLily's copy cumulates over time).
    """
    return cutoff(spectrum(audio), sample_rate, share)
