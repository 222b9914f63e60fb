"""Autoencoder of log-mel images: to Gaussians over a small latent image and back."""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from zoo.audiosr.nets.unet import Upsample
from zoo.blocks import check_levels, pixel_attention

NORM_EPS = 1e-6  # latent diffusion's, not PyTorch's default
LOGVAR_RANGE = (-30.0, 20.0)  # keeps the exponential of the log-variance finite in float32


def split(moments: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and log-variance (B, C, H, W), the latter -30 to 20, of moments (B, 2C, H, W)."""
    mean, logvar = moments.chunk(2, dim=1)
    return mean, logvar.clamp(*LOGVAR_RANGE)


def sample_latents(moments: Tensor, noise: Tensor) -> Tensor:
    """One sample of the latents (B, C, H, W) of moments (B, 2C, H, W), by standard normal noise of that shape."""
    mean, logvar = split(moments)
    return mean + (0.5 * logvar).exp() * noise


def kl(moments: Tensor) -> Tensor:
    """Divergence (B,) of latents' Gaussians from the standard normal, mean over an item's latents, in nats."""
    mean, logvar = split(moments.float())
    return 0.5 * (mean.square() + logvar.exp() - 1 - logvar).mean(dim=(1, 2, 3))


class Autoencoder(nn.Module):
    """Encodes a log-mel image into a latent image smaller by `factor` along both axes, and decodes it.

    The defaults are AudioSR's (223.5 million parameters). Either order of the two axes works; weights trained in one
    order work in the other when every kernel is transposed.

    Args:
        channels: base width.
        multipliers: width of each level as a multiple of the base; each level halves both axes of the one before.
        blocks: residual blocks per level of the encoder; the decoder has one more.
        latent_channels: of the latent image.
        dropout: in the residual blocks, 0 to 1.
        norm_groups: groups of every norm. AudioSR's 32 on 32 channels take the mean of each channel away; narrow nets
            do better with fewer.

    Attributes:
        factor: how much smaller the latent image is along each axis.

    Source: Rombach et al., "High-Resolution Image Synthesis with Latent Diffusion Models" (2022), appendix G; names of
    the weights are that code's.
    """

    def __init__(
        self,
        channels: int = 128,
        multipliers: Sequence[int] = (1, 2, 4, 8),
        blocks: int = 2,
        latent_channels: int = 16,
        dropout: float = 0.1,
        norm_groups: int = 32,
    ) -> None:
        super().__init__()
        check_levels(multipliers, blocks)
        if channels % norm_groups:
            raise ValueError(f"channels {channels} is no multiple of norm_groups {norm_groups}; lower norm_groups")
        self.factor = 2 ** (len(multipliers) - 1)
        self.latent_channels = latent_channels
        widths = [channels * multiplier for multiplier in multipliers]
        self.encoder = Encoder(widths, blocks, 2 * latent_channels, dropout, norm_groups)
        self.decoder = Decoder(widths, blocks + 1, latent_channels, dropout, norm_groups)
        self.quant_conv = nn.Conv2d(2 * latent_channels, 2 * latent_channels, 1)
        self.post_quant_conv = nn.Conv2d(latent_channels, latent_channels, 1)

    def encode(self, mel: Tensor) -> Tensor:
        """Moments of the latents of log-mel images (B, 1, F, n_mels), natural logarithm: means, then log-variances.

        They are (B, 2 * latent_channels, F // factor, n_mels // factor). What is left over at the end of an axis does
        not come back from `decode`.
        """
        if min(mel.shape[-2:]) < self.factor:
            raise ValueError(
                f"a mel image of {mel.shape[-2]} x {mel.shape[-1]}; both axes must be at least {self.factor}: pad it"
            )
        return self.quant_conv(self.encoder(mel))

    def decode(self, z: Tensor) -> Tensor:
        """Log-mel images (B, 1, H * factor, W * factor) of latents (B, latent_channels, H, W), in its own scale."""
        return self.decoder(self.post_quant_conv(z))


class ResidualBlock(nn.Module):
    """Two normed convolutions and a shortcut."""

    def __init__(self, in_channels: int, out_channels: int, dropout: float, groups: int) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(groups, in_channels, NORM_EPS)
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, padding=1)
        self.norm2 = nn.GroupNorm(groups, out_channels, NORM_EPS)
        self.dropout = nn.Dropout(dropout)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1)
        self.nin_shortcut = nn.Conv2d(in_channels, out_channels, 1) if in_channels != out_channels else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Refine (B, C, H, W)."""
        h = self.conv1(F.silu(self.norm1(x)))
        h = self.conv2(self.dropout(F.silu(self.norm2(h))))
        return self.nin_shortcut(x) + h


class Attention(nn.Module):
    """One head of self-attention over all positions, added to the input."""

    def __init__(self, channels: int, groups: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(groups, channels, NORM_EPS)
        self.q = nn.Conv2d(channels, channels, 1)
        self.k = nn.Conv2d(channels, channels, 1)
        self.v = nn.Conv2d(channels, channels, 1)
        self.proj_out = nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Attend over (B, C, H, W)."""
        return pixel_attention(x, self.norm, self.q, self.k, self.v, self.proj_out)


class Middle(nn.Module):
    """Residual block, attention, residual block: the middle of encoder and decoder."""

    def __init__(self, channels: int, dropout: float, groups: int) -> None:
        super().__init__()
        self.block_1 = ResidualBlock(channels, channels, dropout, groups)
        self.attn_1 = Attention(channels, groups)
        self.block_2 = ResidualBlock(channels, channels, dropout, groups)

    def forward(self, x: Tensor) -> Tensor:
        """Refine (B, C, H, W)."""
        return self.block_2(self.attn_1(self.block_1(x)))


class Level(nn.Module):
    """Residual blocks of one resolution, then the way to the next one."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        blocks: int,
        dropout: float,
        groups: int,
        downsample: bool = False,
        upsample: bool = False,
    ) -> None:
        super().__init__()
        inputs = [in_channels, *[out_channels] * (blocks - 1)]
        self.block = nn.Sequential(*(ResidualBlock(width, out_channels, dropout, groups) for width in inputs))
        self.downsample = Downsample(out_channels) if downsample else nn.Identity()
        self.upsample = Upsample(out_channels) if upsample else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Refine (B, C, H, W)."""
        return self.upsample(self.downsample(self.block(x)))


class Downsample(nn.Module):
    """Halves both axes; pads at their ends only, as the original does."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        """Halve (B, C, H, W)."""
        return self.conv(F.pad(x, (0, 1, 0, 1)))  # (B, C, H // 2, W // 2)


class Encoder(nn.Module):
    """Mel image to feature image; widths go from fine to coarse."""

    def __init__(self, widths: Sequence[int], blocks: int, out_channels: int, dropout: float, groups: int) -> None:
        super().__init__()
        self.conv_in = nn.Conv2d(1, widths[0], 3, padding=1)
        finer = [widths[0], *widths[:-1]]
        self.down = nn.Sequential(
            *(
                Level(finer[index], width, blocks, dropout, groups, downsample=index < len(widths) - 1)
                for index, width in enumerate(widths)
            )
        )
        self.mid = Middle(widths[-1], dropout, groups)
        self.norm_out = nn.GroupNorm(groups, widths[-1], NORM_EPS)
        self.conv_out = nn.Conv2d(widths[-1], out_channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """Encode (B, 1, H, W)."""
        return self.conv_out(F.silu(self.norm_out(self.mid(self.down(self.conv_in(x))))))


class Decoder(nn.Module):
    """Latent image to mel image; widths go from fine to coarse, and the levels run in the opposite order."""

    def __init__(self, widths: Sequence[int], blocks: int, in_channels: int, dropout: float, groups: int) -> None:
        super().__init__()
        self.conv_in = nn.Conv2d(in_channels, widths[-1], 3, padding=1)
        self.mid = Middle(widths[-1], dropout, groups)
        coarser = [*widths[1:], widths[-1]]
        self.up = nn.ModuleList(
            Level(coarser[index], width, blocks, dropout, groups, upsample=index > 0)
            for index, width in enumerate(widths)
        )
        self.norm_out = nn.GroupNorm(groups, widths[0], NORM_EPS)
        self.conv_out = nn.Conv2d(widths[0], 1, 3, padding=1)

    def forward(self, z: Tensor) -> Tensor:
        """Decode (B, C, H, W)."""
        h = self.mid(self.conv_in(z))  # (B, widths[-1], H, W)
        for level in reversed(self.up):
            h = level(h)  # twice as large but for the last
        return self.conv_out(F.silu(self.norm_out(h)))
