"""Low-pass filters, and random band-limited counterparts: aligned, limited, at the level of the clean signal."""

import numpy as np
import pytest

from zoo.audiosr.data.simulate import FILTER_TYPES, Simulation, lowpass, max_cutoff_hz

RATE = 16000


def tone(hz: float) -> np.ndarray:
    return np.sin(2 * np.pi * hz * np.arange(RATE) / RATE).astype(np.float32)


def hiss(samples: int = 12000) -> np.ndarray:
    return (0.1 * np.random.default_rng(0).standard_normal(samples)).astype(np.float32)


@pytest.mark.parametrize("resample", [False, True])
@pytest.mark.parametrize("order", [2, 10])
@pytest.mark.parametrize("filter_type", FILTER_TYPES)
def test_the_band_below_stays_in_place_and_the_band_above_goes(filter_type, order, resample):
    inside = slice(RATE // 4, -RATE // 4)
    remaining = lowpass(tone(300), RATE, 3000, filter_type, order, resample)
    assert remaining.dtype == np.float32 and remaining.shape == (RATE,)
    assert np.abs(remaining - tone(300))[inside].max() < 0.05
    assert np.abs(lowpass(tone(7500), RATE, 3000, filter_type, order, resample))[inside].max() < 0.03


@pytest.mark.parametrize("number", range(len(FILTER_TYPES)))
def test_validation_filters_end_at_their_cutoff(number: int) -> None:
    spectra = np.fft.rfft([hiss(RATE), Simulation().limit_band(hiss(RATE), RATE, 3000, number)])  # a bin is 1 Hz
    power = (np.abs(spectra[1]) / np.abs(spectra[0])) ** 2
    assert power[2000:2500].mean() > 0.5 and power[3500:4000].mean() < 0.25


@pytest.mark.parametrize("samples", [1, 20])
@pytest.mark.parametrize("resample", [False, True])
def test_short_signals(samples, resample):
    limited = lowpass(np.ones(samples, np.float32), RATE, 3000, order=10, resample=resample)
    assert limited.shape == (samples,) and np.isfinite(limited).all()


def test_counterpart_follows_the_generator_alone() -> None:
    simulation = Simulation(cutoff_hz=(1000, 90000))
    results = [simulation.degrade(hiss(2000), RATE, np.random.default_rng(seed)) for seed in (1, 1, 2)]
    np.testing.assert_array_equal(results[0][0], results[1][0])
    assert results[0][1] != results[2][1] and results[0][0].shape == (2000,)
    cutoffs = [simulation.degrade(hiss(200), RATE, np.random.default_rng(seed))[1] for seed in range(40)]
    assert 1000 <= min(cutoffs) < 2500 and 6000 < max(cutoffs) <= max_cutoff_hz(RATE)


def test_cutoffs_beyond_the_band_are_refused() -> None:
    with pytest.raises(ValueError, match="cutoff_hz"):
        lowpass(np.zeros(9), RATE, 8000)
    with pytest.raises(ValueError, match=r"cutoff_hz.*16000"):
        Simulation(cutoff_hz=(9000, 12000)).band(RATE)
