"""Estimates of the cut-off on sounds whose band is known to be full: made in code, or real noise played faster."""

import numpy as np
import pytest
from scipy.signal import butter, fftconvolve, firwin, sosfilt

from zoo.audio.corpora.synthetic import SyntheticSpeech
from zoo.audio.io import files
from zoo.audiosr.data.cutoff import N_FFT, estimate_cutoff, find_edge, share_cutoff, spectrum
from zoo.audiosr.data.simulate import lowpass

SECONDS = 5


def speech(rate: int, rng: np.random.Generator) -> np.ndarray:
    source = SyntheticSpeech(sample_rate=rate, seed=int(rng.integers(100)))
    return np.concatenate([source.utterance(index) for index in range(8)])[: SECONDS * rate].astype(np.float64)


def noise(rate: int, rng: np.random.Generator) -> np.ndarray:
    """Pink, which falls by 3 dB an octave."""
    image = np.fft.rfft(rng.standard_normal(SECONDS * rate))
    signal = np.fft.irfft(image / np.sqrt(np.arange(len(image)) + 1), SECONDS * rate)
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


SOUNDS = {"speech": speech, "noise": noise, "music": music}


def limited(audio: np.ndarray, sample_rate: int, cutoff_hz: float) -> np.ndarray:
    """Filter with 6 dB at the cut-off, and add the noise of 16 bits."""
    filtered = fftconvolve(audio, firwin(1001, cutoff_hz, fs=sample_rate), "same")
    rng = np.random.default_rng(0)
    return np.round(filtered * 2**15 + rng.random(len(audio)) - rng.random(len(audio))) / 2**15


def check_edges(audio: np.ndarray, sample_rate: int) -> None:
    assert find_edge(spectrum(audio), sample_rate) is None
    for cutoff_hz in (4000, 6000, 10000, 16000):
        edge = find_edge(spectrum(limited(audio, sample_rate, cutoff_hz)), sample_rate)
        assert edge == pytest.approx(cutoff_hz, rel=0.06)


@pytest.mark.parametrize(("kind", "sample_rate"), [*((kind, 48000) for kind in SOUNDS), ("speech", 44100)])
def test_edge_of_a_filter_is_found_and_no_other(kind, sample_rate):
    check_edges(SOUNDS[kind](sample_rate, np.random.default_rng(1)), sample_rate)


@pytest.mark.parametrize("number", range(1, 5))
def test_edge_in_recorded_noise_that_fills_its_band(number, shared):
    """Recorded at 16 kHz, taken for one at 48 kHz."""
    audio = files.read(shared / "data" / "noise" / f"noise{number}.flac")[0][0, : SECONDS * 48000]
    check_edges(audio.astype(np.float64), 48000)


@pytest.mark.parametrize("filter_type", ["butter", "ellip"])
@pytest.mark.parametrize("kind", SOUNDS)
def test_edge_of_a_gentle_filter(kind, filter_type):
    audio = SOUNDS[kind](48000, np.random.default_rng(2))
    filtered = lowpass(audio, 48000, 8000.0, filter_type, 8)
    assert find_edge(spectrum(filtered), 48000) == pytest.approx(8000, rel=0.06)


def test_end_of_a_lower_sample_rate_is_no_edge():
    audio = SOUNDS["noise"](48000, np.random.default_rng(0))
    narrow = limited(audio, 48000, 7800)
    assert find_edge(spectrum(narrow), 48000) == pytest.approx(7800, rel=0.06)
    assert find_edge(spectrum(narrow), 48000, limit_hz=8000) is None
    assert find_edge(spectrum(np.zeros(9000)), 48000) is None
    assert find_edge(spectrum(audio), 48000, limit_hz=600) is None


def test_band_without_an_edge_ends_by_the_share():
    rate = 16000
    audio = SOUNDS["noise"](rate, np.random.default_rng(0))
    assert estimate_cutoff(audio, rate) == share_cutoff(spectrum(audio), rate)
    assert estimate_cutoff(limited(audio, rate, 3000), rate) == pytest.approx(3000, rel=0.06)
    assert share_cutoff(spectrum(np.zeros(3000, np.float32)), rate) == 0
    assert spectrum(audio[:5]).shape == (N_FFT // 2 + 1,)
