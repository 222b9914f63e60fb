import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from zoo.audio.io.chunking import resample_blocks
from zoo.audio.io.resample import resample, resample_array

RATES = [8000, 16000, 22050, 24000, 44100, 48000]


def tone(frequency, rate, seconds=0.5):
    return torch.sin(2 * torch.pi * frequency * torch.arange(int(rate * seconds), dtype=torch.float64) / rate).float()


@pytest.mark.parametrize(("source", "target"), [(22050, 16000), (16000, 48000), (48000, 24000), (44100, 22050)])
def test_a_tone_keeps_its_shape(source, target):
    expected = tone(1000.0, target)
    inner = slice(target // 20, -target // 20)
    assert (resample(tone(1000.0, source), source, target)[: len(expected)] - expected)[inner].abs().max() < 1e-4
    array = resample_array(tone(1000.0, source).numpy(), source, target)
    assert np.abs(array - expected.numpy())[inner].max() < 1e-4


def test_no_alias_of_what_lies_above():
    folded = tone(9500.0, 22050)
    assert resample(folded, 22050, 16000)[800:-800].abs().max() < 1e-5
    assert np.abs(resample_array(folded.numpy(), 22050, 16000))[800:-800].max() < 1e-5


@settings(max_examples=30, deadline=None)
@given(samples=st.integers(1, 3000), source=st.sampled_from(RATES), target=st.sampled_from(RATES))
def test_lengths(samples, source, target):
    exact = samples * target / source
    assert resample(torch.zeros(2, samples), source, target).shape == (2, int(np.ceil(exact)))
    array = resample_array(np.zeros((2, samples)), source, target)
    assert array.shape[0] == 2 and abs(array.shape[1] - exact) <= 1 and array.dtype == np.float32


def test_stream_equals_the_whole():
    x = np.random.default_rng(0).uniform(-1, 1, (2, 9000)).astype(np.float32)
    pieces = list(resample_blocks(np.split(x, [10, 5000], axis=1), 44100, 16000))
    np.testing.assert_allclose(np.concatenate(pieces, axis=1), resample_array(x, 44100, 16000), atol=1e-6)
    np.testing.assert_array_equal(np.concatenate(list(resample_blocks([x[:1]], 16000, 16000))), x[:1])


def test_kernel_made_in_inference_mode_still_trains():
    with torch.inference_mode():
        resample(torch.randn(1, 500), 22050, 15000)
    x = torch.randn(1, 500, requires_grad=True)
    resample(x, 22050, 15000).square().sum().backward()
    assert x.grad.abs().sum() > 0
