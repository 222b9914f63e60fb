"""Log-mel images of super-resolution, with time as the first axis."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor, nn

from zoo.audio.analysis.mel import LogMel
from zoo.audio.analysis.spectral import stft_magnitude
from zoo.common.checks import check_one_of

LOG_FLOOR = 1e-5
Kind = Literal["audiosr", "projectlily"]


class MelFeatures(nn.Module):
    """Waveforms to log-mel images. Always computed in float32.

    Args:
        kind: "audiosr": mel of magnitudes, T // hop_length frames. "projectlily": mel of powers, centred frames, one
            more of them; for its checkpoints.
        sample_rate: Hz.
        n_fft: FFT size and length of the Hann window in samples.
        hop_length: samples between frames.
        n_mels: Slaney bands.
        f_min: lower edge of the lowest band in Hz.
        f_max: upper edge of the highest band in Hz; None is sample_rate / 2.

    Source: the feature code of AudioSR (Liu et al., 2023) and of ProjectLily's data set.
    """

    def __init__(
        self,
        kind: Kind = "audiosr",
        sample_rate: int = 48000,
        n_fft: int = 2048,
        hop_length: int = 480,
        n_mels: int = 256,
        f_min: float = 20.0,
        f_max: float | None = None,
    ) -> None:
        super().__init__()
        check_one_of(get_args(Kind), kind=kind)
        self.kind = kind
        self.sample_rate = sample_rate
        self.n_fft = n_fft
        self.hop_length = hop_length
        self.n_mels = n_mels
        self.mel = LogMel(sample_rate, n_fft, hop_length, n_fft, n_mels, f_min, f_max)

    def frames(self, samples: int) -> int:
        """Frames F of a waveform of so many samples."""
        if self.kind == "audiosr":
            return self.mel.frames(samples)
        return max(samples, self.n_fft // 2 + 1) // self.hop_length + 1

    def equals(self, other: MelFeatures | LogMel) -> bool:
        """Whether another front end makes the same of a waveform."""
        noise = torch.randn(1, 1, 4 * self.n_fft, generator=torch.Generator().manual_seed(0))
        mel = other(noise) if isinstance(other, MelFeatures) else other(noise[:, 0]).transpose(1, 2)[:, None]
        expected = self(noise)
        return expected.shape == mel.shape and torch.allclose(expected, mel, atol=1e-3)

    def forward(self, waveform: Tensor) -> Tensor:
        """Log-mel images (B, 1, F, n_mels), float32, >= ln(1e-5), of waveforms (B, 1, T), -1 to 1; see `frames`."""
        if waveform.dim() != 3 or waveform.shape[1] != 1:
            raise ValueError(f"expected waveforms (B, 1, T), found shape {tuple(waveform.shape)}")
        audio = waveform[:, 0]
        mel = self.mel(audio) if self.kind == "audiosr" else self._power_mel(audio)
        return mel.transpose(1, 2)[:, None]

    def _power_mel(self, audio: Tensor) -> Tensor:
        magnitude = stft_magnitude(audio, self.n_fft, self.hop_length, self.n_fft)
        with torch.autocast(audio.device.type, enabled=False):
            return torch.log(torch.clamp(self.mel.mel_basis @ magnitude.square(), min=LOG_FLOOR))


def crop_to_multiple(mel: Tensor, multiple: int) -> Tensor:
    """Crop mel images (B, 1, F, n_mels) to the most frames that are a multiple, as the bands must be."""
    frames = mel.shape[2] - mel.shape[2] % multiple
    if frames == 0 or mel.shape[3] % multiple:
        raise ValueError(
            f"a log-mel of {mel.shape[2]} frames and {mel.shape[3]} bands: the nets need at least {multiple} frames "
            f"and a multiple of {multiple} bands; take longer clips or other bands"
        )
    return mel[:, :, :frames]
