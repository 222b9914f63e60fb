"""Vocos generators: a backbone at the rate of the frames, and a head that predicts spectra and inverts them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from zoo.common.checks import check_at_least, check_one_of
from zoo.common.tensors import promote_to_float32
from zoo.hifigan.nets.causal import Overlap, conv1d
from zoo.hifigan.nets.interface import WaveformGenerator

EDGE_KERNEL = 7
MOST_MAGNITUDE = 100.0
_ENOUGH = 5.0  # whose exponential is more than that, and finite
_LEAST_ENVELOPE = 1e-11

Padding = Literal["same", "center"]


class AdaptiveNorm(nn.Module):
    """Layer norm over channels whose gain and offset are those of one of several conditions.

    Source: Vocos, section 4.3 (Siuzdak, 2023).
    """

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
    """A depthwise convolution and a two-layer perceptron on each frame, scaled and added to the input.

    Source: Vocos, section 3.2 (Siuzdak, 2023); ConvNeXt (Liu et al., 2022).
    """

    def __init__(
        self, dim: int, intermediate_dim: int, scale: float, conditions: int | None, causal: bool = False
    ) -> None:
        super().__init__()
        self.dwconv = conv1d(dim, dim, EDGE_KERNEL, causal, groups=dim)
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
    """Vocos' backbone.

    Args:
        scale: start of the blocks' scales; None is 1 / layers.
        conditions: number of conditions that the norms adapt to; None for plain norms.
        causal: look back only.

    Source: Vocos, section 3.2 (Siuzdak, 2023).
    """

    def __init__(
        self,
        in_channels: int,
        dim: int,
        intermediate_dim: int,
        layers: int,
        scale: float | None,
        conditions: int | None,
        causal: bool = False,
    ) -> None:
        super().__init__()
        self.embed = conv1d(in_channels, dim, EDGE_KERNEL, causal)
        self.norm = AdaptiveNorm(conditions, dim) if conditions else nn.LayerNorm(dim, eps=1e-6)
        self.convnext = nn.ModuleList(
            ConvNeXtBlock(dim, intermediate_dim, scale or 1 / layers, conditions, causal) for _ in range(layers)
        )
        self.final_layer_norm = nn.LayerNorm(dim, eps=1e-6)
        self.reach = (layers + 1) * (EDGE_KERNEL - 1 if causal else EDGE_KERNEL // 2)
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


class ScaledResidualBlock(nn.Module):
    """HiFi-GAN's residual block of kernel 3 whose units are scaled.

    Source: Vocos, section 4.4 (Siuzdak, 2023).
    """

    def __init__(self, dim: int, scale: float, causal: bool = False, dilations: Sequence[int] = (1, 3, 5)) -> None:
        super().__init__()

        def conv(dilation: int) -> nn.Conv1d:
            return parametrizations.weight_norm(conv1d(dim, dim, 3, causal, dilation))

        self.convs1 = nn.ModuleList(conv(dilation) for dilation in dilations)
        self.convs2 = nn.ModuleList(conv(1) for _ in dilations)
        self.gamma = nn.ParameterList(torch.full((dim, 1), scale) for _ in dilations)
        self.reach = (sum(dilations) + len(dilations)) * (2 if causal else 1)

    def forward(self, x: Tensor) -> Tensor:
        """Refine (B, dim, F)."""
        for dilated, plain, gamma in zip(self.convs1, self.convs2, self.gamma, strict=True):
            x = x + gamma * plain(F.leaky_relu(dilated(F.leaky_relu(x, 0.1)), 0.1))
        return x


class ResNetBackbone(nn.Module):
    """The backbone of Vocos' ablation: residual convolutions.

    Source: Vocos, section 4.4 (Siuzdak, 2023).
    """

    def __init__(self, in_channels: int, dim: int, layers: int, scale: float | None, causal: bool = False) -> None:
        super().__init__()
        self.embed = parametrizations.weight_norm(conv1d(in_channels, dim, 3, causal))
        self.resnet = nn.Sequential(*(ScaledResidualBlock(dim, scale or 1 / layers / 3, causal) for _ in range(layers)))
        self.reach = (2 if causal else 1) + sum(block.reach for block in self.resnet)  # type: ignore[misc, operator]

    def forward(self, x: Tensor) -> Tensor:
        """Turn frames (B, in_channels, F) into (B, F, dim)."""
        return self.resnet(self.embed(x)).transpose(1, 2)


def magnitude_of(logarithm: Tensor) -> Tensor:
    """Magnitudes, at most 100, of their natural logarithms; of larger ones the gradient is zero.

    The original's exponential overflows from 89 on, where its gradient is NaN.
    """
    return logarithm.clamp(max=_ENOUGH).exp().clamp(max=MOST_MAGNITUDE)


class ISTFTHead(nn.Module):
    """Predicts magnitude and phase of every frame and inverts the short-time Fourier transform.

    Args:
        padding: "same" takes frame i for samples from i * hop_length on, as `LogMel`; "center" for those around it.
        causal: the window of frame i begins with its samples; see `InverseSTFT`.

    Source: Vocos, section 3.3 (Siuzdak, 2023).
    """

    def __init__(self, dim: int, n_fft: int, hop_length: int, padding: Padding, causal: bool = False) -> None:
        super().__init__()
        self.out = nn.Linear(dim, n_fft + 2)
        self.istft = InverseSTFT(n_fft, hop_length, n_fft, padding, causal)
        self.reach = math.ceil(n_fft / hop_length)

    def forward(self, x: Tensor) -> Tensor:
        """Turn frames (B, F, dim) into (B, F * hop_length); computed in float32 behind the layer."""
        magnitude, phase = promote_to_float32(self.out(x)).chunk(2, 2)  # (B, F, n_fft / 2 + 1)
        with torch.autocast(x.device.type, enabled=False):
            magnitude = magnitude_of(magnitude)
            return self.istft(magnitude * phase.cos(), magnitude * phase.sin())


class IMDCTHead(nn.Module):
    """Predicts coefficients of a modified discrete cosine transform and inverts it.

    Args:
        kind: "symexp" predicts a signed logarithm, "cos" magnitude and phase.
        causal: the window of frame i begins with its samples, and only the frame before it overlaps them.

    Source: Vocos, section 4.4 (Siuzdak, 2023).
    """

    basis: Tensor

    def __init__(
        self, dim: int, hop_length: int, padding: Padding, kind: Literal["symexp", "cos"], causal: bool = False
    ) -> None:
        super().__init__()
        self.overlap = Overlap(hop_length) if causal else None
        self.hop_length, self.padding, self.kind = hop_length, padding, kind
        self.out = nn.Linear(dim, hop_length * (1 if kind == "symexp" else 2))
        self.register_buffer("basis", mdct_basis(hop_length), persistent=False)
        self.reach = 2

    def forward(self, x: Tensor) -> Tensor:
        """Turn frames (B, F, dim) into (B, F * hop_length); computed in float32 behind the layer."""
        x = promote_to_float32(self.out(x))
        with torch.autocast(x.device.type, enabled=False):
            if self.kind == "symexp":
                magnitude = x.abs().clamp(max=_ENOUGH).exp() - 1
                coefficients = (x.sign() * magnitude).clamp(-MOST_MAGNITUDE, MOST_MAGNITUDE)
            else:
                magnitude, phase = x.chunk(2, 2)
                coefficients = magnitude_of(magnitude) * phase.cos()
            pieces = overlap_add((coefficients @ self.basis).transpose(1, 2), self.hop_length)
            if self.overlap is not None:
                return self.overlap(pieces)
            start = self.hop_length // 2 if self.padding == "same" else self.hop_length
            return _cut(pieces, start, x.shape[1] * self.hop_length)


class Vocos(WaveformGenerator):
    """Turns frames of a mel, or embedded codes, into a waveform without raising the rate.

    Args:
        in_channels: channels of the input frames.
        dim: width of the backbone.
        intermediate_dim: width inside its perceptrons (not of "resnet").
        layers: number of its blocks.
        n_fft: size of the predicted spectra in samples; those of the MDCT are 2 * hop_length.
        hop_length: samples per frame.
        padding: as the front end's: with "center" the frames lie around their samples, the last one's are at the edge.
        backbone: "convnext", or "resnet" of the paper's ablation.
        head: "istft", or "mdct_symexp" and "mdct_cos" of the ablation.
        scale: start of the blocks' scales; None is 1 / layers, a third of it for "resnet".
        conditions: number of conditions (bandwidths of a codec) that the norms adapt to; None for plain norms.
        causal: a frame's samples depend on no later frame: convolutions look back, and the window of a frame's
            spectrum begins with its samples. With padding "same" only.

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
        backbone: Literal["convnext", "resnet"] = "convnext",
        head: Literal["istft", "mdct_symexp", "mdct_cos"] = "istft",
        scale: float | None = None,
        conditions: int | None = None,
        causal: bool = False,
    ) -> None:
        super().__init__()
        check_at_least(1, in_channels=in_channels, dim=dim, layers=layers, hop_length=hop_length)
        check_one_of(("same", "center"), padding=padding)
        check_one_of(("convnext", "resnet"), backbone=backbone)
        check_one_of(("istft", "mdct_symexp", "mdct_cos"), head=head)
        uneven = padding == "same" and not causal and (n_fft - hop_length) % 2
        if head == "istft" and (n_fft % 2 or n_fft < hop_length or uneven):
            raise ValueError(
                f"n_fft {n_fft} must be even, at least hop_length {hop_length}, and with padding same (not causal) "
                "differ by an even number"
            )
        if causal and padding != "same":
            raise ValueError("causal: padding must be same, with center a frame's samples begin before it")
        if conditions and backbone == "resnet":
            raise ValueError("the resnet backbone has no norms that adapt to conditions")
        self.in_channels, self.hop_length, self.conditions = in_channels, hop_length, conditions or None
        self.causal = causal
        if backbone == "convnext":
            self.backbone: nn.Module = ConvNeXtBackbone(
                in_channels, dim, intermediate_dim, layers, scale, conditions, causal
            )
        else:
            self.backbone = ResNetBackbone(in_channels, dim, layers, scale, causal)
        self.head = (
            ISTFTHead(dim, n_fft, hop_length, padding, causal)
            if head == "istft"
            else IMDCTHead(dim, hop_length, padding, "symexp" if head == "mdct_symexp" else "cos", causal)
        )
        self.receptive_frames = self.backbone.reach + self.head.reach

    def forward(self, x: Tensor, condition: Tensor | None = None) -> Tensor:
        """Synthesise (B, 1, F * hop_length) from frames (B, in_channels, F), where norms adapt for a condition ()."""
        if (condition is None) != (self.conditions is None):
            raise ValueError(f"expected {'a' if self.conditions else 'no'} condition")
        given = () if condition is None else (condition,)
        return self.head(self.backbone(x, given) if given else self.backbone(x))[:, None]


