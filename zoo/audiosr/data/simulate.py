"""Band-limited counterparts of full-band audio by random low-pass filters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np
import scipy

from zoo.audio.io.resample import match_array_length
from zoo.common.checks import check_at_least, check_one_of, check_within

FilterType = Literal["butter", "cheby1", "ellip", "bessel"]
FILTER_TYPES: tuple[FilterType, ...] = get_args(FilterType)
VAL_ORDER = 8  # of the validation grid's filters: the original's only order
STEP_HZ = 100.0  # of the sampled cut-offs: resampling by ratios of small numbers is quick
_RIPPLE_DB, _STOP_DB = 0.1, 60.0  # AudioSR's, of one pass
_NYQUIST_SHARE = 0.95  # of half the sample rate: a filter above it would leave nothing to predict


def lowpass(
    audio: np.ndarray,
    sample_rate: int,
    cutoff_hz: float,
    filter_type: FilterType = "butter",
    order: int = 8,
    resample: bool = False,
    bessel_norm: Literal["phase", "mag"] = "phase",
) -> np.ndarray:
    """Low-pass audio (T,) without a delay: the filter runs forwards and backwards.

    Args:
        audio: (T,) float, T >= 1.
        cutoff_hz: 0 < cutoff_hz < sample_rate / 2.
        filter_type: butter, cheby1 (0.1 dB of ripple), ellip (0.1 dB, 60 dB) or bessel.
        order: of one pass, >= 1; AudioSR samples 2 to 10.
        resample: filter, go down to 2 * cutoff_hz and back, and filter again, as the original does: no band is left
            above the cut-off. Quick for cut-offs that divide the sample rate well (multiples of 100 Hz).
        bessel_norm: `phase` as the original, whose Bessel filter ends far below its cut-off; `mag` ends there.

    Source: Liu et al., "AudioSR" (2023), section 4.1, and its code's order of steps.
    """
    if audio.ndim != 1 or not audio.size:
        raise ValueError(f"expected audio (T,) of at least one sample, found shape {audio.shape}")
    if not 0 < cutoff_hz < sample_rate / 2:
        raise ValueError(f"cutoff_hz lies between 0 and half the sample rate, {sample_rate / 2} Hz; found {cutoff_hz}")
    check_at_least(1, order=order)
    check_one_of(FILTER_TYPES, filter_type=filter_type)
    if filter_type == "bessel":
        sections = scipy.signal.bessel(order, cutoff_hz, "lowpass", output="sos", norm=bessel_norm, fs=sample_rate)
    else:
        sections = scipy.signal.iirfilter(
            order, cutoff_hz, _RIPPLE_DB, _STOP_DB, "lowpass", ftype=filter_type, output="sos", fs=sample_rate
        )
    filtered = _filter_both_ways(sections, audio)
    if resample:
        narrow = round(2 * cutoff_hz)
        for rates in ((narrow, sample_rate), (sample_rate, narrow)):
            filtered = scipy.signal.resample_poly(filtered, *rates)
        filtered = _filter_both_ways(sections, match_array_length(filtered, len(audio)))
    return filtered.astype(np.float32)


def _filter_both_ways(sections: np.ndarray, audio: np.ndarray) -> np.ndarray:
    """Filter, with the edges extended as scipy does by default, or by what a shorter signal has."""
    extension = 3 * (2 * len(sections) + 1)
    return scipy.signal.sosfiltfilt(sections, audio, padlen=min(extension, len(audio) - 1))


class Simulation:
    """Limits the band of a signal by a random filter at zero phase, with or without resampling to twice the cut-off.

    Equal arguments and an equal generator state give equal samples.

    Args:
        cutoff_hz: lowest and highest cut-off in Hz; the highest is lowered to 95 % of half the sample rate.
        filter_types: filter types, sampled evenly.
        order: lowest and highest order of the filter, 1 to 10.
        resampling: share of the items that are resampled and filtered once more, 0 to 1.

    Source: AudioSR (arXiv 2309.07314), section 3: cut-offs of 2 to 16 kHz and random filters.
    """

    def __init__(
        self,
        cutoff_hz: tuple[float, float] = (2000.0, 16000.0),
        filter_types: Sequence[FilterType] = FILTER_TYPES,
        order: tuple[int, int] = (2, 10),
        resampling: float = 0.5,
    ) -> None:
        self.cutoff_hz = (float(cutoff_hz[0]), float(cutoff_hz[1]))
        self.filter_types = tuple(filter_types)
        self.order = (int(order[0]), int(order[1]))
        self.resampling = resampling
        if not 0 < self.cutoff_hz[0] <= self.cutoff_hz[1]:
            raise ValueError(f"simulation.cutoff_hz: expected 0 < lowest <= highest, found {list(self.cutoff_hz)}")
        if not self.filter_types or (unknown := set(self.filter_types) - set(FILTER_TYPES)):
            names = ", ".join(sorted(unknown)) if self.filter_types else "none"
            raise ValueError(f"simulation.filter_types: expected some of {', '.join(FILTER_TYPES)}, found {names}")
        if not 1 <= self.order[0] <= self.order[1] <= 10:
            raise ValueError(f"simulation.order: expected 1 <= lowest <= highest <= 10, found {list(self.order)}")
        check_within(0, 1, resampling=resampling)

    def degrade(self, high: np.ndarray, sample_rate: int, rng: np.random.Generator) -> tuple[np.ndarray, float]:
        """Filter audio (T,) float32, T >= 1, at random; returns it, aligned and at its level, and the cut-off in Hz."""
        cutoff_hz = self._sample_cutoff(sample_rate, rng)
        filter_type = self.filter_types[int(rng.integers(len(self.filter_types)))]
        order = int(rng.integers(self.order[0], self.order[1] + 1))
        resample = bool(rng.random() < self.resampling)
        return lowpass(high, sample_rate, cutoff_hz, filter_type, order, resample), cutoff_hz

    def limit_band(self, high: np.ndarray, sample_rate: int, cutoff_hz: float, number: int) -> np.ndarray:
        """Filter (T,) float32 for validation; the filter types take turns by `number`, 0 or more."""
        filter_type = self.filter_types[number % len(self.filter_types)]
        return lowpass(high, sample_rate, cutoff_hz, filter_type, VAL_ORDER, bessel_norm="mag")

    def band(self, sample_rate: int) -> tuple[float, float]:
        """Return the range of cut-offs in Hz at a sample rate; ValueError where it cannot hold the lowest."""
        highest = min(self.cutoff_hz[1], max_cutoff_hz(sample_rate))
        if self.cutoff_hz[0] > highest:
            raise ValueError(
                f"simulation.cutoff_hz: the lowest cut-off of {self.cutoff_hz[0]:g} Hz lies above {highest:g} Hz, the "
                f"highest at a sample rate of {sample_rate} Hz; lower it"
            )
        return self.cutoff_hz[0], highest

    def _sample_cutoff(self, sample_rate: int, rng: np.random.Generator) -> float:
        lowest, highest = self.band(sample_rate)
        first, last = math.ceil(lowest / STEP_HZ), math.floor(highest / STEP_HZ)
        if first > last:
            return float(rng.uniform(lowest, highest))
        return STEP_HZ * int(rng.integers(first, last + 1))


def max_cutoff_hz(sample_rate: int) -> float:
    """Return the highest cut-off in Hz that leaves something to predict at a sample rate."""
    return _NYQUIST_SHARE * sample_rate / 2
