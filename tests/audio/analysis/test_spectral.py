import torch

from zoo.audio.analysis.spectral import MultiScaleMel, multi_resolution_stft, stft_magnitude


def test_magnitude_of_a_tone_on_a_bin():
    tone = torch.cos(2 * torch.pi * 64 * torch.arange(8192) / 1024)
    magnitude = stft_magnitude(tone, 1024, 256, 1024)
    assert magnitude.shape == (513, 33)
    # A periodic Hann window sums to n / 2; half of the tone's energy lies at the negative frequency.
    assert torch.allclose(magnitude[64, 4:-4], torch.tensor(256.0), rtol=1e-4)
    assert magnitude[200, 4:-4].max() < 0.01


def test_distance_is_zero_for_equal_and_known_for_a_gain():
    x = torch.randn(2, 8192, generator=torch.Generator().manual_seed(0))
    assert multi_resolution_stft(x, x) == 0
    # Half the amplitude: |1 - 1/2| of convergence plus ln 2 everywhere.
    expected = 0.5 + torch.log(torch.tensor(2.0))
    assert torch.allclose(multi_resolution_stft(0.5 * x, x), expected, atol=1e-4)
    assert torch.allclose(multi_resolution_stft(0.5 * x[:, None], x[:, None]), expected, atol=1e-4)


def test_gradient_is_finite_even_against_silence():
    x = torch.zeros(1, 1, 8192, requires_grad=True)
    y = torch.randn(1, 1, 8192)
    multi_resolution_stft(x, y).backward()
    assert x.grad.isfinite().all()
    z = torch.randn(1, 1, 8192, requires_grad=True)
    multi_resolution_stft(z, torch.zeros(1, 1, 8192)).backward()
    assert z.grad.isfinite().all() and z.grad.abs().sum() > 0


def test_mel_distance_of_short_audio_is_that_of_audio_with_zeros_behind_it():
    mel, x = MultiScaleMel(22050, (2048,), (80,)), torch.randn(2, 1, 1, 100)
    assert 0 < mel(*x) == mel(*torch.nn.functional.pad(x, (0, 925)))
