from __future__ import annotations

import numpy as np
import pytest

from zoo.audiosr.cutoff import HOP_LENGTH, N_FFT, cutoff, detect, spectrum
from zoo.audiosr.filters import lowpass


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
