import numpy as np
import pytest

from zoo.audio.corpora.synthetic import SyntheticSpeech, _render, write_synthetic_corpus
from zoo.audio.io import files


def test_same_arguments_same_samples_and_different_otherwise():
    one, two = SyntheticSpeech(seed=3), SyntheticSpeech(seed=3)
    rendered = one.utterance(1)
    _render.cache_clear()
    two.utterance(5)  # order of calls plays no part
    np.testing.assert_array_equal(two.utterance(1), rendered)
    two.utterance(1)[:] = 0  # nor what is done with a kept one
    np.testing.assert_array_equal(one.utterance(1), rendered)
    first = one.utterance(0)
    for other in (one.utterance(4), SyntheticSpeech(seed=4).utterance(0)):
        assert len(other) != len(first) or not np.array_equal(other, first)


@pytest.mark.parametrize("sample_rate", [8000, 16000, 22050, 48000])
def test_level_length_and_rate(sample_rate):
    corpus = SyntheticSpeech(sample_rate, seconds=(0.8, 1.2))
    for index in range(4):
        x = corpus.utterance(index)
        assert x.dtype == np.float32 and np.isfinite(x).all()
        assert 0.39 < np.abs(x).max() < 0.91
        assert 0.8 <= len(x) / sample_rate <= 1.2 + 0.01
        assert abs(x.mean()) < 0.02


def test_written_corpus(tmp_path):
    paths = write_synthetic_corpus(tmp_path, 3, 16000, seed=1, speakers=2, seconds=(0.3, 0.4))
    rows = [line.split("|") for line in (tmp_path / "metadata.csv").read_text().splitlines()]
    assert [row[0] for row in rows] == [path.stem for path in paths] == ["SP001-0001", "SP002-0002", "SP001-0003"]
    expected = SyntheticSpeech(16000, 2, 1, (0.3, 0.4)).utterance(2)
    assert np.abs(files.read_mono(paths[2]) - expected).max() <= 1 / 65536 + 1e-7
