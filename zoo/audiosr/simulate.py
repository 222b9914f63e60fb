"""Band-limited twins of full-band audio: a random low-pass filter, and what else happens to such recordings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from zoo.audio.corpus import Corpus
from zoo.audio.degrade import Degrader
from zoo.audiosr.filters import FILTER_TYPES, FilterType, lowpass

Range = tuple[float, float]

VAL_ORDER = 8  # of the validation grid's filters: the original's only order
_NYQUIST_SHARE = 0.95  # of half the sample rate: a filter above it would leave nothing to predict
STEP_HZ = 100.0  # of the cut-offs drawn: resampling by ratios of small numbers is quick
_CODECS: dict[str, list[float]] = {"mp3": [64, 96, 128], "opus": [32, 48, 64]}  # kb/s for one channel


class Simulation:
    """Makes the low-resolution twin of a signal; equal arguments and an equal generator state give equal samples.

    Noise comes first, then the filter at zero phase, with or without resampling to twice the cut-off and back, then the
    codec, whose delay is removed. A codec may limit the band further than the cut-off that is reported.

    Args:
        cutoff_hz: lowest and highest cut-off in Hz; the highest is lowered to 95 % of half the sample rate.
        filter_types: filter types, drawn evenly.
        order: lowest and highest order of the filter, 1 to 10.
        resampling: share of the items that are resampled and filtered once more, 0 to 1.
        noise: share of the items with noise ahead of the filter, 0 to 1.
        snr_db: lowest and highest signal-to-noise ratio in dB.
        codec: share of the items that go through a codec, 0 to 1.
        codecs: settings by codec, see `zoo.audio.codecs.roundtrip`; MP3 and Opus at common bit rates when null.

    Raises:
        ValueError: an argument outside its range, or a codec that this machine has not.

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
        noisy: dict[str, Any] = {"probabilities": {"noise": noise}, "snr_db": (float(snr_db[0]), float(snr_db[1]))}
        coded: dict[str, Any] = {"probabilities": {"codec": codec}, "codecs": _CODECS if codecs is None else codecs}
        self._before = Degrader(steps=("noise",), **noisy) if noise else None
        self._after = Degrader(steps=("codec",), **coded) if codec else None

    def degrade(
        self, high: np.ndarray, sample_rate: int, rng: np.random.Generator, noises: Corpus | None = None
    ) -> tuple[np.ndarray, float]:
        """Draw a degradation and carry it out.

        Args:
            high: (T,) float32, T >= 1.
            sample_rate: Hz.
            rng: source of every choice.
            noises: noise at `sample_rate`; needed where `noise` > 0.

        Returns:
            The twin (T,) float32, aligned with `high` and at its level, and the cut-off in Hz.

        Raises:
            ValueError: the sample rate leaves no cut-off to draw, or noise is missing.
        """
        cutoff_hz = self._draw_cutoff(sample_rate, rng)
        filter_type = self.filter_types[int(rng.integers(len(self.filter_types)))]
        order = int(rng.integers(self.order[0], self.order[1] + 1))
        low = high if self._before is None else _at_level(self._before, high, sample_rate, rng, noises)
        low = lowpass(low, sample_rate, cutoff_hz, filter_type, order, resample=bool(rng.random() < self.resampling))
        if self._after is not None:
            low = _at_level(self._after, low, sample_rate, rng, None)
        return low, cutoff_hz

    def limited(self, high: np.ndarray, sample_rate: int, cutoff_hz: float, number: int) -> np.ndarray:
        """Make the twin for validation: a filter alone, whose type follows from a number.

        Args:
            high: (T,) float32.
            sample_rate: Hz.
            cutoff_hz: Hz.
            number: any integer >= 0; the types take turns.

        Returns:
            (T,) float32.
        """
        filter_type = self.filter_types[number % len(self.filter_types)]
        return lowpass(high, sample_rate, cutoff_hz, filter_type, VAL_ORDER)

    def band(self, sample_rate: int) -> Range:
        """The cut-offs that are drawn at a sample rate, in Hz.

        Raises:
            ValueError: the lowest lies above what the rate can hold.
        """
        highest = min(self.cutoff_hz[1], top(sample_rate))
        if self.cutoff_hz[0] > highest:
            raise ValueError(
                f"simulation.cutoff_hz: the lowest cut-off of {self.cutoff_hz[0]:g} Hz lies above {highest:g} Hz, the "
                f"highest at a sample rate of {sample_rate} Hz; lower it"
            )
        return self.cutoff_hz[0], highest

    def _draw_cutoff(self, sample_rate: int, rng: np.random.Generator) -> float:
        lowest, highest = self.band(sample_rate)
        first, last = math.ceil(lowest / STEP_HZ), math.floor(highest / STEP_HZ)
        if first > last:
            return float(rng.uniform(lowest, highest))
        return STEP_HZ * int(rng.integers(first, last + 1))

    def _check(self) -> None:
        if not 0 < self.cutoff_hz[0] <= self.cutoff_hz[1]:
            raise ValueError(f"simulation.cutoff_hz: expected 0 < lowest <= highest, found {list(self.cutoff_hz)}")
        if not self.filter_types or (unknown := set(self.filter_types) - set(FILTER_TYPES)):
            found = ", ".join(sorted(unknown)) if self.filter_types else "none"
            raise ValueError(f"simulation.filter_types: expected some of {', '.join(FILTER_TYPES)}, found {found}")
        if not 1 <= self.order[0] <= self.order[1] <= 10:
            raise ValueError(f"simulation.order: expected 1 <= lowest <= highest <= 10, found {list(self.order)}")
        for name in ("resampling", "noise", "codec"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"simulation.{name}: expected a share from 0 to 1, found {getattr(self, name)}")


def top(sample_rate: int) -> float:
    """The highest cut-off in Hz that leaves something to predict at a sample rate."""
    return _NYQUIST_SHARE * sample_rate / 2


def _at_level(
    degrader: Degrader, audio: np.ndarray, sample_rate: int, rng: np.random.Generator, noises: Corpus | None
) -> np.ndarray:
    """A Degrader keeps peaks within full scale by lowering the whole; the twin has to stay at its clean level."""
    degraded = degrader.degrade(audio, sample_rate, rng, noises)
    return degraded.audio / np.float32(degraded.level)
