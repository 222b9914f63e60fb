"""A Vocos whose spectra are the mel's own envelope on noise, and a deterministic part beside it."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from zoo.audio.analysis.mel import LogMel
from zoo.common.checks import check_at_least
from zoo.common.tensors import promote_to_float32
from zoo.hifigan.nets.base import WaveformGenerator
from zoo.hifigan.nets.vocos import ConvNeXtBackbone, InverseSTFT, clipped_exp

_SPREAD = 3.0  # radians per neper: frames a tenth of a neper apart in each band have unrelated noise
_MIN_WEIGHT = 1e-9  # of a bin in a band


class StochasticVocos(WaveformGenerator):
    """Vocos' backbone with a head that adds noise: each frame's spectrum is a deterministic and a stochastic part.

    Both log-magnitudes are corrections of the envelope that the mel describes, so that noise sounds like noise after
    some hundred batches without discriminators. The noise is a function of the frame (random Fourier features of it),
    so that a signal in pieces, a copy and an export give the same samples.

    Args:
        mel: front end whose log-mels it takes; its n_fft and hop are those of the spectra.
        dim: width of the backbone.
        intermediate_dim: width inside its perceptrons.
        layers: number of its blocks.
        scale: initial scale of the blocks; None is 1 / layers.

    Source: Vocos (Siuzdak, 2023); deterministic plus stochastic decomposition: Serra and Smith, "Spectral modeling
    synthesis" (1990), filtered noise: DDSP (Engel et al., 2020), section 3.5; random features: Rahimi and Recht (2007).
    """

    envelope: Tensor
    projection: Tensor

    def __init__(
        self,
        mel: LogMel,
        dim: int = 192,
        intermediate_dim: int = 384,
        layers: int = 4,
        scale: float | None = None,
    ) -> None:
        super().__init__()
        check_at_least(1, dim=dim, intermediate_dim=intermediate_dim, layers=layers)
        if mel.padding == "same" and (mel.n_fft - mel.hop_length) % 2:
            raise ValueError(f"mel: n_fft {mel.n_fft} and hop_length {mel.hop_length} must differ by an even number")
        self.in_channels, self.hop_length = mel.n_mels, mel.hop_length
        self.backbone = ConvNeXtBackbone(mel.n_mels, dim, intermediate_dim, layers, scale, None)
        bins = mel.n_fft // 2 + 1
        self.out = nn.Linear(dim, 3 * bins)
        nn.init.normal_(self.out.weight, std=0.02)
        nn.init.zeros_(self.out.bias)
        self.istft = InverseSTFT(mel.n_fft, mel.hop_length, mel.padding)
        self.receptive_frames = self.backbone.reach + math.ceil(mel.n_fft / mel.hop_length)
        self.register_buffer("envelope", mel_envelope_weights(mel), persistent=False)
        random = torch.randn(mel.n_mels, 2 * bins, generator=torch.Generator().manual_seed(0))
        self.register_buffer("projection", _SPREAD * random, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Synthesise (B, 1, F * hop_length) from log-mels (B, n_mels, F); in float32 behind the backbone."""
        level, phase, noise_level = promote_to_float32(self.out(self.backbone(x))).chunk(3, 2)  # (B, F, n_fft / 2 + 1)
        with torch.autocast(x.device.type, enabled=False):
            frames = promote_to_float32(x).transpose(1, 2)  # (B, F, n_mels)
            envelope = frames @ self.envelope
            # no gradient: it would be that of chaos
            real, imaginary = (frames.detach() @ self.projection).sin().chunk(2, 2)
            magnitude, noise = (clipped_exp(envelope + each) for each in (level, noise_level))
            real, imaginary = magnitude * phase.cos() + noise * real, magnitude * phase.sin() + noise * imaginary
            return self.istft(real, imaginary)[:, None]


def mel_envelope_weights(mel: LogMel) -> Tensor:
    """Compute weights (n_mels, n_fft / 2 + 1) that turn a front end's log-mel into log-magnitudes; each bin's sum to 1.

    Bins below the first band's peak, or above the last one's, have the weights of that peak's bin.
    """
    basis = mel.mel_basis.clone()  # (n_mels, bins)
    first, last = basis[0].argmax(), basis[-1].argmax()
    basis[:, :first] = basis[:, first, None]
    basis[:, last:] = basis[:, last, None]
    return basis / basis.sum(0).clamp(min=_MIN_WEIGHT)
