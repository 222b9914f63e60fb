"""Where the band of a recording ends."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import scipy

N_FFT = 2048
HOP_LENGTH = 480  # samples
SHARE = 0.985  # of the summed magnitude that must lie below the cut-off, AudioSR's
FULL_BAND = 0.9  # of half the sample rate: above it lie the anti-aliasing filters of converters
NATURAL_DB, CERTAIN_DB = 10.0, 30.0  # falls within half an octave: sounds reach 15 dB, filters of 70 dB/octave 30 dB
CONFIDENCE = 0.5  # from which an edge counts: a fall of 20 dB
_BLOCK_FRAMES = 1024
_WINDOW = np.hanning(N_FFT + 1)[:-1].astype(np.float32)

# The log-frequency grid on which an edge is looked for.
_LOWEST_HZ = 500.0
_BANDS = 24  # per octave: 2.9 %
_RANGE_DB = 120.0  # below the loudest band nothing is told apart
_CLOSING = 5  # bands: holes between partials that are filled
_BELOW, _GAP = 8, 6  # bands: the plateau before an edge, and the room left for the fall

# Fitting the place of an edge: octaves around the first guess, orders of the roll-off, and the part of the fall used.
_SEARCH_OCTAVES = np.arange(-0.3, 0.4, 1 / 96)
_ORDERS = np.array([[4], [6], [8], [10], [12], [16], [20], [32], [64]])
_TREND_OCTAVES = 0.4
_DEPTH_DB = 45.0
_OUTLIER_DB = 15.0
_SAME = 0.1  # part of its frequency by which a segment's edge may differ from the recording's and still be that
_TILT, _TILT_WEIGHT = -3.0, 1.0  # dB per octave that the trend below an edge has where the data does not tell


@dataclass(frozen=True)
class Edge:
    """Where a band ends."""

    hz: float  # the frequency at which the level is 6 dB below the trend of the band
    confidence: float  # 0 to 1, from how far the level falls within half an octave and stays: 0 for 10 dB, 1 for 30 dB


def frame_magnitudes(audio: np.ndarray, hop_length: int) -> Iterator[np.ndarray]:
    """Magnitudes (F, 1025) float32 of the whole frames of audio (T,) float32, T >= 2048, some frames at a time."""
    frames = np.lib.stride_tricks.sliding_window_view(audio, N_FFT)[::hop_length]
    for start in range(0, len(frames), _BLOCK_FRAMES):
        yield np.abs(np.fft.rfft(frames[start : start + _BLOCK_FRAMES] * _WINDOW)).astype(np.float32, copy=False)


def spectrum(audio: np.ndarray) -> np.ndarray:
    """Magnitude per frequency (1025,) float64 of audio (T,), 0 Hz to half the sample rate; sums of pieces add up.

    It is summed over time; the end is zero-padded to whole frames of 2048 samples.
    """
    if audio.ndim != 1:
        raise ValueError(f"expected audio (T,), found shape {audio.shape}")
    count = max(0, -(-(len(audio) - N_FFT) // HOP_LENGTH)) + 1
    padded = np.pad(audio.astype(np.float32), (0, (count - 1) * HOP_LENGTH + N_FFT - len(audio)))
    return sum((block.sum(axis=0) for block in frame_magnitudes(padded, HOP_LENGTH)), np.zeros(N_FFT // 2 + 1))


def cutoff(magnitudes: np.ndarray, sample_rate: int, share: float = SHARE) -> float:
    """The frequency in Hz below which a share, 0 to 1, of magnitudes (N,) as of `spectrum` lies; 0 for silence."""
    if not 0 < share < 1:
        raise ValueError(f"share lies between 0 and 1, not {share}")
    below = np.cumsum(magnitudes)
    last = int(np.count_nonzero(below < share * below[-1])) - 1
    return max(last, 0) / (len(magnitudes) - 1) * sample_rate / 2


def detect(audio: np.ndarray, sample_rate: int, share: float = SHARE) -> float:
    """Find where the band of a recording (T,) ends, by the original's rule: Hz, 0 for silence.

    The measure is the magnitude and not the power, so that a quiet upper band counts; weak noise up to half the sample
    rate raises the result.

    Source: AudioSR's inference code; its axis is frequency (ProjectLily's copy cumulates over time).
    """
    return cutoff(spectrum(audio), sample_rate, share)


def edge(magnitudes: np.ndarray, sample_rate: int, limit_hz: float | None = None) -> Edge:
    """Find the likeliest edge of a band: a steep fall from the band's level to a floor that nothing above exceeds.

    A sound's own decline towards high frequencies is no edge, however little is left there, and neither is the end of
    the whole range: edges are looked for between 630 Hz and 90 % of the limit. Where there is none, the confidence is 0
    and the edge half the sample rate.

    Args:
        magnitudes: (N,) from 0 Hz to half the sample rate, as `spectrum` gives them.
        limit_hz: end of the range in Hz, where a conversion of the sample rate has ended it before; half the sample
            rate when None.
    """
    nothing = Edge(sample_rate / 2, 0.0)
    limit_hz = sample_rate / 2 if limit_hz is None else min(limit_hz, sample_rate / 2)
    ends, levels = _levels(magnitudes, sample_rate, limit_hz)
    count = len(levels)
    candidates = np.array([k for k in range(_BELOW, count - 2) if ends[k] <= FULL_BAND * limit_hz])
    if not len(candidates):
        return nothing
    falls = np.array([np.median(levels[k - _BELOW : k]) - levels[min(k + _GAP, count - 2) :].max() for k in candidates])
    confidence = float(np.clip((falls.max() - NATURAL_DB) / (CERTAIN_DB - NATURAL_DB), 0.0, 1.0))
    if confidence == 0:
        return nothing
    enough = min(falls.max(), (NATURAL_DB + CERTAIN_DB) / 2)
    first = candidates[int(np.argmax(falls >= enough))]  # the same fall may suffice a little further on, too
    octaves = np.log2(ends / _LOWEST_HZ)
    centres = (octaves[:-1] + octaves[1:]) / 2
    return Edge(min(_LOWEST_HZ * 2 ** _corner(centres, levels, first), sample_rate / 2), confidence)


def edges(spectra: np.ndarray, sample_rate: int, limit_hz: float, confidence: float = CONFIDENCE) -> list[Edge | None]:
    """The edge of each segment of a recording, or None, from spectra (S, N) per frame.

    The edge of the whole recording holds in all segments that have nothing above it. A segment with an edge elsewhere
    keeps it when it is more than confident, halfway to certainty: a sound without high frequencies is likelier than a
    change of the recording.
    """
    mean = spectra.mean(axis=0)
    whole = edge(mean, sample_rate, limit_hz)
    counts = whole.confidence >= confidence
    ends, floor = _levels(mean, sample_rate, limit_hz)
    above = slice(min(int(np.searchsorted(ends, whole.hz)) + _GAP, len(floor) - 2), None)
    found: list[Edge | None] = []
    for magnitudes in spectra:
        own = edge(magnitudes, sample_rate, limit_hz)
        same = counts and abs(own.hz / whole.hz - 1) < _SAME
        if own.confidence >= (1 + confidence) / 2 and not same:
            found.append(own)
        elif same or (counts and _levels(magnitudes, sample_rate, limit_hz)[1][above].max() <= floor[above].max() + 6):
            found.append(whole)
        else:
            found.append(None)
    return found


def band_end(audio: np.ndarray, sample_rate: int) -> float:
    """Where the band of a signal (T,) that is known to be limited ends, in Hz: its edge, else the original's rule."""
    found = edge(spectrum(audio), sample_rate)
    return found.hz if found.confidence >= CONFIDENCE else detect(audio, sample_rate)


