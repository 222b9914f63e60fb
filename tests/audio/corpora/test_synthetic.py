import numpy as np
import pytest

from zoo.audio.corpora.synthetic import SyntheticSpeech, _render


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