class InverseSTFT(nn.Module):
    """Inverts a short-time Fourier transform; in exports by a matrix, which every runtime knows.

    Args:
        win_length: of a periodic Hann window in the middle of the frame, in samples as n_fft and the hop.
        padding: "same" also inverts the ends of a transform whose signal was padded by (n_fft - hop_length) / 2;
            "center" is torch's, and has a last hop more, of which less of a window remains.
        causal: frame i begins with sample i * hop_length instead, so that no sample needs a later frame; what lies
            before the first one counts as silent frames, for whose windows the start is divided too.
    """

    basis: Tensor
    energy: Tensor
    window: Tensor

    def __init__(self, n_fft: int, hop_length: int, win_length: int, padding: Padding, causal: bool = False) -> None:
        super().__init__()
        self.hop_length = hop_length
        self.overlap = Overlap(n_fft - hop_length) if causal else None
        self.start = (n_fft - hop_length) // 2 if padding == "same" else n_fft // 2
        left = (n_fft - win_length) // 2
        window = F.pad(torch.hann_window(win_length, dtype=torch.float64), (left, n_fft - win_length - left))
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
        if self.overlap is not None:
            added = self.overlap(overlap_add(frames.transpose(1, 2), self.hop_length))
            energy = F.pad(self.energy, (0, -len(self.energy) % self.hop_length)).reshape(-1, self.hop_length).sum(0)
            return (added.unflatten(1, (-1, self.hop_length)) / energy.clamp(min=_LEAST_ENVELOPE)).flatten(1)
        energy = self.energy[None, None].expand(1, frames.shape[1], -1)
        added, envelope = (overlap_add(each.transpose(1, 2), self.hop_length) for each in (frames, energy))
        samples = frames.shape[1] * self.hop_length
        return _cut(added, self.start, samples) / _cut(envelope, self.start, samples).clamp(min=_LEAST_ENVELOPE)


def mdct_basis(hop_length: int) -> Tensor:
    """Windowed cosines (hop_length, 2 * hop_length) of the modified discrete cosine transform; they are orthonormal."""
    time = torch.arange(2 * hop_length, dtype=torch.float64)
    frequency = torch.arange(hop_length, dtype=torch.float64)[:, None] + 0.5
    window = torch.sin(math.pi / (2 * hop_length) * (time + 0.5))
    basis = torch.cos(math.pi / hop_length * (time + 0.5 + hop_length / 2) * frequency) * window
    return (basis * math.sqrt(2 / hop_length)).float()


def overlap_add(frames: Tensor, hop_length: int) -> Tensor:
    """Add frames (B, N, F) at distances of a hop to (B, (F - 1) * hop_length + N)."""
    samples = (frames.shape[-1] - 1) * hop_length + frames.shape[1]
    return F.fold(frames, (1, samples), (1, frames.shape[1]), stride=(1, hop_length))[:, 0, 0]


def _cut(x: Tensor, start: int, samples: int) -> Tensor:
    return F.pad(x[:, start : start + samples], (0, max(0, start + samples - x.shape[1])))
