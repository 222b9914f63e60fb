import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.harness import RUNS
from zoo.audio.corpora.corpus import MemoryCorpus
from zoo.audio.corpora.synthetic import SyntheticSpeech
from zoo.audio.io import files
from zoo.audiosr.data.simulate import lowpass
from zoo.audiosr.data.sources import Recordings
from zoo.audiosr.evaluation.baselines import linear, mean_envelope, shaped_noise
from zoo.audiosr.evaluation.evaluate import EvaluationOptions, evaluate, evaluate_run, low_band_si_sdr, make_grid
from zoo.cli.main import main

RATE = 16000


@pytest.fixture
def export(tmp_path: Path) -> Path:
    """An export, and beside it a folder with a recording."""
    assert main(["export", str(RUNS / "audiosr" / "smoke"), str(tmp_path / "export")]) == 0
    files.write(tmp_path / "data" / "0.wav", SyntheticSpeech(sample_rate=RATE).utterance(0)[: RATE // 2], RATE)
    return tmp_path / "export"


def test_the_command_writes_all(export, tmp_path):
    output = tmp_path / "out"
    arguments: dict[str, Any] = {"data": tmp_path / "data", "cutoffs": [2000.0, 4000.0], "sampler": "dpm", "steps": 2}
    assert evaluate_run(export, output, **arguments, seconds=0.4) == 0
    summary = json.loads((output / "summary.json").read_text())
    means = {(row["cutoff"], row["system"], row["measure"]): row["mean"] for row in summary["summary"]}
    systems = {"unprocessed", "linear", "ceiling", "restored"}  # no noise: an export knows no training audio
    assert {key[1] for key in means} == systems and {key[0] for key in means} == {"all", "2000 Hz", "4000 Hz"}
    assert all(means["all", system, "lsd_hf"] > 0 for system in systems)
    assert means["all", "restored", "si_sdr_low"] > 30 and means["all", "restored", "real_time_factor"] > 0
    assert len((output / "per_item.csv").read_text().splitlines()) == 1 + 2 * len(systems)


def test_what_cannot_be_evaluated_is_refused(export, tmp_path):
    with pytest.raises(FileNotFoundError, match="--data"):
        evaluate(export, tmp_path / "out", EvaluationOptions())
    with pytest.raises(ValueError, match="nothing to restore"):
        evaluate(export, tmp_path / "out", EvaluationOptions(data=tmp_path / "data", cutoffs_hz=(7900.0,)))
    clips = MemoryCorpus(["0"], [np.ones(RATE, np.float32)])
    pairs: Any = SimpleNamespace(val_set=SimpleNamespace(recordings=Recordings(clips, clips, np.zeros(1, int))))
    with pytest.raises(ValueError, match="--cutoffs"):
        make_grid(pairs, EvaluationOptions(cutoffs_hz=(2000.0,)), RATE)


def test_short_and_silent_files_do_not_count_as_zeros(export, tmp_path):
    files.write(tmp_path / "data" / "silent.wav", np.zeros(RATE // 2), RATE)
    rows = {}
    for seconds in (0.5, 2.0):
        options = EvaluationOptions(tmp_path / "data", (2000.0,), seconds=seconds)
        for row in evaluate(export, tmp_path / str(seconds), options):
            rows[row["name"], row["system"], seconds] = row
    speech, longer = (rows["0.wav@2000", "unprocessed", seconds] for seconds in (0.5, 2.0))
    assert longer["seconds"] == speech["seconds"] == 0.5
    assert longer["lsd"] == pytest.approx(speech["lsd"], rel=0.05)
    assert np.isnan(rows["silent.wav@2000", "restored", 0.5]["lsd"])


def test_the_low_band_alone_is_compared():
    rng = np.random.default_rng(0)
    low = np.sin(2 * np.pi * 300 * np.arange(8000) / RATE)
    high = np.sin(2 * np.pi * 3000 * np.arange(8000) / RATE)
    for level in (1.0, 1e-4):
        assert low_band_si_sdr(level * (low + 9 * high), level * low, RATE, 1000.0) > 60
    worse = low_band_si_sdr(low + 0.1 * rng.standard_normal(8000), low, RATE, 1000.0)
    assert worse == pytest.approx(10 * np.log10(0.5 / 0.01 * 8), abs=1.5)


def test_linear_interpolation_goes_through_the_samples():
    """A tone at an eighth of the low rate: the samples in between lie on straight lines."""
    low = np.sin(2 * np.pi * 500 * np.arange(8000) / RATE).astype(np.float32)
    result = linear(low, RATE, 2000.0)
    np.testing.assert_allclose(result[400:-400:4], low[400:-400:4], atol=1e-3)
    np.testing.assert_allclose(result[402:-402:4], (low[400:-404:4] + low[404:-400:4]) / 2, atol=1e-3)


def test_shaped_noise_meets_the_envelope_at_the_level_of_the_low_band():
    noise = np.random.default_rng(0).standard_normal(4 * RATE).astype(np.float32)
    tilted = np.cumsum(noise)[: len(noise)] * np.float32(0.01)
    tilted -= lowpass(tilted, RATE, 50.0)
    envelope = mean_envelope([tilted])
    for level in (1.0, 0.05):
        low = level * lowpass(tilted, RATE, 3000.0)
        results = mean_envelope([shaped_noise(low, RATE, 3000.0, envelope)])
        np.testing.assert_allclose(results[450:1000] - np.log(level), envelope[450:1000], atol=0.5)
        assert np.mean(results[450:1000] - np.log(level) - envelope[450:1000]) == pytest.approx(0, abs=0.1)
