"""Band-limited counterparts of full-band audio: a random low-pass filter, and what else happens to such recordings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal, get_args

import numpy as np
import scipy

from zoo.audio.augment.degrade import DegradationRanges, Degrader
from zoo.audio.augment.effects import match_length
from zoo.audio.corpora.corpus import Corpus
from zoo.common.checks import check_at_least, check_one_of, check_within

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
    """Low-pass audio (T,) without a delay: the filter runs forwards and backwards.

    Args:
        audio: (T,) float, T >= 1.
        cutoff_hz: 0 < cutoff_hz < sample_rate / 2.
        filter_type: butter, cheby1 (0.1 dB of ripple), ellip (0.1 dB, 60 dB) or bessel.
        order: of one pass, >= 1; AudioSR samples 2 to 10.
        resample: filter, go down to 2 * cutoff_hz and back, and filter again, as the original does: no band is left
            above the cut-off. Quick for cut-offs that divide the sample rate well (multiples of 100 Hz).

    Source: Liu et al., "AudioSR" (2023), section 4.1, and its code's order of steps.
    """
    if audio.ndim != 1 or not audio.size:
        raise ValueError(f"expected audio (T,) of at least one sample, found shape {audio.shape}")
    sections = _sections(sample_rate, cutoff_hz, filter_type, order)
    filtered = _filter_both_ways(sections, audio)
    if resample:
        narrow = round(2 * cutoff_hz)
        for rates in ((narrow, sample_rate), (sample_rate, narrow)):
            filtered = scipy.signal.resample_poly(filtered, *rates)
        filtered = _filter_both_ways(sections, match_length(filtered, len(audio)))
    return filtered.astype(np.float32)


def _sections(sample_rate: int, cutoff_hz: float, filter_type: FilterType, order: int) -> np.ndarray:
    if not 0 < cutoff_hz < sample_rate / 2:
        raise ValueError(f"cutoff_hz lies between 0 and half the sample rate, {sample_rate / 2} Hz; found {cutoff_hz}")
    check_at_least(1, order=order)
    check_one_of(FILTER_TYPES, filter_type=filter_type)
    return scipy.signal.iirfilter(
        order, cutoff_hz, _RIPPLE_DB, _STOP_DB, "lowpass", ftype=filter_type, output="sos", fs=sample_rate
    )


def _filter_both_ways(sections: np.ndarray, audio: np.ndarray) -> np.ndarray:
    """Filter, with the edges extended as scipy does by default, or by what a shorter signal has."""
    extension = 3 * (2 * len(sections) + 1)
    return scipy.signal.sosfiltfilt(sections, audio, padlen=min(extension, len(audio) - 1))


Range = tuple[float, float]

VAL_ORDER = 8  # of the validation grid's filters: the original's only order
_NYQUIST_SHARE = 0.95  # of half the sample rate: a filter above it would leave nothing to predict
STEP_HZ = 100.0  # of the sampled cut-offs: resampling by ratios of small numbers is quick
_CODECS: dict[str, list[float]] = {"mp3": [64, 96, 128], "opus": [32, 48, 64]}  # kb/s for one channel


class Simulation:
    """Limits the band of a signal at random; equal arguments and an equal generator state give equal samples.

    Noise comes first, then the filter at zero phase, with or without resampling to twice the cut-off and back, then the
    codec, whose delay is removed. A codec may limit the band further than the cut-off that is reported.

    Args:
        cutoff_hz: lowest and highest cut-off in Hz; the highest is lowered to 95 % of half the sample rate.
        filter_types: filter types, sampled evenly.
        order: lowest and highest order of the filter, 1 to 10.
        resampling: share of the items that are resampled and filtered once more, 0 to 1.
        noise: share of the items with noise ahead of the filter, 0 to 1.
        snr_db: lowest and highest signal-to-noise ratio in dB.
        codec: share of the items that go through a codec, 0 to 1.
        codecs: settings by codec, see `zoo.audio.augment.codecs.encode_decode`; null: MP3 and Opus at common rates.

    Source: AudioSR (arXiv 2309.07314), section 3: cut-offs of 2 to 16 kHz and random filters.
    """

    def __init__(
        self,
        cutoff_hz: Range = (2000.0, 16000.0),
        filter_types: Sequence[FilterType] = FILTER_TYPES,
        order: tuple[int, int] = (2, 10),
        resampling: float = 0.5,
        noise: float = 0.0,
        snr_db: Range = (20.0, 50.0),
        codec: float = 0.1,
        codecs: Mapping[str, Sequence[float]] | None = None,
    ) -> None:
        self.cutoff_hz = (float(cutoff_hz[0]), float(cutoff_hz[1]))
        self.filter_types = tuple(filter_types)
        self.order = (int(order[0]), int(order[1]))
        self.resampling = resampling
        self.noise = noise
        self.codec = codec
        self._check()
        noisy = DegradationRanges(snr_db=(float(snr_db[0]), float(snr_db[1])))
        coded = DegradationRanges(codecs=_CODECS if codecs is None else codecs)
        self._before = Degrader(("noise",), {"noise": noise}, ranges=noisy) if noise else None
        self._after = Degrader(("codec",), {"codec": codec}, ranges=coded) if codec else None

    def degrade(
        self, high: np.ndarray, sample_rate: int, rng: np.random.Generator, noises: Corpus | None = None
    ) -> tuple[np.ndarray, float]:
        """Sample a degradation and apply it to audio (T,) float32, T >= 1.

        Noise at `sample_rate` is needed where `noise` > 0.

        Returns:
            The degraded audio (T,) float32, aligned with `high` and at its level, and the cut-off in Hz.
        """
        cutoff_hz = self._sample_cutoff(sample_rate, rng)
        filter_type = self.filter_types[int(rng.integers(len(self.filter_types)))]
        order = int(rng.integers(self.order[0], self.order[1] + 1))
        low = high if self._before is None else _at_level(self._before, high, sample_rate, rng, noises)
        low = lowpass(low, sample_rate, cutoff_hz, filter_type, order, resample=bool(rng.random() < self.resampling))
        if self._after is not None:
            low = _at_level(self._after, low, sample_rate, rng, None)
        return low, cutoff_hz

    def limit_band(self, high: np.ndarray, sample_rate: int, cutoff_hz: float, number: int) -> np.ndarray:
        """Filter (T,) float32 for validation; the filter types take turns by `number`, 0 or more."""
        filter_type = self.filter_types[number % len(self.filter_types)]
        return lowpass(high, sample_rate, cutoff_hz, filter_type, VAL_ORDER)

    def band(self, sample_rate: int) -> Range:
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

    def _check(self) -> None:
        if not 0 < self.cutoff_hz[0] <= self.cutoff_hz[1]:
            raise ValueError(f"simulation.cutoff_hz: expected 0 < lowest <= highest, found {list(self.cutoff_hz)}")
        if not self.filter_types or (unknown := set(self.filter_types) - set(FILTER_TYPES)):
            names = ", ".join(sorted(unknown)) if self.filter_types else "none"
            raise ValueError(f"simulation.filter_types: expected some of {', '.join(FILTER_TYPES)}, found {names}")
        if not 1 <= self.order[0] <= self.order[1] <= 10:
            raise ValueError(f"simulation.order: expected 1 <= lowest <= highest <= 10, found {list(self.order)}")
        check_within(0, 1, resampling=self.resampling, noise=self.noise, codec=self.codec)


def max_cutoff_hz(sample_rate: int) -> float:
    """Return the highest cut-off in Hz that leaves something to predict at a sample rate."""
    return _NYQUIST_SHARE * sample_rate / 2


def _at_level(
    degrader: Degrader, audio: np.ndarray, sample_rate: int, rng: np.random.Generator, noises: Corpus | None
) -> np.ndarray:
    """Degrade at the clean level: a Degrader scales its result down to keep peaks within full scale."""
    degraded = degrader.degrade(audio, sample_rate, rng, noises)
    return degraded.audio / np.float32(degraded.level)
