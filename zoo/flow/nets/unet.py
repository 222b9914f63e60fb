"""UNet of the assignment lineage: residual blocks with time and class, attention at chosen levels."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from zoo.blocks.image import check_divisible, check_levels, checkpoint_block, pixel_attention, upsample_nearest
from zoo.flow.nets.velocity import TimeEmbedding, VelocityNet, expand_time

log = logging.getLogger(__name__)

GROUPS = 32
MIN_GROUP_CHANNELS = 4
NEARLY_ZERO = 1e-5  # gain of layers that start as (almost) nothing


def group_norm(channels: int, groups: int | None) -> nn.GroupNorm:
    """Group norm of a block in so many groups, or, with None, in as many as divide the channels, at most 32.

    With None a group has at least 4 channels: one of a single channel takes its mean away, and with it all that time
    and class have added to the channel.
    """
    if groups is None:
        limit = max(1, min(GROUPS, channels // MIN_GROUP_CHANNELS))
        groups = next(count for count in range(limit, 0, -1) if channels % count == 0)
    if channels % groups:
        raise ValueError(f"{channels} channels cannot be normed in {groups} groups; leave norm_groups null")
    return nn.GroupNorm(groups, channels, eps=1e-5)


class Attention(nn.Module):
    """One head of self-attention over all pixels, added to the input."""

    def __init__(self, channels: int, groups: int | None) -> None:
        super().__init__()
        self.group_norm = group_norm(channels, groups)
        self.proj_q = nn.Conv2d(channels, channels, 1)
        self.proj_k = nn.Conv2d(channels, channels, 1)
        self.proj_v = nn.Conv2d(channels, channels, 1)
        self.proj = nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Attend over (B, C, H, W)."""
        return pixel_attention(x, self.group_norm, self.proj_q, self.proj_k, self.proj_v, self.proj)


class ResidualBlock(nn.Module):
    """Two convolutions with time and class added between them, a shortcut, then attention if wanted.

    Args:
        embedding_dim: width of the embedding of time and class.
        dropout: before the second convolution, 0 to 1.
        groups: of the norms, see `group_norm`.
        attention_gain: of the attention's output weights at the start.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        embedding_dim: int,
        dropout: float,
        attention: bool,
        groups: int | None,
        attention_gain: float,
    ) -> None:
        super().__init__()
        self.block1 = nn.Sequential(
            group_norm(in_channels, groups), nn.SiLU(), nn.Conv2d(in_channels, out_channels, 3, padding=1)
        )
        self.temb_proj = nn.Sequential(nn.SiLU(), nn.Linear(embedding_dim, out_channels))
        self.block2 = nn.Sequential(
            group_norm(out_channels, groups),
            nn.SiLU(),
            nn.Dropout(dropout),
            nn.Conv2d(out_channels, out_channels, 3, padding=1),
        )
        self.shortcut = nn.Conv2d(in_channels, out_channels, 1) if in_channels != out_channels else nn.Identity()
        self.attn = Attention(out_channels, groups) if attention else nn.Identity()
        _initialise(self)
        _initialise(self.block2[-1], NEARLY_ZERO)
        if isinstance(self.attn, Attention):
            _initialise(self.attn.proj, attention_gain)

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        """Refine (B, C, H, W) under embeddings (B, E)."""
        h = self.block1(x) + self.temb_proj(embedding)[:, :, None, None]
        return self.attn(self.block2(h) + self.shortcut(x))


class Downsample(nn.Module):
    """Halves height and width by a strided convolution."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.main = nn.Conv2d(channels, channels, 3, stride=2, padding=1)
        _initialise(self)

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        """Halve (B, C, H, W); the embedding plays no part."""
        return self.main(x)


