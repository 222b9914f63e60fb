import numpy as np
import pytest

from zoo.audio.augment.effects import find_direct_path
from zoo.audio.augment.rooms import SyntheticNoise, crop_noise, load_rirs, synthesize_rirs
from zoo.audio.corpora.corpus import Corpus
from zoo.audio.io import files

RATE = 16000


def decay_seconds(rir):
    """RT60 from the slope of Schroeder's integral between -5 and -25 dB."""
    energy = np.cumsum(rir[::-1].astype(np.float64) ** 2)[::-1]
    decibels = 10 * np.log10(energy / energy[0])
    return 3 * (np.argmax(decibels < -25) - np.argmax(decibels < -5)) / RATE


def test_synthetic_responses_are_rooms_with_a_delay():
    rirs = synthesize_rirs(20, RATE, seed=3)
    arrivals = np.array([find_direct_path(rir, RATE) for rir in rirs])
    assert all(rir.dtype == np.float32 and rir.ndim == 1 and np.abs(rir).max() == 1 for rir in rirs)
    assert arrivals.min() >= 0.3 / 343 * RATE - 1 and arrivals.max() < 0.045 * RATE  # 0.3 m to the diagonal of the room
    assert len(set(arrivals)) > 10
    assert 0.15 < min(map(decay_seconds, rirs)) and max(map(decay_seconds, rirs)) < 0.6
    for rir, arrival in zip(rirs, arrivals, strict=True):
        assert np.abs(rir[: max(0, arrival - 20)]).max(initial=0) < 0.05  # nothing sounds before the direct sound
        assert np.count_nonzero(np.abs(rir[arrival + 20 : arrival + 480]) > 0.02) > 20  # early reflections


def test_read_rirs_resamples_in_order_and_names_the_silent_one(tmp_path):
    rir = synthesize_rirs(1, RATE)[0]
    files.write(tmp_path / "b.wav", rir, RATE)
    files.write(tmp_path / "deep" / "a.wav", np.stack([rir, rir]), RATE)
    first, second = load_rirs(tmp_path, 8000)
    assert abs(len(first) - len(rir) / 2) <= 1
    np.testing.assert_allclose(first, second, atol=1e-4)
    files.write(tmp_path / "c.wav", np.zeros(100), RATE)
    with pytest.raises(ValueError, match=r"c\.wav: silent"):
        load_rirs(tmp_path, RATE)


def test_synthetic_noise_is_a_corpus_that_is_never_silent():
    noises: Corpus = SyntheticNoise(7, RATE, seed=2, seconds=0.5)
    again = SyntheticNoise(7, RATE, seed=2, seconds=0.5)
    assert len(noises.names) == len(set(noises.names)) == len(noises.lengths) == len(noises.peaks) == 7
    for index in range(7):
        clip = noises.read(index)
        assert clip.shape == (8000,) and clip.dtype == np.float32 and np.isfinite(clip).all()
        assert np.abs(clip).max() == pytest.approx(noises.peaks[index]) and clip.std() > 0.02
        np.testing.assert_array_equal(clip, again.read(index))
        np.testing.assert_array_equal(clip[100:300], noises.read(index, 100, 200))
    assert not np.array_equal(noises.read(0), noises.read(6))  # both white


def test_a_crop_lies_inside_and_a_short_noise_goes_round():
    noises = SyntheticNoise(1, RATE, seconds=0.5)
    full = noises.read(0)
    crop, start = crop_noise(noises, 0, 3000, np.random.default_rng(1))
    np.testing.assert_array_equal(crop, full[start : start + 3000])
    tiled, start = crop_noise(noises, 0, 20000, np.random.default_rng(1))
    np.testing.assert_array_equal(tiled, np.tile(full, 4)[start : start + 20000])
