"""The log-mel front end of HiFi-GAN, and of every vocoder trained on its features."""

from __future__ import annotations

from typing import Literal

import torch
import torchaudio
from torch import Tensor, nn
from torch.nn import functional

from zoo.common.checks import check_one_of

_MAGNITUDE_FLOOR = 1e-9  # inside the root, HiFi-GAN's meldataset
_LOG_FLOOR = 1e-5  # ln(1e-5) = -11.5129 is silence


class LogMel(nn.Module):
    """Natural logarithm of a Slaney mel magnitude spectrogram.

    The waveform is reflect-padded by (n_fft - hop_length) / 2, an odd sample on the right, and framed without centring,
    so that T samples give T // hop_length frames and frame i covers the samples that a vocoder must produce for it. A
    clip too short to be reflected is zero-padded on the right first. Computed in float32, also under autocast, or
    in float64.

    Args:
        sample_rate: of the waveforms, in Hz; places the bands.
        n_fft: FFT size in samples.
        hop_length: samples between frames.
        win_length: length of the periodic Hann window in samples, <= n_fft.
        n_mels: bands of the mel scale, the rows of the result.
        f_min: lower edge of the lowest band in Hz.
        f_max: upper edge of the highest band in Hz; None is sample_rate / 2.
        padding: "center" pads by n_fft / 2, so that frame i lies around sample i * hop_length and there is one more.
        mel_scale: "slaney" with bands of equal area, or "htk" with bands of equal height (Vocos, torchaudio).
        magnitude_floor: power added inside the root of the magnitude.
        floor: least magnitude of which the logarithm is taken; 1e-7 in Vocos.

    Source: Kong et al., "HiFi-GAN" (2020), section 3 and the features of its published models.
    """

    window: Tensor
    mel_basis: Tensor

    def __init__(
        self,
        sample_rate: int = 22050,
        n_fft: int = 1024,
        hop_length: int = 256,
        win_length: int = 1024,
        n_mels: int = 80,
        f_min: float = 0.0,
        f_max: float | None = 8000.0,
        padding: Literal["same", "center"] = "same",
        mel_scale: Literal["slaney", "htk"] = "slaney",
        magnitude_floor: float = _MAGNITUDE_FLOOR,
        floor: float = _LOG_FLOOR,
    ) -> None:
        super().__init__()
        upper = sample_rate / 2 if f_max is None else float(f_max)
        if not 0 < hop_length <= win_length <= n_fft:
            raise ValueError(f"expected 0 < hop_length <= win_length <= n_fft, got {hop_length}, {win_length}, {n_fft}")
        if not 0 <= f_min < upper <= sample_rate / 2:
            raise ValueError(f"expected 0 <= f_min < f_max <= {sample_rate / 2} Hz, got f_min {f_min}, f_max {upper}")
        self.sample_rate, self.n_fft, self.hop_length, self.win_length = sample_rate, n_fft, hop_length, win_length
        self.n_mels, self.f_min, self.f_max = n_mels, float(f_min), upper
        check_one_of(("same", "center"), padding=padding)
        check_one_of(("slaney", "htk"), mel_scale=mel_scale)
        self.padding, self.mel_scale = padding, mel_scale
        self.magnitude_floor, self.floor = magnitude_floor, floor
        self.padding_samples = (n_fft - hop_length) // 2 if padding == "same" else n_fft // 2
        self.right_samples = self.padding_samples + (padding == "same" and (n_fft - hop_length) % 2)
        # Reflection needs one sample more than it copies, and one frame must fit.
        self.min_samples = max(self.right_samples + 1, n_fft - self.padding_samples - self.right_samples)
        basis = torchaudio.functional.melscale_fbanks(
            n_fft // 2 + 1, self.f_min, upper, n_mels, sample_rate, mel_scale=mel_scale,
            norm="slaney" if mel_scale == "slaney" else None,
        )  # fmt: skip
        self.register_buffer("window", torch.hann_window(win_length), persistent=False)
        self.register_buffer("mel_basis", basis.T.contiguous(), persistent=False)

    def frames(self, samples: int) -> int:
        """Frames of a waveform of so many samples."""
        padded = max(samples, self.min_samples) + self.padding_samples + self.right_samples
        return (padded - self.n_fft) // self.hop_length + 1

    def forward(self, waveform: Tensor) -> Tensor:
        """Log-mel (B, n_mels, F), >= ln(floor), of audio (B, T); F = T // hop_length for T >= `min_samples`."""
        if waveform.dim() != 2:
            raise ValueError(f"expected a waveform (B, T), got shape {tuple(waveform.shape)}")
        with torch.autocast(waveform.device.type, enabled=False):
            padded = waveform.to(torch.promote_types(self.window.dtype, torch.float32))
            if padded.shape[-1] < self.min_samples:
                padded = functional.pad(padded, (0, self.min_samples - padded.shape[-1]))
            padded = functional.pad(padded, (self.padding_samples, self.right_samples), mode="reflect")
            spectrum = torch.stft(
                padded, self.n_fft, self.hop_length, self.win_length, self.window, center=False, return_complex=True
            )
            if self.magnitude_floor:
                real, imaginary = torch.view_as_real(spectrum).unbind(-1)  # twice as fast as summing over the last axis
                magnitude = torch.sqrt(real.square() + imaginary.square() + self.magnitude_floor)
            else:
                magnitude = spectrum.abs()  # whose gradient at zero is zero
            return torch.log(torch.clamp(self.mel_basis @ magnitude, min=self.floor))
