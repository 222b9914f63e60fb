"""The net that diffusion trains: UNet and, if there is one, the encoder of the whole clip."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.audiosr.nets.global_encoder import GlobalEncoder
from zoo.audiosr.nets.unet import UNet

UNCONDITIONAL = -11.4981  # AudioSR's latent of "no condition", before the scale of the latents


FUSION_PREFIX = "global_"  # of the names of all layers in the UNet that bring the global context in


def concat(x: Tensor, condition: Tensor) -> Tensor:
    """Noisy latents (B, C, H, W) beside the condition (B, C', H', W'), resized bilinearly when the size differs."""
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
            the weights; whoever calls the net applies it.
    """

    latent_scale: Tensor

    def __init__(self, unet: UNet, global_encoder: GlobalEncoder | None = None) -> None:
        super().__init__()
        if (unet.fusion == "none") != (global_encoder is None):
            found = "no global_encoder" if global_encoder is None else "a global_encoder"
            raise ValueError(f"the UNet's fusion is {unet.fusion!r} and there is {found}; give both or neither")
        if global_encoder is not None and global_encoder.context_channels != unet.context_channels:
            raise ValueError(
                f"the global_encoder gives {global_encoder.context_channels} context_channels, "
                f"the UNet expects {unet.context_channels}"
            )
        self.unet = unet
        self.global_encoder = global_encoder
        self.register_buffer("latent_scale", torch.tensor(1.0))

    def forward(
        self,
        x: Tensor,
        t: Tensor,
        full_audio: Tensor | None = None,
        encoded: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        """Predict v (or the noise), (B, unet.out_channels, H, W).

        Args:
            x: noisy latents and condition side by side, see `concat`; (B, unet.in_channels, H, W).
            t: diffusion steps (B,).
            full_audio: log-mel of the whole clip (B, 1, F, n_mels), time first. Not used without a global encoder; None
                leaves the fusion out.
            encoded: what `encode_clip` made of it, in its place: a sampler calls the net many times with one clip.
        """
        if encoded is None and full_audio is not None:
            encoded = self.encode_clip(full_audio)
        context, sequence = encoded or (None, None)
        return self.unet(x, t, context, sequence)

    def encode_clip(self, full_audio: Tensor) -> tuple[Tensor, Tensor] | None:
        """Vectors (B, C) and tokens (B, F, C) of log-mels (B, 1, F, n_mels), or None without an encoder."""
        return self.global_encoder(full_audio.transpose(-1, -2)) if self.global_encoder is not None else None

    def groups(self) -> dict[str, list[str]]:
        """Names of all parameters by the part they belong to, each in one part only.

        Parts are global_encoder, the UNet's time_embed, input_blocks, middle_block, output_blocks and out, and
        global_fusion, its layers that bring the global context in.
        """
        groups: dict[str, list[str]] = {}
        for name, _ in self.named_parameters():
            part, *path = name.split(".")
            if part == "unet":
                fuses = any(step.startswith(FUSION_PREFIX) for step in path)
                part = "global_fusion" if fuses else path[0]
            groups.setdefault(part, []).append(name)
        return groups
