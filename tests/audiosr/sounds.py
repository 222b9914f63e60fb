"""Sounds whose band is known to be full, for looking for its end: made in code, or real noise played faster."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scipy.signal import butter, fftconvolve, sosfilt

from zoo.audio.corpora.synthetic import SyntheticSpeech
from zoo.audio.io import files

SECONDS = 5


def speech(rate: int, rng: np.random.Generator) -> np.ndarray:
    source = SyntheticSpeech(sample_rate=rate, seed=int(rng.integers(100)))
    return np.concatenate([source.utterance(index) for index in range(8)])[: SECONDS * rate].astype(np.float64)


def noise(rate: int, rng: np.random.Generator) -> np.ndarray:
    """Pink, which falls by 3 dB an octave."""
    image = np.fft.rfft(rng.standard_normal(SECONDS * rate))
    signal = np.fft.irfft(image / np.sqrt(np.arange(len(image)) + 1), SECONDS * rate)
    return 0.1 * signal / signal.std()


def rain(rate: int, rng: np.random.Generator) -> np.ndarray:
    """Drops at random times and levels that ring at several pitches, over a hiss."""
    drops = np.zeros(SECONDS * rate)
    places = rng.integers(0, len(drops), 4000 * SECONDS)
    drops[places] = rng.lognormal(0, 1.2, len(places)) * rng.choice([-1, 1], len(places))
    time = np.arange(int(0.004 * rate)) / rate
    signal = 0.02 * noise(rate, rng)
    for hz in (900, 2500, 5000, 9000, 15000):
        ringing = np.exp(-1.2 * hz * time) * np.sin(2 * np.pi * hz * time)
        signal += fftconvolve(drops * rng.random(len(drops)), ringing)[: len(drops)]
    return 0.1 * signal / signal.std()


def music(rate: int, rng: np.random.Generator) -> np.ndarray:
    """Plucked notes with all their partials, hi-hats, and a little hiss."""
    signal = 1e-4 * rng.standard_normal(SECONDS * rate)
    for start in np.arange(0, SECONDS, 0.5):
        first = int(start * rate)
        time = np.arange(min(len(signal) - first, rate)) / rate
        pitch = 110 * 2 ** (rng.integers(0, 36) / 12)
        for partial in range(1, int(rate / 2 / pitch)):
            tone = np.exp(-(2 + 0.3 * partial) * time) * np.sin(2 * np.pi * partial * pitch * time)
            signal[first : first + len(time)] += rng.uniform(0.3, 1) / partial**1.3 * tone
        hat = sosfilt(butter(2, 6000, "high", fs=rate, output="sos"), rng.standard_normal(len(time)))
        signal[first : first + len(time)] += rng.choice([0, 0.2]) * hat * np.exp(-25 * time)
    return 0.5 * signal / np.abs(signal).max()


def recorded(number: int) -> Callable[[int, np.random.Generator], np.ndarray]:
    """A recording of noise at 16 kHz taken for one at a higher rate, so that it fills its band."""

    def read(rate: int, rng: np.random.Generator) -> np.ndarray:
        shared = Path(os.environ.get("ZOO_SHARED", Path(__file__).parents[2].parent / "shared"))
        if not shared.is_dir():
            pytest.skip("needs ../shared")
        return files.read(shared / "data" / "noise" / f"noise{number}.flac")[0][0, : SECONDS * rate].astype(np.float64)

    return read


SOUNDS: dict[str, Callable[[int, np.random.Generator], np.ndarray]] = {
    "speech": speech,
    "noise": noise,
    "rain": rain,
    "music": music,
    **{f"recorded{number}": recorded(number) for number in range(1, 5)},
}
