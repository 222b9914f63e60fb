import math

import pytest
import torch

from zoo.audio.analysis.mel import LogMel
from zoo.audio.analysis.pitch import PitchTrack
from zoo.audio.evaluation import metrics

RATE = 22050


def noise(seed=0, samples=RATE, batch=2):
    return 0.1 * torch.randn(batch, samples, generator=torch.Generator().manual_seed(seed))


def test_lsd_of_a_gain():
    x = noise()
    assert metrics.lsd(x, x) == 0
    # A factor 10 in amplitude is a factor 100 in power: 2 in log10, in every bin.
    assert torch.allclose(metrics.lsd(10 * x, x), torch.tensor(2.0), atol=1e-3)
    assert torch.allclose(metrics.lsd(10 * x[0], x[0]), torch.tensor(2.0), atol=1e-3)


def test_lsd_bands_see_only_their_band():
    x = noise()
    spectrum = torch.fft.rfft(x)
    frequency = torch.fft.rfftfreq(x.shape[-1], 1 / RATE)
    louder = torch.fft.irfft(torch.where(frequency > 6000, 10 * spectrum, spectrum), n=x.shape[-1])
    edges = (0.0, 3000.0, 3000.0, 6000.0, RATE / 2)
    lowest, empty, second, upper = metrics.lsd_bands(louder, x, RATE, edges)
    assert max(lowest, second) < 0.15 and empty.isnan() and abs(upper - 2.0) < 0.1
    assert metrics.lsd_bands(louder, x, RATE, (0.0, RATE / 2)) == [metrics.lsd(louder, x)]


def test_mcd_ignores_level_and_measures_a_cepstral_ripple():
    x = noise(samples=4 * RATE, batch=1)
    assert metrics.mcd(x, x, RATE) == 0
    assert metrics.mcd(3 * x, x, RATE) < 1e-3
    mel = LogMel(RATE, f_max=None)  # that of mcd
    # Shift the log-mel by a * cos(pi * m * (n + .5) / N): the distortion is the RMS of that curve in dB.
    bands = torch.arange(80) + 0.5
    ripple = 0.2 * torch.cos(torch.pi * 3 * bands / 80)
    centres = (mel.mel_basis * torch.linspace(0, RATE / 2, 513)).sum(1) / mel.mel_basis.sum(1)
    frequency = torch.fft.rfftfreq(x.shape[-1], 1 / RATE)
    upper = torch.bucketize(frequency, centres).clamp(1, 79)
    weight = ((frequency - centres[upper - 1]) / (centres[upper] - centres[upper - 1])).clamp(0, 1)
    gain = ripple[upper - 1] * (1 - weight) + ripple[upper] * weight
    shaped = torch.fft.irfft(torch.fft.rfft(x) * gain.exp(), n=x.shape[-1])
    expected = 20 / math.log(10) * 0.2 / math.sqrt(2)
    assert abs(metrics.mcd(shaped, x, RATE) - expected) < 0.05 * expected


def test_si_sdr():
    target = torch.sin(2 * torch.pi * 100 * torch.arange(RATE) / RATE)
    other = torch.cos(2 * torch.pi * 100 * torch.arange(RATE) / RATE)  # orthogonal and of equal energy
    assert torch.allclose(metrics.si_sdr(target + 0.1 * other, target), torch.tensor(20.0), atol=1e-2)
    assert torch.allclose(metrics.si_sdr(5 * (target + 0.1 * other) + 1, target), torch.tensor(20.0), atol=1e-2)
    assert torch.allclose(metrics.si_sdr(1e-6 * (target + 0.1 * other), 1e-6 * target), torch.tensor(20.0), atol=1e-2)
    assert metrics.si_sdr(target, target) > 60 and metrics.si_sdr(target, 0 * target).isfinite()


def pitch(f0, periodicity=None):
    f0 = torch.tensor(f0)
    return PitchTrack(f0, f0 > 0, torch.ones_like(f0) if periodicity is None else torch.tensor(periodicity))


def test_pitch_metrics_by_hand():
    predicted, target = pitch([0.0, 200.0, 220.0, 100.0]), pitch([100.0, 100.0, 220.0, 0.0])
    assert metrics.f0_rmse_cents(predicted, target) == pytest.approx(math.sqrt(1200**2 / 2), rel=1e-5)
    assert metrics.vuv_f1(predicted, target) == pytest.approx(2 * 2 / 6)
    assert metrics.vuv_error(predicted, target) == 0.5
    predicted, target = (pitch([0.0, 0.0], periodicity) for periodicity in ([0.5, 1.0], [0.5, 0.4]))
    assert metrics.periodicity_rmse(predicted, target) == pytest.approx(0.6 / math.sqrt(2))
