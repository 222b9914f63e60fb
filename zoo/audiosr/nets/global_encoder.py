"""Encoder of a whole clip: one vector that sums it up, and one token per mel frame."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

REDUCTION = 16  # of the mel bins by the strided convolutions
POSITION_STD = 0.02  # of the learned positions at the start


class GlobalEncoder(nn.Module):
    """Convolutions over frequency, then a transformer over time.

    The defaults are those of ProjectLily's modelV1 (832 160 parameters); its model.py has channels=256, heads=8,
    layers=4 (3 757 600). Unlike every other net here it takes mel images with the bins first.

    Args:
        n_mels: bins of the mel images, a multiple of 16.
        channels: width of the transformer.
        heads: of the transformer's attention; they divide `channels`.
        layers: of the transformer.
        context_channels: width of what comes out.
        positions: learned positions; for a longer clip they are stretched linearly.
        dropout: in the transformer and the output layers, 0 to 1.

    Source: ProjectLily, GlobalAudioEncoder (names of the weights are the same). Its projection of the flattened
    features was built in the first forward pass, hence never trained; here the constructor builds it.
    """

    def __init__(
        self,
        n_mels: int = 256,
        channels: int = 128,
        heads: int = 4,
        layers: int = 2,
        context_channels: int = 128,
        positions: int = 1024,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        if n_mels < REDUCTION or n_mels % REDUCTION:
            raise ValueError(f"n_mels must be a multiple of {REDUCTION}, not {n_mels}")
        if channels % heads:
            raise ValueError(f"channels {channels} cannot be divided among {heads} heads")
        self.n_mels = n_mels
        self.heads = heads
        self.context_channels = context_channels
        self.cnn_encoder = nn.Sequential(
            *_strided(1, 32, kernel=8, stride=4, padding=2),
            *_strided(32, 64, kernel=4, stride=2, padding=1),
            *_strided(64, channels, kernel=4, stride=2, padding=1),
        )
        self._adaptive_proj = nn.Linear(channels * n_mels // REDUCTION, channels)
        self.pos_encoding = nn.Parameter(POSITION_STD * torch.randn(1, positions, channels))
        layer = nn.TransformerEncoderLayer(
            channels, heads, 2 * channels, dropout, activation="gelu", batch_first=True, norm_first=False
        )
        layer.activation_relu_or_gelu = 0  # leaves out the fused kernel of inference, which torch.compile cannot trace
        self.transformer = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.output_proj = nn.Sequential(
            nn.Linear(channels, channels), nn.ReLU(), nn.Dropout(dropout), nn.Linear(channels, context_channels)
        )
        self.global_proj = nn.Linear(context_channels, context_channels)

    def forward(self, mel: Tensor) -> tuple[Tensor, Tensor]:
        """Sum log-mels (B, 1, n_mels, T) up: vectors (B, context_channels) and tokens (B, T, context_channels)."""
        if mel.shape[-2] != self.n_mels:
            raise ValueError(f"the mel has {mel.shape[-2]} bins in its second to last axis, expected {self.n_mels}")
        image = self.cnn_encoder(mel)  # (B, channels, n_mels / 16, T)
        features = self._adaptive_proj(image.permute(0, 3, 1, 2).flatten(2))  # (B, T, channels)
        sequence = self.output_proj(self.transformer(features + self._positions(features.shape[1])))  # (B, T, context)
        return self.global_proj(sequence.mean(dim=1)), sequence

    def _positions(self, frames: int) -> Tensor:
        if frames <= self.pos_encoding.shape[1]:
            return self.pos_encoding[:, :frames]
        stretched = F.interpolate(self.pos_encoding.transpose(1, 2), size=frames, mode="linear", align_corners=False)
        return stretched.transpose(1, 2)


def _strided(in_channels: int, out_channels: int, kernel: int, stride: int, padding: int) -> list[nn.Module]:
    conv = nn.Conv2d(in_channels, out_channels, (kernel, 3), stride=(stride, 1), padding=(padding, 1))
    return [conv, nn.BatchNorm2d(out_channels), nn.ReLU()]
