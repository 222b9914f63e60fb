import math

import numpy as np
import pytest

from zoo.audio.corpora.synthetic import SyntheticSpeech
from zoo.audio.evaluation import measures
from zoo.audio.evaluation.measures import METRICS, AudioPair, compute_metrics

RATE = 22050
ALL = tuple(METRICS)
CLEAN = SyntheticSpeech(RATE, seconds=(2.0, 2.0)).utterance(0)


def noisy(snr_db, clean=CLEAN):
    noise = np.random.default_rng(0).standard_normal(len(clean)).astype(np.float32)
    return clean + noise * np.float32(np.sqrt(np.mean(clean**2)) * 10 ** (-snr_db / 20))


def test_equal_signals_have_the_best_values():
    values = compute_metrics(AudioPair(CLEAN, RATE, CLEAN, RATE), ALL, RATE)
    assert values["pesq_wb"] > 4.6 and values["stoi"] > 0.999 and values["estoi"] > 0.999 and values["si_sdr"] > 60
    for name in ("mcd_dtw", "log_f0_rmse", "vuv_error", "lsd", "m_stft"):
        assert values[name] == 0, name


def test_more_noise_is_worse_in_every_spectral_measure():
    better, worse = (compute_metrics(AudioPair(noisy(snr), RATE, CLEAN, RATE), ALL, RATE) for snr in (20, 0))
    for metric in METRICS.values():
        for measure in metric.measures:
            if measure.name not in ("log_f0_rmse", "vuv_error"):  # few frames are voiced in a made-up voice in noise
                assert (better[measure.name] > worse[measure.name]) is measure.higher_is_better, measure.name
    assert better["si_sdr"] == pytest.approx(20, abs=0.1) and worse["si_sdr"] == pytest.approx(0, abs=0.1)


def test_warp_cost_by_hand():
    # Cheapest path (0,0) -> (1,1) -> (1,2): 0 + 2 + 4 over three cells.
    assert measures.warp_cost(np.array([[0.0, 3.0, 9.0], [3.0, 2.0, 4.0]])) == pytest.approx(2.0)


def test_mcd_forgives_a_pause():
    late = np.concatenate([CLEAN[:4096], CLEAN[3840:]])
    shifted, aligned = (AudioPair(x, RATE, CLEAN, RATE) for x in (noisy(0), late))
    assert compute_metrics(aligned, ["mcd"], RATE)["mcd_dtw"] < 0.2 * compute_metrics(shifted, ["mcd"], RATE)["mcd_dtw"]


def test_level():
    pair = AudioPair(CLEAN / 4, RATE, CLEAN, RATE)
    assert pair.level_db == pytest.approx(-12.04, abs=0.01)
    raw = compute_metrics(pair, ["lsd", "m_stft", "mcd", "si_sdr"], RATE)
    matched = compute_metrics(pair, ["lsd", "m_stft", "mcd", "si_sdr"], RATE, match_level=True)
    assert raw["lsd"] > 0.5 and matched["lsd"] < 0.01 and matched["m_stft"] < 0.01
    assert raw["si_sdr"] == matched["si_sdr"]


def test_a_silent_reference_defines_nothing():
    values = compute_metrics(AudioPair(CLEAN, RATE, np.zeros_like(CLEAN), RATE), ALL, RATE)
    assert all(map(math.isnan, values.values()))


def test_a_silent_result_is_the_worst_and_not_left_out():
    clean = np.tile(CLEAN, 10)[: 30 * RATE]
    half = np.where(np.arange(len(clean)) < len(clean) // 2, clean, 0).astype(np.float32)
    silent, muted = (compute_metrics(AudioPair(each, RATE, clean, RATE), ALL, RATE) for each in (0 * clean, half))
    assert silent["pesq_wb"] == pytest.approx(1, abs=0.01) and muted["pesq_wb"] == pytest.approx(2.82, abs=0.01)
    assert abs(silent["stoi"]) < 0.01 and abs(silent["estoi"]) < 0.01 and math.isnan(silent["si_sdr"])


@pytest.mark.parametrize("samples", [0, 100, 4000])
def test_clips_that_are_too_short(samples):
    start = len(CLEAN) // 3
    clean, restored = (x[start : start + samples] for x in (CLEAN, noisy(20)))
    values = compute_metrics(AudioPair(restored, RATE, clean, RATE), ALL, RATE)
    assert math.isnan(values["pesq_wb"]) and math.isnan(values["stoi"])
    assert not any(math.isinf(value) for value in values.values())


def test_long_signals_are_taken_in_segments():
    # PESQ's C code would crash on the whole: it has room for 50 utterances.
    clean = np.tile(CLEAN, 20)
    values = compute_metrics(AudioPair(noisy(10, clean), RATE, clean, RATE), ["pesq", "mcd"], RATE)
    assert 1 < values["pesq_wb"] < 4.5 and values["mcd_dtw"] > 1


def test_unknown_and_missing_metrics(monkeypatch):
    with pytest.raises(ValueError, match="mcdd"):
        measures.check_names(["pesq", "mcdd"])
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "pesq" not in measures.available_metrics() and "lsd" in measures.available_metrics()
    with pytest.raises(ImportError, match=r"zoo\[metrics\]"):
        measures.check_names(["pesq"])
    measures.check_names(["lsd"])
