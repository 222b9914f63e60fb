import numpy as np
import pytest

from zoo.audio.analysis.loudness import LoudnessMeter, k_weighting


def loudness(audio: np.ndarray, sample_rate: int) -> np.ndarray:
    """Loudness of (T,) or (C, T), which arrives in pieces."""
    channels = np.atleast_2d(audio)
    meter = LoudnessMeter(sample_rate, len(channels))
    list(meter.measure_stream(np.array_split(channels, 7, axis=1)))
    return meter.loudness() if audio.ndim == 2 else meter.loudness()[0]


def sine(seconds: float, sample_rate: int, hz: float = 997.0, level: float = 1.0) -> np.ndarray:
    return level * np.sin(2 * np.pi * hz * np.arange(round(seconds * sample_rate)) / sample_rate)


@pytest.mark.parametrize("sample_rate", [16000, 22050, 44100, 48000])
def test_a_full_scale_sine_of_997_hz_has_minus_3_lufs(sample_rate):
    result = loudness(np.stack([sine(2, sample_rate), sine(2, sample_rate, level=0.1)]), sample_rate)
    np.testing.assert_allclose(result, [-3.01, -23.01], atol=0.06)


def test_the_filters_are_those_of_the_standard_at_48_khz():
    shelf, high_pass = k_weighting(48000)
    expected = [1.53512485958697, -2.69169618940638, 1.19839281085285, 1.0, -1.69065929318241, 0.73248077421585]
    np.testing.assert_allclose(shelf, expected, atol=1e-7)
    np.testing.assert_allclose(high_pass[4:], [-1.99004745483398, 0.99007225036621], atol=1e-7)


def test_pauses_do_not_count():
    voice = sine(2, 16000, level=0.1)
    pauses = np.concatenate([voice, np.zeros(160000)])
    assert abs(loudness(pauses, 16000) - loudness(voice, 16000)) < 0.4
