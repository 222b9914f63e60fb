"""The autoencoder of latent diffusion, in the layout and with the tensor names of diffusers' `AutoencoderKL`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.blocks.image import check_divisible, upsample_nearest
from zoo.common.checks import check_at_least

NORM_EPS = 1e-6
MIN_LOG_VARIANCE, MAX_LOG_VARIANCE = -30.0, 20.0


class ResidualBlock(nn.Module):
    """Two normed convolutions, added to the input."""

    def __init__(self, in_channels: int, out_channels: int, groups: int, dropout: float) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(groups, in_channels, NORM_EPS)
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, padding=1)
        self.norm2 = nn.GroupNorm(groups, out_channels, NORM_EPS)
        self.dropout = nn.Dropout(dropout)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1)
        self.conv_shortcut = nn.Conv2d(in_channels, out_channels, 1) if in_channels != out_channels else None

    def forward(self, x: Tensor) -> Tensor:
        """Refine (B, C, H, W)."""
        h = self.conv1(F.silu(self.norm1(x)))
        h = self.conv2(self.dropout(F.silu(self.norm2(h))))
        return h + (x if self.conv_shortcut is None else self.conv_shortcut(x))


class Attention(nn.Module):
    """One head over all pixels, added to the input."""

    def __init__(self, channels: int, groups: int) -> None:
        super().__init__()
        self.group_norm = nn.GroupNorm(groups, channels, NORM_EPS)
        self.to_q, self.to_k, self.to_v = (nn.Linear(channels, channels) for _ in range(3))
        self.to_out = nn.ModuleList([nn.Linear(channels, channels)])

    def forward(self, x: Tensor) -> Tensor:
        """Attend over (B, C, H, W)."""
        h = self.group_norm(x).flatten(2).transpose(1, 2)[:, None]  # (B, 1, H * W, C)
        h = F.scaled_dot_product_attention(self.to_q(h), self.to_k(h), self.to_v(h))[:, 0]
        return x + self.to_out[0](h).transpose(1, 2).reshape(x.shape)


class Downsample(nn.Module):
    """Halves both axes by a strided convolution; pads at their ends only."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        """Halve (B, C, H, W)."""
        return self.conv(F.pad(x, (0, 1, 0, 1)))


class Upsample(nn.Module):
    """Doubles both axes by repetition, then a convolution."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """Double (B, C, H, W)."""
        return self.conv(upsample_nearest(x))


class Level(nn.Module):
    """Residual blocks of one size, then one resampling module at most."""

    def __init__(self, in_channels: int, out_channels: int, layers: int, groups: int, dropout: float) -> None:
        super().__init__()
        widths = [in_channels, *[out_channels] * layers]
        self.resnets = nn.ModuleList(ResidualBlock(*pair, groups, dropout) for pair in pairwise(widths))
        self.downsamplers, self.upsamplers = nn.ModuleList(), nn.ModuleList()

    def forward(self, x: Tensor) -> Tensor:
        """Refine and resize (B, C, H, W)."""
        for module in (*self.resnets, *self.downsamplers, *self.upsamplers):
            x = module(x)
        return x


class Middle(nn.Module):
    """Two residual blocks with attention between them."""

    def __init__(self, channels: int, groups: int, dropout: float, attention: bool) -> None:
        super().__init__()
        self.resnets = nn.ModuleList(ResidualBlock(channels, channels, groups, dropout) for _ in range(2))
        self.attentions = nn.ModuleList([Attention(channels, groups)] if attention else [])

    def forward(self, x: Tensor) -> Tensor:
        """Refine (B, C, H, W)."""
        x = self.resnets[0](x)
        for attention in self.attentions:
            x = attention(x)
        return self.resnets[1](x)


class Encoder(nn.Module):
    """Image to moments; widths run from fine to coarse."""

    def __init__(
        self, in_channels: int, widths: Sequence[int], out_channels: int, layers: int, groups: int,
        dropout: float, attention: bool,
    ) -> None:  # fmt: skip
        super().__init__()
        self.conv_in = nn.Conv2d(in_channels, widths[0], 3, padding=1)
        self.down_blocks = nn.ModuleList()
        for number, pair in enumerate(pairwise([widths[0], *widths])):
            level = Level(*pair, layers, groups, dropout)
            if number < len(widths) - 1:
                level.downsamplers.append(Downsample(pair[1]))
            self.down_blocks.append(level)
        self.mid_block = Middle(widths[-1], groups, dropout, attention)
        self.conv_norm_out = nn.GroupNorm(groups, widths[-1], NORM_EPS)
        self.conv_out = nn.Conv2d(widths[-1], out_channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """Encode (B, C, H, W)."""
        x = self.conv_in(x)
        for module in (*self.down_blocks, self.mid_block):
            x = module(x)
        return self.conv_out(F.silu(self.conv_norm_out(x)))


class Decoder(nn.Module):
    """Latents to image; widths run from coarse to fine."""

    def __init__(
        self, in_channels: int, widths: Sequence[int], out_channels: int, layers: int, groups: int,
        dropout: float, attention: bool,
    ) -> None:  # fmt: skip
        super().__init__()
        self.conv_in = nn.Conv2d(in_channels, widths[0], 3, padding=1)
        self.up_blocks = nn.ModuleList()
        for number, pair in enumerate(pairwise([widths[0], *widths])):
            level = Level(*pair, layers, groups, dropout)
            if number < len(widths) - 1:
                level.upsamplers.append(Upsample(pair[1]))
            self.up_blocks.append(level)
        self.mid_block = Middle(widths[0], groups, dropout, attention)
        self.conv_norm_out = nn.GroupNorm(groups, widths[-1], NORM_EPS)
        self.conv_out = nn.Conv2d(widths[-1], out_channels, 3, padding=1)

    def forward(self, z: Tensor) -> Tensor:
        """Decode (B, C, h, w)."""
        z = self.conv_in(z)
        for module in (self.mid_block, *self.up_blocks):
            z = module(z)
        return self.conv_out(F.silu(self.conv_norm_out(z)))


class AutoencoderKL(nn.Module):
    """Encodes images into Gaussian latents of a smaller size and decodes them; tensor names are diffusers'.

    Either order of the image axes works; weights trained in one order fit the other when every kernel is transposed.

    Args:
        in_channels: of the image.
        out_channels: of the decoded image.
        block_out_channels: width of each level; each but the last halves the size.
        layers_per_block: residual blocks of a level of the encoder; the decoder has one more.
        latent_channels: of the latents.
        norm_num_groups: groups of every norm.
        use_quant_conv: whether a convolution of size 1 follows the encoder.
        use_post_quant_conv: whether one precedes the decoder.
        mid_block_add_attention: whether the smallest size has attention.
        dropout: in the residual blocks, 0 to 1.

    Source: Rombach et al., "High-Resolution Image Synthesis with Latent Diffusion Models" (2022); diffusers 0.36.
    """

    def __init__(
        self,
        in_channels: int = 3,
        out_channels: int = 3,
        block_out_channels: Sequence[int] = (128, 256, 512, 512),
        layers_per_block: int = 2,
        latent_channels: int = 4,
        norm_num_groups: int = 32,
        use_quant_conv: bool = True,
        use_post_quant_conv: bool = True,
        mid_block_add_attention: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        check_at_least(
            1, layers_per_block=layers_per_block, latent_channels=latent_channels, levels=len(block_out_channels)
        )
        if any(width % norm_num_groups for width in block_out_channels):
            raise ValueError(
                f"block_out_channels {list(block_out_channels)} must be multiples of norm_num_groups {norm_num_groups}"
            )
        widths, layers, groups = list(block_out_channels), layers_per_block, norm_num_groups
        self.latent_channels = latent_channels
        self.image_channels = in_channels
        self.factor = 2 ** (len(widths) - 1)
        sizes = (groups, dropout, mid_block_add_attention)
        self.encoder = Encoder(in_channels, widths, 2 * latent_channels, layers, *sizes)
        self.decoder = Decoder(latent_channels, widths[::-1], out_channels, layers + 1, *sizes)
        moments = 2 * latent_channels
        self.quant_conv = nn.Conv2d(moments, moments, 1) if use_quant_conv else None
        self.post_quant_conv = nn.Conv2d(latent_channels, latent_channels, 1) if use_post_quant_conv else None

    def encode(self, x: Tensor) -> Tensor:
        """Moments (B, 2 * latent_channels, H / factor, W / factor), means and log-variances, of images (B, C, H, W)."""
        check_divisible(x, self.factor)
        h = self.encoder(x)
        mean, log_variance = (h if self.quant_conv is None else self.quant_conv(h)).chunk(2, dim=1)
        return torch.cat([mean, log_variance.clamp(MIN_LOG_VARIANCE, MAX_LOG_VARIANCE)], dim=1)

    def decode(self, z: Tensor) -> Tensor:
        """Images (B, out_channels, H, W) of latents (B, latent_channels, H / factor, W / factor)."""
        return self.decoder(z if self.post_quant_conv is None else self.post_quant_conv(z))


def posterior_mean(moments: Tensor) -> Tensor:
    """Means (B, C, h, w) of moments (B, 2C, h, w)."""
    return moments.chunk(2, dim=1)[0]


def sample_posterior(moments: Tensor, noise: Tensor) -> Tensor:
    """Sample latents (B, C, h, w) of moments (B, 2C, h, w) by standard normal noise of that shape."""
    mean, log_variance = moments.chunk(2, dim=1)
    return mean + torch.exp(0.5 * log_variance) * noise


def kl_divergence(moments: Tensor) -> Tensor:
    """Divergence (B,) in nats, summed over the latent, of Gaussians of moments (B, 2C, h, w) from a standard normal."""
    mean, log_variance = moments.float().chunk(2, dim=1)
    return 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).flatten(1).sum(dim=1)
