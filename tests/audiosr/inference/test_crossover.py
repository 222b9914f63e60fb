import numpy as np
import pytest

from tests.audio.signals import noise
from zoo.audiosr.inference.crossover import StreamSpectrum, crossover_gains, filter_and_sum, lowpass_gains, match_level

RATE = 16000


def pieces(audio: np.ndarray, size: int) -> list[np.ndarray]:
    return [audio[:, start : start + size] for start in range(0, audio.shape[1], size)]


def total(audio: np.ndarray, size: int = 3000) -> np.ndarray:
    spectrum = StreamSpectrum()
    np.testing.assert_array_equal(np.concatenate(list(spectrum.observe(pieces(audio, size))), axis=1), audio)
    return spectrum.total


@pytest.mark.parametrize("cutoff_hz", [0.0, 50.0, 1000.0, 7900.0])
def test_crossover_keeps_energy_and_all_below_the_cutoff(cutoff_hz):
    low, high = crossover_gains(cutoff_hz, RATE)
    np.testing.assert_allclose(low**2 + high**2, 1, atol=1e-6)
    frequencies = np.arange(1025) * RATE / 2048
    assert (low[frequencies <= cutoff_hz] == 1).all() and (np.diff(low) <= 0).all()
    assert (low[frequencies > max(1.07 * cutoff_hz, cutoff_hz + 40)] == 0).all()


@pytest.mark.parametrize("samples", [1, 511, 512, 200_001])
def test_gains_of_one_change_nothing_and_streams_add(samples):
    first, second = noise(2, samples), np.ones((2, samples), np.float32) / 8
    ones = np.ones(1025, np.float32)
    streams = [pieces(first, 30_000), pieces(second, 777)]
    result = np.concatenate(list(filter_and_sum(streams, [ones, 2 * ones], samples)), axis=1)
    np.testing.assert_allclose(result, first + 0.25, atol=2e-6)


def test_chunks_of_the_filter_leave_no_seam():
    """Tones on both sides of the cut-off over several chunks: one stays, one goes, at every sample."""
    time = np.arange(300_000) / RATE
    low, high = (np.sin(2 * np.pi * hz * time)[None].astype(np.float32) for hz in (1000, 3000))
    gains = [lowpass_gains(2000.0, RATE)]
    result = np.concatenate(list(filter_and_sum([pieces(low + high, 9999)], gains, 300_000)), axis=1)
    assert np.abs(result - low)[:, 2048:-2048].max() < 1e-3
    assert gains[0][256] == 0  # nothing is left at the cut-off itself


def test_octave_below_the_cutoff_sets_the_level():
    audio = noise(1, RATE)
    reference = total(audio)
    np.testing.assert_allclose(total(audio, 777), reference, rtol=1e-6)
    assert total(noise(1, 100)).sum() > 0
    for factor, expected in ((1.5, 1.5), (9, 2), (np.inf, 1)):
        assert match_level(reference, total(audio / np.float32(factor)), 4000.0, RATE) == pytest.approx(expected, 1e-4)
    assert match_level(reference, reference, 0.0, RATE) == 1
