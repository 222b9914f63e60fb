"""The net that diffusion trains: UNet and, if there is one, the encoder of the clip."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.audiosr.nets.unet import UNet

UNCONDITIONAL = -11.4981  # AudioSR's latent of "no condition", before the scale of the latents
FUSION_PREFIX = "global_"  # of the UNet's layers that take the global context
REDUCTION = 16  # of the mel bins by the encoder's strided convolutions
POSITION_STD = 0.02  # of the encoder's learned positions at the start


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


def concat(x: Tensor, condition: Tensor) -> Tensor:
    """Concatenate noisy latents (B, C, H, W) and a condition (B, C', H', W'), resized bilinearly to their size."""
    if condition.shape[-2:] != x.shape[-2:]:
        condition = F.interpolate(condition, size=x.shape[-2:], mode="bilinear", align_corners=False)
    return torch.cat([x, condition], dim=1)


class Denoiser(nn.Module):
    """UNet with the global context of the clip.

    Args:
        unet: of latent images.
        global_encoder: of the whole clip; there is one exactly when the UNet has a fusion.

    Attributes:
        latent_scale: factor from the autoencoder's latents to those that the UNet sees, scalar, float32. Saved with
            the weights; the caller applies it.
    """

    latent_scale: Tensor

    def __init__(self, unet: UNet, global_encoder: GlobalEncoder | None = None) -> None:
        super().__init__()
        if (unet.fusion == "none") != (global_encoder is None):
            encoder = "no global_encoder" if global_encoder is None else "a global_encoder"
            raise ValueError(f"the UNet's fusion is {unet.fusion!r} and there is {encoder}; give both or neither")
        if global_encoder is not None and global_encoder.context_channels != unet.context_channels:
            raise ValueError(
                f"the global_encoder gives {global_encoder.context_channels} context_channels, "
                f"the UNet expects {unet.context_channels}"
            )
        self.unet = unet
        self.global_encoder = global_encoder
        self.register_buffer("latent_scale", torch.tensor(1.0))

    def forward(self, x: Tensor, t: Tensor, full_audio: Tensor | None = None, context: Tensor | None = None) -> Tensor:
        """Predict v (or the noise), (B, unet.out_channels, H, W).

        Args:
            x: noisy latents and condition along the channels, see `concat`; (B, unet.in_channels, H, W).
            t: diffusion steps (B,).
            full_audio: log-mel of the clip (B, 1, F, n_mels), time first; None leaves the global context out.
            context: vectors that `encode_clip` computed of it, for samplers that call the net many times.
        """
        return self.unet(x, t, self.encode_clip(full_audio) if context is None else context)

    def encode_clip(self, full_audio: Tensor | None) -> Tensor | None:
        """Encode log-mels (B, 1, F, n_mels) as vectors (B, C); None without a global encoder, or without them."""
        if self.global_encoder is None or full_audio is None:
            return None
        return self.global_encoder(full_audio.transpose(-1, -2))[0]

    def groups(self) -> dict[str, list[str]]:
        """Group the names of all parameters by component.

        Groups are global_encoder, the UNet's time_embed, input_blocks, middle_block, output_blocks and out, and
        global_fusion, its layers that take the global context.
        """
        groups: dict[str, list[str]] = {}
        for name, _ in self.named_parameters():
            group, *path = name.split(".")
            if group == "unet":
                fuses = any(step.startswith(FUSION_PREFIX) for step in path)
                group = "global_fusion" if fuses else path[0]
            groups.setdefault(group, []).append(name)
        return groups
