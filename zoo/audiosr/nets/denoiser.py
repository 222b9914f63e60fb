"""The net that diffusion trains: UNet and, if there is one, the encoder of the whole clip."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.audiosr.nets.global_encoder import GlobalEncoder
from zoo.audiosr.nets.unet import UNet

UNCONDITIONAL = -11.4981  # AudioSR's latent of "no condition", before the scale of the latents


FUSION_PREFIX = "global_"  # of the UNet's layers that take the global context


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
        if context is None and full_audio is not None:
            context = self.encode_clip(full_audio)
        return self.unet(x, t, context)

    def encode_clip(self, full_audio: Tensor) -> Tensor | None:
        """Encode log-mels (B, 1, F, n_mels) as vectors (B, C); None without a global encoder."""
        return self.global_encoder(full_audio.transpose(-1, -2))[0] if self.global_encoder is not None else None

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
