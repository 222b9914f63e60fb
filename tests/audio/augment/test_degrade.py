import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.audio.augment.test_codecs import lag_and_likeness
from tests.audio.augment.test_effects import white
from zoo.audio.augment.degrade import DegradationRanges, Degrader
from zoo.audio.augment.effects import power
from zoo.audio.augment.rooms import SyntheticNoise, synthesize_rirs
from zoo.audio.corpora.corpus import MemoryCorpus

RATE = 16000
CHEAP = ("noise", "reverb", "clipping", "lowpass", "packet_loss")
NOISES = SyntheticNoise(6, RATE, seconds=0.5)
RIRS = synthesize_rirs(3, RATE)


def run(degrader, clean, seed=0, noises=NOISES, rirs=RIRS, rate=RATE):
    return degrader.degrade(clean, rate, np.random.default_rng(seed), noises, rirs)


@settings(max_examples=40, deadline=None)
@given(
    samples=st.integers(1, 9000),
    seed=st.integers(0, 10**6),
    peak=st.sampled_from([0.0, 1e-6, 0.3, 1.0, 8.0]),
    order=st.sampled_from(["as_listed", "random"]),
    rate=st.sampled_from([8000, 16000, 22050]),
)
def test_finite_of_equal_length_bounded_and_deterministic(samples, seed, peak, order, rate):
    degrader = Degrader(CHEAP, order=order, gain=(0.25, 1.0), polarity=0.5)
    clean = white(samples, seed, peak)
    unchanged = clean.copy()
    first, second = (run(degrader, clean, seed, rate=rate) for _ in range(2))
    assert first.audio.shape == clean.shape and first.audio.dtype == np.float32
    assert np.isfinite(first.audio).all() and np.abs(first.audio).max() <= 1
    np.testing.assert_array_equal(first.audio, second.audio)
    assert json.loads(json.dumps(first.details)) == first.details == second.details
    assert sorted(first.details["steps"] + first.details["skipped"]) == sorted(CHEAP)
    np.testing.assert_array_equal(clean, unchanged)


def level(degraded) -> float:
    return degraded.details["gain"] * degraded.details["polarity"] * degraded.details["peak_scale"]


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), samples=st.integers(200, 20000))
def test_snr_equals_its_detail(seed, samples):
    clean = white(samples, seed)
    degraded = run(Degrader(["noise"], gain=(0.25, 1.0), polarity=0.5), clean, seed)
    noise = degraded.audio.astype(np.float64) - level(degraded) * clean.astype(np.float64)
    results = 10 * np.log10(power(level(degraded) * clean) / power(noise))
    assert -5 <= degraded.details["snr_db"] <= 30
    assert abs(results - degraded.details["snr_db"]) < 0.1


@pytest.mark.parametrize("step", [*CHEAP, "codec"])
def test_each_step_changes_the_signal_and_leaves_it_in_place(step):
    clean = white(RATE)
    ranges = DegradationRanges(codecs={"mp3": [16], "vorbis": [0], "alaw": [8000]})
    degraded = run(Degrader([step], ranges=ranges), clean, seed=1)
    assert degraded.details["steps"] == [step]
    assert lag_and_likeness(degraded.audio, clean)[0] == 0
    assert np.abs(degraded.audio - clean).max() > 1e-3


def test_silent_noise_is_passed_over_and_never_gives_nan():
    clean = white(4000)
    for silent in (np.zeros(8000), np.full(100, 2e-5), np.full(8000, np.nan)):
        degraded = run(Degrader(["noise"]), clean, noises=MemoryCorpus(["clip"], [silent.astype(np.float32)]))
        assert degraded.details["skipped"] == ["noise"] and "snr_db" not in degraded.details
        np.testing.assert_array_equal(degraded.audio, clean)
    clip = np.concatenate([np.zeros(8000, np.float32), white(8000)])  # some crops are silent, further ones are drawn
    half = MemoryCorpus(["clip"], [clip])
    outcomes = [run(Degrader(["noise"]), clean, seed, noises=half) for seed in range(40)]
    assert all(np.isfinite(each.audio).all() for each in outcomes)
    assert sum(each.details["steps"] == ["noise"] for each in outcomes) > 30


def test_gain_polarity_and_peak_limit_make_the_level():
    clean = white(2000, peak=1.0)
    flips = set()
    for seed in range(20):
        degraded = run(Degrader([], gain=(0.25, 1.0), polarity=0.5), clean, seed)
        assert 0.25 <= degraded.details["gain"] <= 1
        np.testing.assert_allclose(degraded.audio, level(degraded) * clean, atol=1e-6)
        flips.add(degraded.details["polarity"])
    assert flips == {-1, 1}
    loud = run(Degrader([]), 4 * clean)
    assert loud.details["peak_scale"] == pytest.approx(1 / np.abs(4 * clean).max())
    np.testing.assert_allclose(loud.audio, level(loud) * 4 * clean, atol=1e-6)


def test_draws_of_a_seed_stay_the_same():
    """Corpora that earlier versions degraded can be continued."""
    degrader = Degrader(CHEAP, order="random", max_steps=3, untouched=0.05, gain=(0.25, 1.0), polarity=0.5)
    first, second, third = (run(degrader, white(4000), seed).details for seed in range(3))
    assert first["steps"] == ["lowpass", "clipping"] and first["cutoff_hz"] == pytest.approx(2167.92788)
    assert second["steps"] == ["reverb", "noise", "lowpass"] and second["snr_db"] == pytest.approx(13.8350160)
    assert third["steps"] == ["noise", "reverb"] and (third["noise"], third["noise_start"]) == ("gusts0004", 1730)


@pytest.mark.parametrize(
    ("arguments", "ranges", "message"),
    [
        ({"steps": ["noise", "echo"]}, {}, "steps"),
        ({"steps": ["noise"], "probabilities": {"reverb": 0.5}}, {}, "reverb"),
        ({}, {"snr_db": (30, 5)}, "snr_db"),
        ({}, {"codecs": {"mp3": [1000]}}, "mp3"),
    ],
)
def test_impossible_arguments_are_named(arguments, ranges, message):
    with pytest.raises(ValueError, match=message):
        Degrader(**arguments, ranges=DegradationRanges(**ranges))