def _levels(magnitudes: np.ndarray, sample_rate: int, limit_hz: float) -> tuple[np.ndarray, np.ndarray]:
    """Ends (K + 1,) in Hz of the bands below the limit and their levels (K,) in dB, holes between partials filled."""
    spacing = sample_rate / 2 / (len(magnitudes) - 1)
    count = max(int(np.log2(limit_hz / _LOWEST_HZ) * _BANDS + 1e-6), 0)
    ends = _LOWEST_HZ * 2 ** (np.arange(count + 1) / _BANDS)
    places = ends / spacing + 0.5
    energy = np.concatenate([[0.0], np.cumsum(np.square(magnitudes, dtype=np.float64))])
    power = np.diff(np.interp(places, np.arange(len(energy)), energy)) / np.diff(places)
    levels = 10 * np.log10(np.maximum(power, 10 ** (-_RANGE_DB / 10) * max(power.max(initial=0.0), 1e-20)))
    return ends, scipy.ndimage.grey_closing(levels, _CLOSING) if count else levels


def _corner(octaves: np.ndarray, levels: np.ndarray, guess: int) -> float:
    """The octave at which a roll-off like that of Butterworth filters run both ways explains the fall best.

    The trend below the fall is a line; the deep part of the fall, which a floor may hide, is left out.
    """
    floor = float(np.median(levels[min(guess + _GAP, len(levels) - 2) :])) + 3.0
    window = np.abs(octaves - octaves[guess] + 0.2) < 0.8
    best, corner = np.inf, float(octaves[guess])
    octaves, levels = octaves[window], levels[window]
    for place in corner + _SEARCH_OCTAVES:
        near = octaves > place - _TREND_OCTAVES
        x, y = octaves[near] - place, levels[near]
        attenuation = 20 * np.log10(1 + 2.0 ** np.minimum(2 * _ORDERS * x, 300))  # (orders, bands)
        band = attenuation < 1
        count = band.sum(axis=1, keepdims=True)
        attenuation, band, count = (each[count[:, 0] >= 3] for each in (attenuation, band, count))
        if not len(count):
            continue
        x_mean, y_mean = ((band * each).sum(axis=1, keepdims=True) / count for each in (x, y))
        covariance, variance = ((band * (x - x_mean) * each).sum(axis=1, keepdims=True) for each in (y - y_mean, x))
        tilt = (covariance + _TILT_WEIGHT * _TILT) / (variance + _TILT_WEIGHT)
        level = y_mean - tilt * x_mean
        deepest = np.maximum(level - _DEPTH_DB, floor)
        misfit = np.abs(np.maximum(level + tilt * x - attenuation, deepest) - np.maximum(y, deepest))
        cost = float(np.minimum(misfit, _OUTLIER_DB).sum(axis=1).min())
        if cost < best:
            best, corner = cost, float(place)
    return corner
