from __future__ import annotations

import numpy as np
import pytest
from scipy.signal import fftconvolve, firwin

from tests.audiosr.sounds import SOUNDS
from zoo.audiosr.data.cutoff import N_FFT, estimate_cutoff, find_edge, share_cutoff, spectrum
from zoo.audiosr.data.simulate import lowpass


def limited(audio: np.ndarray, sample_rate: int, cutoff_hz: float) -> np.ndarray:
    """Filter with 6 dB at the cut-off, and add the noise of 16 bits."""
    filtered = fftconvolve(audio, firwin(1001, cutoff_hz, fs=sample_rate), "same")
    rng = np.random.default_rng(0)
    return np.round(filtered * 2**15 + rng.random(len(audio)) - rng.random(len(audio))) / 2**15


@pytest.mark.parametrize("sample_rate", [44100, 48000])
@pytest.mark.parametrize("kind", SOUNDS)
def test_edge_of_a_filter_is_found_and_no_other(kind, sample_rate):
    audio = SOUNDS[kind](sample_rate, np.random.default_rng(1))
    assert find_edge(spectrum(audio), sample_rate) is None
    for cutoff_hz in (4000, 6000, 10000, 16000):
        edge = find_edge(spectrum(limited(audio, sample_rate, cutoff_hz)), sample_rate)
        assert edge == pytest.approx(cutoff_hz, rel=0.06)


@pytest.mark.parametrize("filter_type", ["butter", "ellip"])
@pytest.mark.parametrize("kind", ["speech", "noise", "music"])
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
    with pytest.raises(ValueError, match="shape"):
        spectrum(np.zeros((2, 9)))


@pytest.mark.parametrize("band", [2000.0, 4000.0, 7000.0])
@pytest.mark.parametrize("sample_rate", [16000, 48000])
def test_share_of_a_flat_band(band, sample_rate):
    rng = np.random.default_rng(0)
    noise = rng.standard_normal(2 * sample_rate) * np.linspace(0, 1, 2 * sample_rate) ** 4
    filtered = lowpass(noise, sample_rate, band, order=10, resample=True)
    assert share_cutoff(spectrum(filtered), sample_rate) == pytest.approx(band, rel=0.07)
