"""Simulated twins: aligned, limited, at the level of the clean signal, and the same for the same generator."""

import numpy as np
import pytest

from zoo.audiosr.data.simulate import Simulation, max_cutoff_hz

RATE = 24000


def hiss(samples: int = 12000, seed: int = 0) -> np.ndarray:
    return (0.1 * np.random.default_rng(seed).standard_normal(samples)).astype(np.float32)


def share_above(audio: np.ndarray, frequency: float) -> float:
    power = np.abs(np.fft.rfft(audio * np.hanning(len(audio)))) ** 2
    return float(power[np.fft.rfftfreq(len(audio), 1 / RATE) > frequency].sum() / power.sum())


@pytest.mark.parametrize(
    "options",
    [{"codec": 0.0}, {"codec": 1.0, "codecs": {"mp3": [128]}}, {"codec": 1.0, "codecs": {"opus": [64]}}],
)
def test_twin_is_aligned_limited_and_level(options: dict) -> None:
    simulation = Simulation(cutoff_hz=(3000, 5000), order=(8, 10), resampling=1.0, **options)
    high = hiss()
    low, cutoff = simulation.degrade(high, RATE, np.random.default_rng(3))
    assert low.shape == high.shape and low.dtype == np.float32
    assert 3000 <= cutoff <= 5000
    lags = np.correlate(low, high, mode="full")
    assert int(np.abs(lags).argmax()) == len(high) - 1
    assert share_above(low, 1.3 * cutoff) < 0.02 < 0.3 < share_above(high, 1.3 * cutoff)
    bins = np.fft.rfftfreq(len(high), 1 / RATE) < 0.5 * cutoff
    levels = [np.abs(np.fft.rfft(signal))[bins].mean() for signal in (low, high)]
    assert levels[0] == pytest.approx(levels[1], rel=0.1)


def test_draws_follow_the_generator_alone() -> None:
    simulation = Simulation(cutoff_hz=(1000, 90000), codec=0.0)
    draws = [simulation.degrade(hiss(2000), RATE, np.random.default_rng(seed)) for seed in (1, 1, 2)]
    np.testing.assert_array_equal(draws[0][0], draws[1][0])
    assert draws[0][1] != draws[2][1]
    cutoffs = [simulation.degrade(hiss(200), RATE, np.random.default_rng(seed))[1] for seed in range(40)]
    assert 1000 <= min(cutoffs) < 3000 and 9000 < max(cutoffs) <= max_cutoff_hz(RATE)


def test_impossible_settings_are_named() -> None:
    with pytest.raises(ValueError, match=r"cutoff_hz.*16000"):
        Simulation(cutoff_hz=(9000, 12000)).band(16000)
    for options, words in (
        ({"cutoff_hz": (0, 10)}, "cutoff_hz"),
        ({"filter_types": ["sharp"]}, "butter.*sharp"),
        ({"order": (0, 3)}, "order"),
        ({"codec": 1.5}, "codec"),
        ({"codecs": {"tape": []}}, "tape"),
    ):
        with pytest.raises(ValueError, match=words):
            Simulation(**options)
