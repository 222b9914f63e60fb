"""Nets that prepare SSL features for the generator: projections, Conformers, the older interpolating prenet."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchaudio.models import Conformer


class Conditioner(nn.Module):
    """Base of what may stand in front of a generator: frames (B, in_channels, F) to frames (B, out_channels, F').

    Args:
        in_channels: of the frames that come in.
        out_channels: of those that go to the generator.
        receptive_frames: input frames on each side that an output frame depends on. None means all of them, so that
            long files cannot be processed in chunks.
    """

    def __init__(self, in_channels: int, out_channels: int, receptive_frames: int | None) -> None:
        super().__init__()
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.receptive_frames = receptive_frames


class ConformerConditioner(Conditioner):
    """Linear, two one-layer Conformers, linear; every sequence counts as full length.

    Args:
        in_channels: SSL feature size.
        out_channels: width of the generator's first convolution.
        dim: width of the Conformers.
        heads: attention heads; must divide `dim`.
        ffn_dim: hidden size of the feed-forward modules.
        kernel_size: odd depthwise kernel, in frames.
        dropout: in training, 0 to below 1.

    Source: front end of the Miipher-2 reimplementation's SSL vocoder.
    """

    def __init__(
        self,
        in_channels: int = 768,
        out_channels: int = 512,
        dim: int = 768,
        heads: int = 8,
        ffn_dim: int = 1024,
        kernel_size: int = 31,
        dropout: float = 0.1,
    ) -> None:
        super().__init__(in_channels, out_channels, receptive_frames=None)
        self.input_projection = nn.Linear(in_channels, dim)
        self.conformer1 = Conformer(dim, heads, ffn_dim, 1, kernel_size, dropout=dropout)
        self.conformer2 = Conformer(dim, heads, ffn_dim, 1, kernel_size, dropout=dropout)
        self.output_projection = nn.Linear(dim, out_channels)

    def forward(self, x: Tensor) -> Tensor:
        """Map features (B, in_channels, F) to (B, out_channels, F)."""
        x = self.input_projection(x.transpose(1, 2))  # (B, F, dim)
        lengths = torch.full((x.shape[0],), x.shape[1], device=x.device)
        x, _ = self.conformer1(x, lengths)
        x, _ = self.conformer2(x, lengths)
        return self.output_projection(x).transpose(1, 2)  # (B, out_channels, F)


class ConvolutionModule(nn.Module):
    """Pointwise, gate, depthwise, batch norm, SiLU, pointwise, on (B, F, dim)."""

    def __init__(self, dim: int, kernel_size: int) -> None:
        super().__init__()
        self.pointwise = nn.Conv1d(dim, 2 * dim, 1)
        self.depthwise = nn.Conv1d(dim, dim, kernel_size, padding=kernel_size // 2, groups=dim)
        self.norm = nn.BatchNorm1d(dim)
        self.proj = nn.Conv1d(dim, dim, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Mix neighbouring frames of (B, F, dim); the shape stays."""
        x = F.glu(self.pointwise(x.transpose(1, 2)), dim=1)  # (B, dim, F)
        return self.proj(F.silu(self.norm(self.depthwise(x)))).transpose(1, 2)


class LightConformerLayer(nn.Module):
    """Half feed-forward, attention without its own norm, convolution, half feed-forward, norm, on (B, F, dim)."""

    def __init__(self, dim: int, heads: int, kernel_size: int, dropout: float) -> None:
        super().__init__()

        def feed_forward() -> nn.Sequential:
            return nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 4 * dim), nn.SiLU(), nn.Linear(4 * dim, dim))

        self.ffn1 = feed_forward()
        self.mha = nn.MultiheadAttention(dim, heads, dropout=dropout, batch_first=True)
        self.conv = ConvolutionModule(dim, kernel_size)
        self.ffn2 = feed_forward()
        self.norm = nn.LayerNorm(dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Refine (B, F, dim); the shape stays."""
        x = x + 0.5 * self.dropout(self.ffn1(x))
        x = x + self.dropout(self.mha(x, x, x, need_weights=False)[0])
        x = x + self.dropout(self.conv(x))
        x = x + 0.5 * self.dropout(self.ffn2(x))
        return self.norm(x)


class PrenetConditioner(Conditioner):
    """Older prenet: positions, light Conformer layers, projection to "mel" channels, linear interpolation in time.

    Args:
        in_channels: SSL feature size; also the width of the layers.
        out_channels: channels that the generator takes.
        layers: number of Conformer layers; 0 is the earliest variant, a projection and interpolation alone.
        heads: attention heads; must divide `in_channels`.
        kernel_size: odd depthwise kernel, in frames.
        dropout: in training, 0 to below 1.
        scale: output frames per input frame; the default takes 50 Hz features to 22050 / 256 Hz.

    Source: prenet of the Miipher-2 reimplementation before its 441-fold vocoder.
    """

    def __init__(
        self,
        in_channels: int = 768,
        out_channels: int = 80,
        layers: int = 4,
        heads: int = 8,
        kernel_size: int = 31,
        dropout: float = 0.1,
        scale: float = 22050 / 256 / 50,
    ) -> None:
        super().__init__(in_channels, out_channels, receptive_frames=None)
        self.scale = scale
        self.layers = nn.ModuleList(
            LightConformerLayer(in_channels, heads, kernel_size, dropout) for _ in range(layers)
        )
        self.proj = nn.Conv1d(in_channels, out_channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Map features (B, in_channels, F) to (B, out_channels, floor(F * scale))."""
        if self.layers:
            x = x.transpose(1, 2)  # (B, F, in_channels)
            x = x + sinusoids(x.shape[1], x.shape[2]).to(x)
            for layer in self.layers:
                x = layer(x)
            x = x.transpose(1, 2)  # (B, in_channels, F)
        return F.interpolate(self.proj(x), scale_factor=self.scale, mode="linear", align_corners=False)


def sinusoids(frames: int, dim: int) -> Tensor:
    """Sinusoidal positions (frames, dim), sine and cosine interleaved, float32 (Vaswani et al., 2017, section 3.5)."""
    rates = torch.exp(torch.arange(0, dim, 2) * (-math.log(10000.0) / dim))
    angles = torch.arange(frames).unsqueeze(1) * rates
    return torch.stack([angles.sin(), angles.cos()], dim=2).flatten(1)[:, :dim]
