"""The cut-off of a recording: the frequency at which its band ends."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import scipy

N_FFT = 2048
HOP_LENGTH = 480  # samples
SHARE = 0.985  # of the summed magnitude that lies below the cut-off, AudioSR's
FULL_BAND = 0.9  # of half the sample rate: above it lie the anti-aliasing filters of converters
EDGE_DB = 20.0  # least fall within a quarter of an octave: sounds reach 15 dB, filters of 70 dB per octave 30 dB
_BLOCK_FRAMES = 1024
_WINDOW = np.hanning(N_FFT + 1)[:-1].astype(np.float32)

# The log-frequency grid of the search for an edge.
_LOWEST_HZ = 500.0
_BANDS = 24  # per octave: 2.9 %
_RANGE_DB = 120.0  # below the loudest band
_CLOSING = 5  # bands: holes between partials that are filled
_PLATEAU, _GAP = 8, 6  # bands: the level before an edge is their median; those of the fall
_CORNER_DB = 6.0  # below the plateau: the edge


def frame_magnitudes(audio: np.ndarray, hop_length: int) -> Iterator[np.ndarray]:
    """Yield magnitudes (F, 1025) float32 of the complete frames of audio (T,) float32, T >= 2048, in blocks."""
    frames = np.lib.stride_tricks.sliding_window_view(audio, N_FFT)[::hop_length]
    for start in range(0, len(frames), _BLOCK_FRAMES):
        yield np.abs(np.fft.rfft(frames[start : start + _BLOCK_FRAMES] * _WINDOW)).astype(np.float32, copy=False)


def spectrum(audio: np.ndarray) -> np.ndarray:
    """Sum the magnitudes (1025,) float64 of audio (T,) over time; its end is zero-padded to complete frames."""
    if audio.ndim != 1:
        raise ValueError(f"expected audio (T,), found shape {audio.shape}")
    count = max(0, -(-(len(audio) - N_FFT) // HOP_LENGTH)) + 1
    padded = np.pad(audio.astype(np.float32), (0, (count - 1) * HOP_LENGTH + N_FFT - len(audio)))
    return sum((block.sum(axis=0) for block in frame_magnitudes(padded, HOP_LENGTH)), np.zeros(N_FFT // 2 + 1))


def share_cutoff(magnitudes: np.ndarray, sample_rate: int) -> float:
    """Return the frequency in Hz below which 98.5 % of magnitudes (N,), 0 Hz to Nyquist, lie; 0 for silence.

    Source: AudioSR's inference code; its axis is frequency (ProjectLily's copy cumulates over time).
    """
    below = np.cumsum(magnitudes)
    last = int(np.count_nonzero(below < SHARE * below[-1])) - 1
    return max(last, 0) / (len(magnitudes) - 1) * sample_rate / 2


def find_edge(magnitudes: np.ndarray, sample_rate: int, limit_hz: float | None = None) -> float | None:
    """Find the edge of a band in Hz, or None: a steep fall to a floor that nothing above exceeds; 6 dB down.

    A sound's own decline is no edge, and edges lie between 630 Hz and 90 % of the limit, where an earlier conversion of
    the sample rate ended the range. Magnitudes (N,) reach from 0 Hz to half the sample rate, see `spectrum`.
    """
    limit_hz = sample_rate / 2 if limit_hz is None else min(limit_hz, sample_rate / 2)
    ends, levels = _band_levels(magnitudes, sample_rate, limit_hz)
    last = len(levels) - 2
    for band in range(_PLATEAU, last):
        if ends[band] > FULL_BAND * limit_hz:
            return None
        stop = min(band + _GAP, last)
        floor = levels[stop:].max()
        if np.median(levels[band - _PLATEAU : band]) - floor >= EDGE_DB:
            return _locate_corner(ends, levels, range(band - 1, stop), floor)
    return None


def _locate_corner(ends: np.ndarray, levels: np.ndarray, bands: range, floor: float) -> float:
    """Interpolate the frequency at which the level is 6 dB below that of the last bands before the fall."""
    before = [j for j in bands if levels[j] > floor + 14 and levels[j] >= levels[j - 2 : j].mean() - 5]
    start = before[-1] if before else bands[0]
    corner = np.median(levels[start - 5 : start + 1]) - _CORNER_DB
    below = start + 1 + int(np.argmax(levels[start + 1 :] < corner))
    first, second = levels[below - 1 : below + 1]
    part = float(np.clip((first - corner) / max(first - second, 1e-6), 0.0, 1.0))
    return float(ends[below - 1] * 2 ** ((0.5 + part) / _BANDS))


def estimate_cutoff(audio: np.ndarray, sample_rate: int) -> float:
    """Estimate where a band-limited signal (T,) ends, in Hz: at its edge, or else by AudioSR's share of magnitude."""
    magnitudes = spectrum(audio)
    edge = find_edge(magnitudes, sample_rate)
    return share_cutoff(magnitudes, sample_rate) if edge is None else edge


def _band_levels(magnitudes: np.ndarray, sample_rate: int, limit_hz: float) -> tuple[np.ndarray, np.ndarray]:
    """Return ends (K + 1,) in Hz of the bands below the limit and levels (K,) in dB, holes between partials filled."""
    spacing = sample_rate / 2 / (len(magnitudes) - 1)
    count = max(int(np.log2(limit_hz / _LOWEST_HZ) * _BANDS + 1e-6), 0)
    ends = _LOWEST_HZ * 2 ** (np.arange(count + 1) / _BANDS)
    bins = ends / spacing + 0.5
    energy = np.concatenate([[0.0], np.cumsum(np.square(magnitudes, dtype=np.float64))])
    power = np.diff(np.interp(bins, np.arange(len(energy)), energy)) / np.diff(bins)
    levels = 10 * np.log10(np.maximum(power, 10 ** (-_RANGE_DB / 10) * max(power.max(initial=0.0), 1e-20)))
    return ends, scipy.ndimage.grey_closing(levels, _CLOSING) if count else levels
