"""Channels of stereo files as items: one crop, cut-off, filter and gain for both, in one set."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.audiosr.task_parts import RATE
from zoo.audio.io import files
from zoo.audiosr.data.datamodule import SuperResolutionData
from zoo.audiosr.data.simulate import Simulation
from zoo.audiosr.data.sources import Recordings

SECONDS = 0.5


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three stereo files whose right channel is a quarter of the left, the last with a silent right, and a mono one."""
    folder = tmp_path_factory.mktemp("stereo")
    for number in range(4):
        rng = np.random.default_rng(number)
        left = rng.uniform(-0.4, 0.4, int(SECONDS * RATE)).astype(np.float32)
        right = left * 0.25 if number < 2 else left * 0
        files.write(folder / f"{number}.wav", left if number == 3 else np.stack([left, right]), RATE)
    return folder


def data(corpus: Path, cache: Path, **settings: Any) -> SuperResolutionData:
    settings = {
        "simulation": Simulation((1000, 7000), codec=0.0, noise=0.5),
        "val_ratio": None,
        "val_items": 1,
    } | settings
    made = SuperResolutionData(
        str(corpus), sample_rate=RATE, segment_samples=2560, val_cutoffs_hz=[4000.0], cache=str(cache), **settings
    )
    made.prepare_data()
    made.setup("fit")
    return made


@pytest.mark.parametrize("cache_mode", ["memmap", "ram"])
def test_left_and_right_have_crop_filter_and_gain_in_common(corpus: Path, tmp_path: Path, cache_mode: Any) -> None:
    made = data(
        corpus, tmp_path, channels="each", cache_mode=cache_mode, simulation=Simulation((1000, 7000), codec=0.0)
    )
    recordings: Recordings = made.train_set.recordings
    assert list(recordings.high.names) == ["0.wav#1", "0.wav#2", "1.wav#1", "1.wav#2", "2.wav#1", "2.wav#2", "3.wav"]
    assert list(made.train_set.indices) == [0, 1, 2, 3, 4, 5] and list(made.val_set.indices) == [6]
    seen = set()
    for epoch in range(6):
        for item in (0, 2, 4):
            left, right = (made.train_set[epoch, item + place] for place in range(2))
            seen.add(float(left["cutoff_hz"]))
            assert left["cutoff_hz"] == right["cutoff_hz"]
            factor = 0.25 if item < 4 else 0.0
            for key in ("high", "low"):
                np.testing.assert_allclose(right[key], factor * left[key], atol=2e-4)
            assert float(left["high"].abs().max()) > 0.5  # a silent right channel does not count as silence
    assert len(seen) > 6


def test_mid_and_side_give_left_and_right_again(corpus: Path, tmp_path: Path) -> None:
    plain, coded = (data(corpus, tmp_path, channels=each, normalize=False) for each in ("each", "mid_side"))
    left, right = (plain.train_set.recordings.read(place, 100, 900)[0] for place in range(2))
    mid, side = (coded.train_set.recordings.read(place, 100, 900)[0] for place in range(2))
    np.testing.assert_allclose(mid + side, left, atol=1e-4)
    np.testing.assert_allclose(mid - side, right, atol=1e-4)
    assert plain.train_set.recordings.length(0) == int(SECONDS * RATE)


def test_files_are_split_as_a_whole(corpus: Path, tmp_path: Path) -> None:
    for seed in range(4):
        made = data(corpus, tmp_path, channels="each", val_ratio=0.5, val_items=None, split_seed=seed)
        names = made.train_set.recordings.high.names
        sets = [{names[clip].split("#")[0] for clip in part.indices} for part in (made.train_set, made.val_set)]
        assert len(sets[0]) == len(sets[1]) == 2 and not sets[0] & sets[1]


def test_mono_is_what_it_was_and_says_so(corpus: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = data(corpus, tmp_path)
    assert "3 of 4 files that were looked at have several channels" in caplog.text
    assert list(made.train_set.indices) == [0, 1, 2]
    mean = made.train_set.recordings.read(0, 0, 800)[0]
    left = data(corpus, tmp_path, channels="each").train_set.recordings.read(0, 0, 800)[0]
    np.testing.assert_allclose(mean, left, atol=2e-4)  # both brought to the same peak


def test_pairs_are_brought_together_by_channel(corpus: Path, tmp_path: Path) -> None:
    for name, factor in (("high", 1.0), ("low", 0.5)):
        for number in range(4):
            audio, _ = files.read(corpus / f"{number}.wav")
            files.write(tmp_path / "pairs" / name / f"{number}.wav", audio * np.float32(factor), RATE)
    made = data(tmp_path / "pairs", tmp_path, mode="paired", channels="each")
    for item in range(6):
        row = made.train_set[0, item]
        np.testing.assert_allclose(row["low"], 0.5 * row["high"], atol=2e-4)
    audio, _ = files.read(corpus / "1.wav")
    files.write(tmp_path / "pairs" / "low" / "1.wav", audio[0], RATE)
    with pytest.raises(ValueError, match=r"1 pairs .* are stereo in one file and mono in the other: 1\.wav"):
        data(tmp_path / "pairs", tmp_path, mode="paired", channels="each")


def test_wrong_settings(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="channels is one of mono, each, mid_side"):
        data(corpus, tmp_path, channels="stereo")
    with pytest.raises(ValueError, match="channels each needs a cache: set cache_mode"):
        data(corpus, tmp_path, channels="each", cache_mode="none")
