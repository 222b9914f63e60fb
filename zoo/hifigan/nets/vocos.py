"""Vocos generators: a ConvNeXt backbone at the frame rate and a head that predicts spectra and inverts them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.common.checks import check_at_least, check_one_of
from zoo.common.tensors import promote_to_float32
from zoo.hifigan.nets.base import EDGE_KERNEL, WaveformGenerator

MAX_MAGNITUDE = 100.0
_MAX_LOGARITHM = 5.0  # its exponential is above MAX_MAGNITUDE, and finite
_MIN_ENVELOPE = 1e-11

Padding = Literal["same", "center"]


class AdaptiveNorm(nn.Module):
    """Layer norm over channels whose gain and offset are looked up by a condition (Vocos, section 4.3)."""

    def __init__(self, conditions: int, dim: int) -> None:
        super().__init__()
        self.scale = nn.Embedding(conditions, dim)
        self.shift = nn.Embedding(conditions, dim)
        nn.init.ones_(self.scale.weight)
        nn.init.zeros_(self.shift.weight)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        """Normalise (B, F, dim) for a condition () or (1,)."""
        return F.layer_norm(x, x.shape[-1:], eps=1e-6) * self.scale(condition) + self.shift(condition)


class ConvNeXtBlock(nn.Module):
    """A depthwise convolution and a perceptron on each frame, added to the input (ConvNeXt, Liu et al., 2022)."""

    def __init__(self, dim: int, intermediate_dim: int, scale: float, conditions: int | None) -> None:
        super().__init__()
        self.dwconv = nn.Conv1d(dim, dim, EDGE_KERNEL, padding=EDGE_KERNEL // 2, groups=dim)
        self.norm = AdaptiveNorm(conditions, dim) if conditions else nn.LayerNorm(dim, eps=1e-6)
        self.pwconv1 = nn.Linear(dim, intermediate_dim)
        self.pwconv2 = nn.Linear(intermediate_dim, dim)
        self.gamma = nn.Parameter(torch.full((dim,), scale))

    def forward(self, x: Tensor, condition: Sequence[Tensor] = ()) -> Tensor:
        """Refine (B, dim, F)."""
        hidden = self.norm(self.dwconv(x).transpose(1, 2), *condition)  # (B, F, dim)
        hidden = self.gamma * self.pwconv2(F.gelu(self.pwconv1(hidden)))
        return x + hidden.transpose(1, 2)


class ConvNeXtBackbone(nn.Module):
    """Vocos' backbone; the arguments are those of `Vocos`. Source: Vocos, section 3.2 (Siuzdak, 2023)."""

    def __init__(
        self,
        in_channels: int,
        dim: int,
        intermediate_dim: int,
        layers: int,
        scale: float | None = None,
        conditions: int | None = None,
    ) -> None:
        super().__init__()
        self.embed = nn.Conv1d(in_channels, dim, EDGE_KERNEL, padding=EDGE_KERNEL // 2)
        self.norm = AdaptiveNorm(conditions, dim) if conditions else nn.LayerNorm(dim, eps=1e-6)
        self.convnext = nn.ModuleList(
            ConvNeXtBlock(dim, intermediate_dim, 1 / layers if scale is None else scale, conditions)
            for _ in range(layers)
        )
        self.final_layer_norm = nn.LayerNorm(dim, eps=1e-6)
        self.reach = (layers + 1) * (EDGE_KERNEL // 2)
        for module in self.modules():
            if isinstance(module, nn.Conv1d | nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)  # type: ignore[arg-type]

    def forward(self, x: Tensor, condition: Sequence[Tensor] = ()) -> Tensor:
        """Turn frames (B, in_channels, F) into (B, F, dim)."""
        x = self.norm(self.embed(x).transpose(1, 2), *condition).transpose(1, 2)  # (B, dim, F)
        for block in self.convnext:
            x = block(x, condition)
        return self.final_layer_norm(x.transpose(1, 2))


def clipped_exp(logarithm: Tensor) -> Tensor:
    """Exponentiate log-magnitudes to at most 100, with no gradient above; the original's overflows from 89 on."""
    return logarithm.clamp(max=_MAX_LOGARITHM).exp().clamp(max=MAX_MAGNITUDE)


class ISTFTHead(nn.Module):
    """Predicts magnitude and phase of every frame and inverts the short-time Fourier transform.

    Source: Vocos, section 3.3 (Siuzdak, 2023).
    """

    def __init__(self, dim: int, n_fft: int, hop_length: int, padding: Padding) -> None:
        super().__init__()
        self.out = nn.Linear(dim, n_fft + 2)
        self.istft = InverseSTFT(n_fft, hop_length, padding)
        self.reach = math.ceil(n_fft / hop_length)

    def forward(self, x: Tensor) -> Tensor:
        """Turn frames (B, F, dim) into (B, F * hop_length); computed in float32 behind the layer."""
        magnitude, phase = promote_to_float32(self.out(x)).chunk(2, 2)  # (B, F, n_fft / 2 + 1)
        with torch.autocast(x.device.type, enabled=False):
            magnitude = clipped_exp(magnitude)
            return self.istft(magnitude * phase.cos(), magnitude * phase.sin())


class Vocos(WaveformGenerator):
    """Turns frames of a mel, or embedded codes, into a waveform without raising the rate.

    Args:
        in_channels: channels of the input frames.
        dim: width of the backbone.
        intermediate_dim: width inside its perceptrons.
        layers: number of its blocks.
        n_fft: size of the predicted spectra in samples.
        hop_length: samples per frame.
        padding: as the front end's: with "center" the frames lie around their samples, the last one's are at the edge.
        scale: initial scale of the blocks; None is 1 / layers.
        conditions: number of conditions (bandwidths of a codec) that the norms adapt to; None for plain norms.

    Source: Vocos (Siuzdak, 2023).
    """

    def __init__(
        self,
        in_channels: int = 100,
        dim: int = 512,
        intermediate_dim: int = 1536,
        layers: int = 8,
        n_fft: int = 1024,
        hop_length: int = 256,
        padding: Padding = "same",
        scale: float | None = None,
        conditions: int | None = None,
    ) -> None:
        super().__init__()
        check_at_least(1, in_channels=in_channels, dim=dim, layers=layers, hop_length=hop_length)
        check_one_of(("same", "center"), padding=padding)
        if n_fft % 2 or n_fft < hop_length or (padding == "same" and (n_fft - hop_length) % 2):
            raise ValueError(
                f"n_fft {n_fft} must be even, at least hop_length {hop_length}, and with padding same differ from it "
                "by an even number"
            )
        self.in_channels, self.hop_length, self.conditions = in_channels, hop_length, conditions or None
        self.backbone = ConvNeXtBackbone(in_channels, dim, intermediate_dim, layers, scale, conditions)
        self.head = ISTFTHead(dim, n_fft, hop_length, padding)
        self.receptive_frames = self.backbone.reach + self.head.reach

    def forward(self, x: Tensor, condition: Tensor | None = None) -> Tensor:
        """Synthesise (B, 1, F * hop_length) from frames (B, in_channels, F), where norms adapt for a condition ()."""
        if (condition is None) != (self.conditions is None):
            raise ValueError(f"expected {'a' if self.conditions else 'no'} condition")
        return self.head(self.backbone(x, () if condition is None else (condition,)))[:, None]


class InverseSTFT(nn.Module):
    """Inverts a short-time Fourier transform (periodic Hann window); in exports by a matrix, which every runtime knows.

    Padding "same" also inverts the ends of a transform whose signal was padded by (n_fft - hop_length) / 2; "center" is
    torch's, with a last hop more, of which less of a window remains.
    """

    basis: Tensor
    energy: Tensor
    window: Tensor

    def __init__(self, n_fft: int, hop_length: int, padding: Padding) -> None:
        super().__init__()
        self.hop_length = hop_length
        self.start = (n_fft - hop_length) // 2 if padding == "same" else n_fft // 2
        window = torch.hann_window(n_fft, dtype=torch.float64)
        unit = torch.eye(n_fft // 2 + 1, dtype=torch.complex128)
        basis = torch.cat([torch.fft.irfft(unit, n_fft), torch.fft.irfft(1j * unit, n_fft)]) * window
        self.register_buffer("basis", basis.float(), persistent=False)  # (n_fft + 2, n_fft)
        self.register_buffer("energy", window.square().float(), persistent=False)
        self.register_buffer("window", window.float(), persistent=False)

    def forward(self, real: Tensor, imaginary: Tensor) -> Tensor:
        """Turn the parts of the spectra (B, F, n_fft // 2 + 1) into (B, F * hop_length)."""
        if torch.compiler.is_exporting():
            frames = torch.cat([real, imaginary], 2) @ self.basis  # (B, F, n_fft)
        else:
            frames = torch.fft.irfft(torch.complex(real, imaginary), len(self.window)) * self.window
        energy = self.energy[None, None].expand(1, frames.shape[1], -1)
        audio, envelope = (self._overlap_add(each.transpose(1, 2)) for each in (frames, energy))
        return audio / envelope.clamp(min=_MIN_ENVELOPE)

    def _overlap_add(self, frames: Tensor) -> Tensor:
        """Add frames (B, n_fft, F) at distances of a hop and take (B, F * hop_length) from `start` on."""
        n_fft, count = frames.shape[1:]
        padded, samples = (count - 1) * self.hop_length + n_fft, count * self.hop_length
        audio = F.fold(frames, (1, padded), (1, n_fft), stride=(1, self.hop_length))[:, 0, 0]
        missing = max(0, self.start + samples - padded)
        return F.pad(audio[:, self.start : self.start + samples], (0, missing))
