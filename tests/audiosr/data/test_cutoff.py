from __future__ import annotations

import numpy as np
import pytest
from scipy.signal import fftconvolve, firwin

from tests.audiosr.sounds import SOUNDS
from zoo.audiosr.data.cutoff import CONFIDENCE, HOP_LENGTH, N_FFT, band_end, cutoff, detect, edge, edges, spectrum
from zoo.audiosr.data.simulate import lowpass


def limited(audio: np.ndarray, sample_rate: int, cutoff_hz: float) -> np.ndarray:
    """By a filter that has 6 dB at the cut-off, with the noise of 16 bits."""
    filtered = fftconvolve(audio, firwin(1001, cutoff_hz, fs=sample_rate), "same")
    rng = np.random.default_rng(0)
    return np.round(filtered * 2**15 + rng.random(len(audio)) - rng.random(len(audio))) / 2**15


@pytest.mark.parametrize("sample_rate", [44100, 48000])
@pytest.mark.parametrize("kind", SOUNDS)
def test_an_edge_is_found_where_a_filter_made_one_and_nowhere_else(kind, sample_rate):
    audio = SOUNDS[kind](sample_rate, np.random.default_rng(1))
    assert edge(spectrum(audio), sample_rate).confidence < CONFIDENCE
    for cutoff_hz in (4000, 6000, 10000, 16000):
        found = edge(spectrum(limited(audio, sample_rate, cutoff_hz)), sample_rate)
        assert found.confidence > 0.9
        assert found.hz == pytest.approx(cutoff_hz, rel=0.05)


@pytest.mark.parametrize("filter_type", ["butter", "ellip"])
@pytest.mark.parametrize("kind", ["speech", "noise", "music"])
def test_the_edge_of_a_gentler_filter(kind, filter_type):
    audio = SOUNDS[kind](48000, np.random.default_rng(2))
    found = edge(spectrum(lowpass(audio, 48000, 8000.0, filter_type, 8)), 48000)
    assert (found.hz, found.confidence > 0.9) == (pytest.approx(8000, rel=0.05), True)


def test_the_end_of_a_lower_sample_rate_is_no_edge():
    audio = SOUNDS["noise"](48000, np.random.default_rng(0))
    narrow = limited(audio, 48000, 7800)
    assert edge(spectrum(narrow), 48000).hz == pytest.approx(7800, rel=0.05)
    assert edge(spectrum(narrow), 48000, limit_hz=8000).confidence < CONFIDENCE
    assert edge(spectrum(np.zeros(9000)), 48000).confidence == 0
    assert edge(spectrum(audio), 48000, limit_hz=600).confidence == 0


def test_segments_share_the_edge_of_the_recording_and_keep_what_differs():
    rate = 48000
    audio = SOUNDS["music"](rate, np.random.default_rng(3))
    hiss = 1e-3 * SOUNDS["noise"](rate, np.random.default_rng(3))

    def found(*parts: np.ndarray) -> list[float | None]:
        rows = np.stack([spectrum(part) for part in parts])
        return [None if each is None else each.hz for each in edges(rows, rate, rate / 2)]

    narrow, wide = limited(audio, rate, 5000), limited(audio, rate, 12000)
    assert found(audio, narrow, audio) == [None, pytest.approx(5000, rel=0.05), None]
    assert found(wide, narrow, wide) == [pytest.approx(hz, rel=0.05) for hz in (12000, 5000, 12000)]
    one, two, three = found(narrow, limited(hiss, rate, 5000), 0 * narrow)
    assert one == two == three == pytest.approx(5000, rel=0.05)


def test_a_limited_signal_without_an_edge_ends_by_the_share():
    rate = 16000
    audio = SOUNDS["noise"](rate, np.random.default_rng(0))
    assert band_end(audio, rate) == detect(audio, rate)
    assert band_end(limited(audio, rate, 3000), rate) == pytest.approx(3000, rel=0.05)


@pytest.mark.parametrize("band", [2000.0, 4000.0, 7000.0])
@pytest.mark.parametrize("sample_rate", [16000, 48000])
def test_the_end_of_a_flat_band_is_found_wherever_it_is_loud(band, sample_rate):
    rng = np.random.default_rng(0)
    noise = rng.standard_normal(2 * sample_rate) * np.linspace(0, 1, 2 * sample_rate) ** 4
    found = detect(lowpass(noise, sample_rate, band, order=10, resample=True), sample_rate)
    assert found == pytest.approx(band, rel=0.07)  # the slope of the filter lies below its edge


def test_a_flat_spectrum_ends_at_the_share():
    assert cutoff(np.ones(101), 200, share=0.905) == 90.0
    assert detect(np.zeros(3000, np.float32), 16000) == 0


def test_sums_of_pieces_add_up():
    audio = np.random.default_rng(1).standard_normal(N_FFT + 9 * HOP_LENGTH).astype(np.float32)
    pieces = spectrum(audio[: N_FFT + 4 * HOP_LENGTH]) + spectrum(audio[5 * HOP_LENGTH :])
    np.testing.assert_allclose(pieces, spectrum(audio), rtol=1e-6)
    assert spectrum(audio[:5]).shape == (N_FFT // 2 + 1,)


def test_wrong_arguments():
    with pytest.raises(ValueError, match=r"\(T,\), found shape \(2, 9\)"):
        detect(np.zeros((2, 9)), 16000)
    with pytest.raises(ValueError, match="between 0 and 1, not 2"):
        detect(np.zeros(9), 16000, share=2)
