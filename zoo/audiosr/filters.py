"""Zero-phase low-pass filters of the types and orders that AudioSR degrades with."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
from scipy.signal import bessel, butter, cheby1, ellip, resample_poly, sosfiltfilt

from zoo.audio.effects import fit

FilterType = Literal["butter", "cheby1", "ellip", "bessel"]
FILTER_TYPES: tuple[FilterType, ...] = get_args(FilterType)
_RIPPLE_DB, _STOP_DB = 0.1, 60.0  # AudioSR's, of one pass


def lowpass(
    audio: np.ndarray,
    sample_rate: int,
    cutoff_hz: float,
    filter_type: FilterType = "butter",
    order: int = 8,
    resample: bool = False,
) -> np.ndarray:
    """Limit the band without a delay: the filter runs forwards and backwards.

    Args:
        audio: (T,) float, T >= 1.
        sample_rate: Hz.
        cutoff_hz: 0 < cutoff_hz < sample_rate / 2.
        filter_type: butter, cheby1 (0.1 dB of ripple), ellip (0.1 dB, 60 dB) or bessel.
        order: of one pass, >= 1; AudioSR draws 2 to 10.
        resample: filter, go down to 2 * cutoff_hz and back, and filter again, as the original does: no band is left
            above the cut-off. Quick for cut-offs that divide the sample rate well (multiples of 100 Hz).

    Returns:
        (T,) float32.

    Raises:
        ValueError: the shape, the type, the order or the cut-off does not fit.

    Source: Liu et al., "AudioSR" (2023), section 4.1, and its code's order of steps.
    """
    if audio.ndim != 1 or not audio.size:
        raise ValueError(f"expected audio (T,) of at least one sample, found shape {audio.shape}")
    sections = _sections(sample_rate, cutoff_hz, filter_type, order)
    filtered = _both_ways(sections, audio)
    if resample:
        narrow = round(2 * cutoff_hz)
        filtered = resample_poly(resample_poly(filtered, narrow, sample_rate), sample_rate, narrow)
        filtered = _both_ways(sections, fit(filtered, len(audio)))
    return filtered.astype(np.float32)


def _sections(sample_rate: int, cutoff_hz: float, filter_type: FilterType, order: int) -> np.ndarray:
    if not 0 < cutoff_hz < sample_rate / 2:
        raise ValueError(f"cutoff_hz lies between 0 and half the sample rate, {sample_rate / 2} Hz; found {cutoff_hz}")
    if order < 1:
        raise ValueError(f"order is at least 1, not {order}")
    if filter_type == "butter":
        return butter(order, cutoff_hz, fs=sample_rate, output="sos")
    if filter_type == "cheby1":
        return cheby1(order, _RIPPLE_DB, cutoff_hz, fs=sample_rate, output="sos")
    if filter_type == "ellip":
        return ellip(order, _RIPPLE_DB, _STOP_DB, cutoff_hz, fs=sample_rate, output="sos")
    if filter_type == "bessel":
        return bessel(order, cutoff_hz, fs=sample_rate, output="sos")
    raise ValueError(f"filter_type is one of {', '.join(FILTER_TYPES)}, not {filter_type!r}")


def _both_ways(sections: np.ndarray, audio: np.ndarray) -> np.ndarray:
    """Filter, with the edges extended as scipy does by default, or by what a shorter signal has."""
    extension = 3 * (2 * len(sections) + 1)
    return sosfiltfilt(sections, audio, padlen=min(extension, len(audio) - 1))
