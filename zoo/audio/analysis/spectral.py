"""Short-time Fourier magnitudes and the multi-resolution STFT distance, as a loss and as a metric."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

# (n_fft, hop, window) in samples: Yamamoto et al., "Parallel WaveGAN" (2020), table 1; also BigVGAN's M-STFT.
RESOLUTIONS: tuple[tuple[int, int, int], ...] = ((1024, 120, 600), (2048, 240, 1200), (512, 50, 240))
_POWER_FLOOR = 1e-8


def stft_magnitude(x: Tensor, n_fft: int, hop_length: int, win_length: int) -> Tensor:
    """Magnitude of the centred, Hann-windowed STFT in float32, with a floor that keeps its gradient finite.

    Args:
        x: audio (..., T), float; zero-padded on the right where it is too short to be reflected at its ends.
        n_fft: in samples, as `hop_length` and `win_length`.

    Returns:
        Magnitudes (..., n_fft // 2 + 1, F) float32, F = T // hop_length + 1.
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
        found = stft_magnitude(prediction, n_fft, hop_length, win_length)
        wanted = stft_magnitude(target, n_fft, hop_length, win_length)
        error = torch.linalg.matrix_norm(wanted - found)
        convergence = (error / torch.linalg.matrix_norm(wanted)).mean()  # the power floor keeps the denominator > 0
        terms.append(convergence + functional.l1_loss(found.log(), wanted.log()))
    return torch.stack(terms).mean()
