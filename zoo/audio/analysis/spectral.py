"""Short-time Fourier magnitudes and the multi-resolution STFT distance, as a loss and as a metric."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torchaudio
from torch import Tensor, nn
from torch.nn import functional

# (n_fft, hop, window) in samples: Yamamoto et al., "Parallel WaveGAN" (2020), table 1; also BigVGAN's M-STFT.
RESOLUTIONS: tuple[tuple[int, int, int], ...] = ((1024, 120, 600), (2048, 240, 1200), (512, 50, 240))
_POWER_FLOOR = 1e-8
_LEAST_MEL = 1e-5


def stft_magnitude(x: Tensor, n_fft: int, hop_length: int, win_length: int) -> Tensor:
    """Magnitude (..., n_fft // 2 + 1, T // hop_length + 1) of the centred, Hann-windowed STFT of audio (..., T).

    In float32, with a floor that keeps its gradient finite; audio too short to be reflected is zero-padded.
    """
    with torch.autocast(x.device.type, enabled=False):
        flat = x.reshape(-1, x.shape[-1]).float()
        flat = functional.pad(flat, (0, max(0, n_fft // 2 + 1 - flat.shape[-1])))
        window = torch.hann_window(win_length, device=x.device)
        spectrum = torch.stft(flat, n_fft, hop_length, win_length, window, return_complex=True)
        magnitude = torch.view_as_real(spectrum).square().sum(-1).clamp(min=_POWER_FLOOR).sqrt()
        return magnitude.reshape(*x.shape[:-1], *magnitude.shape[-2:])


def multi_resolution_stft(prediction: Tensor, target: Tensor) -> Tensor:
    """M-STFT: spectral convergence plus L1 of natural-log magnitudes, averaged over three resolutions.

    Args:
        prediction: audio (T,), (B, T) or (B, 1, T), float, in [-1, 1].
        target: audio of the same shape.

    Source: Yamamoto et al., "Parallel WaveGAN" (2020), equations 3 to 6; Lee et al., "BigVGAN" (2023), section 4.1.
    """
    if prediction.shape != target.shape:
        raise ValueError(f"expected equal shapes, got {tuple(prediction.shape)} and {tuple(target.shape)}")
    terms = []
    for n_fft, hop_length, win_length in RESOLUTIONS:
        predicted = stft_magnitude(prediction, n_fft, hop_length, win_length)
        expected = stft_magnitude(target, n_fft, hop_length, win_length)
        error = torch.linalg.matrix_norm(expected - predicted)
        convergence = (error / torch.linalg.matrix_norm(expected)).mean()  # the power floor keeps the denominator > 0
        terms.append(convergence + functional.l1_loss(predicted.log(), expected.log()))
    return torch.stack(terms).mean()


class MultiScaleMel(nn.Module):
    """L1 distance of log10-mels at several resolutions, summed over them.

    Args:
        sample_rate: of the audio in Hz.
        windows: sizes of the transforms in samples; a quarter of each is its hop.
        bands: mel bands of each.
        f_min: lower edge of the lowest band of each in Hz; one number for all.
        f_max: upper edge of the highest band of each in Hz; None is half of the sample rate.
        power: of the mel before its logarithm.
        magnitude_weight: of the same distance once more, as BigVGAN counts it.

    Source: DAC, section 3.4 (Kumar et al., 2023); BigVGAN v2.
    """

    def __init__(
        self,
        sample_rate: int,
        windows: Sequence[int] = (32, 64, 128, 256, 512, 1024, 2048),
        bands: Sequence[int] = (5, 10, 20, 40, 80, 160, 320),
        f_min: Sequence[float] | float = 0.0,
        f_max: Sequence[float | None] | float | None = None,
        power: float = 1.0,
        magnitude_weight: float = 0.0,
    ) -> None:
        super().__init__()
        lows = f_min if isinstance(f_min, Sequence) else [f_min] * len(windows)
        highs = f_max if isinstance(f_max, Sequence) else [f_max] * len(windows)
        self.sample_rate, self.windows, self.power = sample_rate, tuple(windows), power
        self.magnitude_weight = magnitude_weight
        for size, count, low, high in zip(windows, bands, lows, highs, strict=True):
            basis = torchaudio.functional.melscale_fbanks(
                size // 2 + 1, low, sample_rate / 2 if high is None else high, count, sample_rate, "slaney", "slaney"
            )
            self.register_buffer(f"basis_{size}", basis.T.contiguous(), persistent=False)
            self.register_buffer(f"window_{size}", torch.hann_window(size), persistent=False)

    def forward(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Distance of audio (B, 1, T) to audio of the same shape; computed in float32, also under autocast.

        Audio too short to be reflected is zero-padded.
        """
        total = prediction.new_zeros((), dtype=torch.float32)
        with torch.autocast(prediction.device.type, enabled=False):
            for size in self.windows:
                logs = [
                    self.power * self._mel(audio, size).clamp(min=_LEAST_MEL).log10() for audio in (prediction, target)
                ]
                total = total + (1 + self.magnitude_weight) * (logs[0] - logs[1]).abs().mean()
        return total

    def _mel(self, audio: Tensor, size: int) -> Tensor:
        window, basis = self.get_buffer(f"window_{size}"), self.get_buffer(f"basis_{size}")
        flat = audio.reshape(-1, audio.shape[-1]).to(torch.promote_types(window.dtype, torch.float32))
        flat = functional.pad(flat, (0, max(0, size // 2 + 1 - flat.shape[-1])))
        spectrum = torch.stft(flat, size, size // 4, window=window, return_complex=True)
        return basis @ spectrum.abs()
