from __future__ import annotations

import numpy as np
import pytest

from zoo.audiosr.data.simulate import FILTER_TYPES, lowpass

RATE = 16000


def tone(hz: float) -> np.ndarray:
    return np.sin(2 * np.pi * hz * np.arange(RATE) / RATE).astype(np.float32)


@pytest.mark.parametrize("resample", [False, True])
@pytest.mark.parametrize("order", [2, 5, 8, 10])
@pytest.mark.parametrize("filter_type", FILTER_TYPES)
def test_the_band_below_stays_in_place_and_the_band_above_goes(filter_type, order, resample):
    inside = slice(RATE // 4, -RATE // 4)
    remaining = lowpass(tone(300), RATE, 3000, filter_type, order, resample)
    assert remaining.dtype == np.float32
    assert remaining.shape == (RATE,)
    assert np.abs(remaining - tone(300))[inside].max() < 0.05
    assert np.abs(lowpass(tone(7500), RATE, 3000, filter_type, order, resample))[inside].max() < 0.03


@pytest.mark.parametrize("samples", [1, 2, 20])
@pytest.mark.parametrize("resample", [False, True])
def test_short_signals(samples, resample):
    limited = lowpass(np.ones(samples, np.float32), RATE, 3000, order=10, resample=resample)
    assert limited.shape == (samples,)
    assert np.isfinite(limited).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cutoff_hz": 8000}, "half the sample rate, 8000.0 Hz; found 8000"),
        ({"order": 0}, "at least 1, not 0"),
        ({"filter_type": "cheby2"}, "one of butter, cheby1, ellip, bessel, not 'cheby2'"),
        ({"audio": np.zeros((1, 9))}, r"found shape \(1, 9\)"),
    ],
)
def test_wrong_arguments(changes, message):
    with pytest.raises(ValueError, match=message):
        lowpass(**({"audio": np.zeros(9), "sample_rate": RATE, "cutoff_hz": 3000} | changes))