class Upsample(nn.Module):
    """Doubles height and width by repetition, then a convolution."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.main = nn.Conv2d(channels, channels, 3, padding=1)
        _initialise(self)

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        """Double (B, C, H, W); the embedding plays no part."""
        return self.main(upsample_nearest(x))


class UNet(VelocityNet):
    """Velocity of images, conditioned on classes. The defaults are the assignment's (58 755 331 parameters).

    Args:
        image_resolution: height and width in pixels.
        in_channels: of the image.
        channels: base width; embeddings have four times as many.
        channel_mult: width of each level as a multiple of the base; each level halves the resolution of the one before.
        attention_levels: indices into `channel_mult` of the levels with attention.
        res_blocks: residual blocks per level on the way down; one more on the way up.
        dropout: in the residual blocks, 0 to 1.
        num_classes: real classes, labelled 1 to num_classes; 0 builds an unconditional net.
        time_scale: factor on the time before its sinusoids; 1 in the original.
        norm_groups: groups of every norm; null suits each block (see `group_norm`), 32 is the original's.
        attention_gain: gain of the attention's output weights at the start; the original ends up with 1.
        checkpointing: recompute activations of blocks in the backward pass instead of storing them.
        channels_last: keep images and weights in channels-last order, faster on tensor cores.

    Source: KAIST CS492(D) 2024, assignment 7 (names of the weights are the same); Ho et al., "DDPM" (2020), appendix B.
    """

    def __init__(
        self,
        image_resolution: int = 64,
        in_channels: int = 3,
        channels: int = 128,
        channel_mult: Sequence[int] = (1, 2, 2, 2),
        attention_levels: Sequence[int] = (1,),
        res_blocks: int = 4,
        dropout: float = 0.1,
        num_classes: int = 3,
        time_scale: float = 1000.0,
        norm_groups: int | None = None,
        attention_gain: float = NEARLY_ZERO,
        checkpointing: bool = False,
        channels_last: bool = False,
    ) -> None:
        super().__init__()
        _check_levels(image_resolution, channel_mult, attention_levels, res_blocks)
        self.sample_shape = (in_channels, image_resolution, image_resolution)
        self.channels = channels
        self.channel_mult = tuple(channel_mult)
        self.attention_levels = tuple(attention_levels)
        self.res_blocks = res_blocks
        self.dropout = dropout
        self.num_classes = num_classes
        self.time_scale = time_scale
        self.norm_groups = norm_groups
        self.checkpointing = checkpointing
        self.channels_last = channels_last
        if norm_groups is not None and min(self.channel_mult) * channels <= norm_groups:
            log.warning("%d groups on %d channels: those blocks ignore time and class", norm_groups, channels)
        block = partial(
            ResidualBlock,
            embedding_dim=4 * channels,
            dropout=dropout,
            groups=norm_groups,
            attention_gain=attention_gain,
        )
        self.time_embedding = TimeEmbedding(4 * channels, time_scale)
        self.class_embedding = nn.Embedding(num_classes + 1, 4 * channels) if num_classes else None
        self.head = nn.Conv2d(in_channels, channels, 3, padding=1)
        _initialise(self.head)
        self.downblocks, skips = self._down(block)
        self.middleblocks = nn.ModuleList([block(skips[-1], skips[-1], attention=each) for each in (True, False)])
        self.upblocks, width = self._up(block, skips)
        last = nn.Conv2d(width, in_channels, 3, padding=1)
        self.tail = nn.Sequential(group_norm(width, norm_groups), nn.SiLU(), last)
        _initialise(last, NEARLY_ZERO)
        if channels_last:
            self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def _down(self, block: Callable[..., ResidualBlock]) -> tuple[nn.ModuleList, list[int]]:
        """The way down, and the widths of all outputs that the way up takes again, the head's first."""
        blocks, skips = nn.ModuleList(), [self.channels]
        for level, mult in enumerate(self.channel_mult):
            for _ in range(self.res_blocks):
                blocks.append(block(skips[-1], mult * self.channels, attention=level in self.attention_levels))
                skips.append(mult * self.channels)
            if level < len(self.channel_mult) - 1:
                blocks.append(Downsample(skips[-1]))
                skips.append(skips[-1])
        return blocks, skips

    def _up(self, block: Callable[..., ResidualBlock], skips: Sequence[int]) -> tuple[nn.ModuleList, int]:
        """The way up, and the width of its output."""
        blocks, width, rest = nn.ModuleList(), skips[-1], list(skips)
        for level, mult in reversed(list(enumerate(self.channel_mult))):
            for _ in range(self.res_blocks + 1):
                attention = level in self.attention_levels
                blocks.append(block(width + rest.pop(), mult * self.channels, attention=attention))
                width = mult * self.channels
            if level:
                blocks.append(Upsample(width))
        return blocks, width

    def forward(self, x: Tensor, t: Tensor | float, label: Tensor | None = None) -> Tensor:
        """Predict for images (B, C, H, W), which can be halved once per level; see `VelocityNet.forward`."""
        check_divisible(x, 2 ** (len(self.channel_mult) - 1))
        embedding = self.time_embedding(expand_time(t, x))  # (B, E)
        if self.class_embedding is not None and label is not None:
            vectors = self.class_embedding(label.clamp(min=0))
            embedding = embedding + vectors * (label >= 0)[:, None]
        if self.channels_last:
            x = x.contiguous(memory_format=torch.channels_last)
        run = partial(checkpoint_block, self.checkpointing)
        h = self.head(x)  # (B, channels, H, W)
        skips = [h]
        for block in self.downblocks:
            h = run(block, h, embedding)
            skips.append(h)
        for block in self.middleblocks:  # (B, C, H / factor, W / factor)
            h = run(block, h, embedding)
        for block in self.upblocks:
            if isinstance(block, ResidualBlock):
                h = torch.cat([h, skips.pop()], dim=1)
            h = run(block, h, embedding)
        return self.tail(h)  # (B, in_channels, H, W)


def _initialise(module: nn.Module, gain: float = 1.0) -> None:
    """Xavier-uniform weights and zero biases for every convolution and linear layer of a module."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.xavier_uniform_(layer.weight, gain)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


def _check_levels(resolution: int, mult: Sequence[int], attention: Sequence[int], res_blocks: int) -> None:
    check_levels(mult, res_blocks)
    factor = 2 ** (len(mult) - 1)
    if resolution % factor:
        raise ValueError(f"image_resolution {resolution} is no multiple of {factor}, as {len(mult)} levels need")
    if not set(attention) <= set(range(len(mult))):
        raise ValueError(
            f"attention_levels {list(attention)} are indices into channel_mult, 0 to {len(mult) - 1}, not resolutions"
        )
