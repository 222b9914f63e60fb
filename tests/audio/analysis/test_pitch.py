import pytest
import torch

from zoo.audio.analysis.pitch import track_pitch
from zoo.audio.corpora.synthetic import SyntheticSpeech

RATE = 22050


def harmonics(f0, amplitudes, rate=RATE, seconds=0.5):
    time = torch.arange(int(rate * seconds), dtype=torch.float64) / rate
    parts = [a * torch.sin(2 * torch.pi * f0 * (k + 1) * time) for k, a in enumerate(amplitudes)]
    total = torch.stack(parts).sum(0)
    return (0.5 * total / total.abs().max()).float()


def cents(track_, f0):
    return (1200 * torch.log2(track_.f0[5:-5] / f0)).abs().max()


@pytest.mark.parametrize("rate", [8000, 16000, 22050, 48000])
@pytest.mark.parametrize("f0", [55.0, 110.0, 233.0, 440.0, 530.0])
def test_sines(f0, rate):
    result = track_pitch(harmonics(f0, [1.0], rate), rate)
    assert result.voiced[5:-5].all() and cents(result, f0) < 5
    assert result.periodicity[5:-5].min() > 0.98
    assert len(result.f0) == int(rate * 0.5) // round(0.01 * rate) + 1


@pytest.mark.parametrize(
    "amplitudes",
    [[1.0] * 8, [0.1, 1.0, 0.1, 0.5], [0.0, 1.0, 1.0, 1.0], [0.3, 1.0], [1.0, 0.0, 1.0, 0.0, 1.0]],
    ids=["flat", "strong second", "missing fundamental", "weak fundamental", "odd"],
)
def test_no_octave_errors(amplitudes):
    result = track_pitch(harmonics(120.0, amplitudes), RATE)
    assert result.voiced[5:-5].all() and cents(result, 120.0) < 10


def test_noise_and_silence_are_unvoiced():
    noise = 0.3 * torch.randn(RATE, generator=torch.Generator().manual_seed(0))
    result = track_pitch(noise, RATE)
    assert not result.voiced.any() and result.periodicity.mean() < 0.3 and (result.f0 == 0).all()
    silent = track_pitch(torch.zeros(RATE), RATE)
    assert not silent.voiced.any() and (silent.periodicity == 0).all()
    assert not track_pitch(1e-4 * harmonics(120.0, [1.0]), RATE).voiced.any()


def test_follows_the_true_contour_of_synthetic_speech():
    corpus = SyntheticSpeech(RATE, speakers=4, seed=1, seconds=(1.5, 1.5))
    for index in range(4):
        result = track_pitch(torch.from_numpy(corpus.utterance(index)), RATE)
        true = torch.from_numpy(corpus.pitch(index))
        frames = min(len(true), len(result.f0))
        both = result.voiced[:frames] & (true[:frames] > 0)
        error = 1200 * torch.log2(result.f0[:frames][both] / true[:frames][both])
        assert error.abs().median() < 20 and (error.abs() > 600).float().mean() < 0.02
        assert (result.voiced[:frames] == (true[:frames] > 0)).float().mean() > 0.9
