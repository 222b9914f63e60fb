import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.audio.augment.test_codecs import lag_and_likeness
from zoo.audio.augment import effects


def white(samples, seed=0, peak=0.5):
    return np.random.default_rng(seed).uniform(-peak, peak, samples).astype(np.float32)


def sparse_rir(delay, sign=1.0, tail=4000):
    rir = np.zeros(delay + tail, dtype=np.float32)
    rng = np.random.default_rng(delay)
    rir[delay:] = 0.1 * rng.standard_normal(tail) * np.exp(-np.arange(tail) / 800)
    rir[delay] = sign
    return rir


@settings(max_examples=50, deadline=None)
@given(delay=st.integers(0, 3000), sign=st.sampled_from([-1.0, 1.0]), samples=st.integers(2000, 8000))
def test_reverb_leaves_the_direct_sound_where_the_speech_was(delay, sign, samples):
    speech, rir = white(samples, delay), sparse_rir(delay, sign)
    assert effects.find_direct_path(rir, 16000) == delay
    wet = effects.reverberate(speech, rir, 16000)
    assert wet.shape == speech.shape and wet.dtype == np.float32
    assert lag_and_likeness(wet, speech)[0] == 0
    assert effects.power(wet) == pytest.approx(effects.power(speech), rel=1e-3)


def test_reverb_is_the_convolution_behind_the_delay():
    speech, rir = white(500), sparse_rir(40, tail=200)
    reference = np.convolve(speech, rir)[40:540]
    reference *= np.sqrt(effects.power(speech) / effects.power(reference))
    # The tail is cut at -60 dB of energy, and the 2 ms kept before the direct sound are zeros here.
    assert np.abs(effects.reverberate(speech, rir, 16000) - reference).max() < 3e-3 * np.abs(reference).max()


def test_clipping_keeps_soft_sounds_and_limits_the_peak():
    speech = np.array([0.0, 0.01, -0.01, 0.8, -0.4], np.float32)
    np.testing.assert_allclose(effects.clip(speech, 2.0, soft=False), [0, 0.01, -0.01, 0.4, -0.4], atol=1e-7)
    np.testing.assert_allclose(effects.clip(speech, 2.0, soft=True), 0.4 * np.tanh(speech / 0.4), atol=1e-7)
    np.testing.assert_array_equal(effects.clip(np.zeros(5, np.float32), 2.0, soft=True), 0)


@pytest.mark.parametrize("how", ["filter", "resample"])
@pytest.mark.parametrize("rate", [16000, 22050, 37801])
def test_lowpass_passes_below_and_stops_above(how, rate):
    seconds = np.arange(rate // 2) / rate
    low, high = (np.sin(2 * np.pi * f * seconds).astype(np.float32) for f in (1000, 6000))
    inner = slice(rate // 20, -rate // 20)
    assert np.abs(effects.lowpass(low, rate, 3000, how) - low)[inner].max() < 1e-3
    assert np.abs(effects.lowpass(high, rate, 3000, how))[inner].max() < 6e-3


def test_packet_losses_have_the_rate_and_the_bursts():
    lost = effects.sample_packet_losses(200_000, 0.1, 3.0, np.random.default_rng(0))
    runs = np.diff(np.flatnonzero(np.diff(np.concatenate([[0], lost, [0]]))))[::2]
    assert lost.mean() == pytest.approx(0.1, abs=0.005)
    assert runs.mean() == pytest.approx(3.0, abs=0.1)
    assert not effects.sample_packet_losses(1000, 0.0, 1.0, np.random.default_rng(0)).any()


def test_lost_packets_are_zero_or_repeat_the_last_that_arrived():
    speech = np.arange(1, 11, dtype=np.float32)
    lost = np.array([True, False, True, True, False])
    np.testing.assert_array_equal(effects.drop_packets(speech[:9], 100, lost, "zero"), [0, 0, 3, 4, 0, 0, 0, 0, 9])
    np.testing.assert_array_equal(effects.drop_packets(speech, 100, lost, "repeat"), [0, 0, 3, 4, 3, 4, 3, 4, 9, 10])
    assert effects.packet_samples(16000) == 320
