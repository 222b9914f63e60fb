"""AudioSR's UNet over latent images, with an optional global context of the whole clip."""

from __future__ import annotations

import logging
import math
from collections import OrderedDict
from collections.abc import Sequence
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.blocks.autoencoder import Upsample
from zoo.blocks.image import check_divisible, check_levels, checkpoint_block, multi_head_attention
from zoo.common.checks import check_one_of

log = logging.getLogger(__name__)

Fusion = Literal["none", "replace", "residual"]
"""How the global context enters the UNet, see `zoo.audiosr.UNet`."""

MAX_PERIOD = 10000.0
TRANSFORMER_NORM_EPS = 1e-6  # the residual blocks have PyTorch's 1e-5


def timestep_embedding(t: Tensor, dim: int) -> Tensor:
    """Sinusoids (B, dim) float32 of diffusion steps (B,), 0 to 999: cosines, then sines; `dim` is even.

    Source: Dhariwal and Nichol, "Diffusion Models Beat GANs" (2021), their code.
    """
    half = dim // 2
    frequencies = torch.exp(torch.arange(half, device=t.device, dtype=torch.float32) * (-math.log(MAX_PERIOD) / half))
    angles = t.float()[:, None] * frequencies
    return torch.cat([angles.cos(), angles.sin()], dim=1)


class GroupNorm(nn.GroupNorm):
    """Group norm computed in float32 whatever the input's type, also in a net of half-precision weights."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalise (B, C, ...)."""
        weight, bias = self.weight.float(), self.bias.float()
        return F.group_norm(x.float(), self.num_groups, weight, bias, self.eps).to(x.dtype)


def zero_init(layer: nn.Conv2d) -> nn.Conv2d:
    """Set a layer's weights to zero: its block starts as the identity."""
    for parameter in layer.parameters():
        nn.init.zeros_(parameter)
    return layer


class ResBlock(nn.Module):
    """Two normed convolutions with the time between them, and a shortcut."""

    def __init__(
        self, in_channels: int, out_channels: int, embedding_channels: int, groups: int, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.in_layers = nn.Sequential(
            GroupNorm(groups, in_channels), nn.SiLU(), nn.Conv2d(in_channels, out_channels, 3, padding=1)
        )
        self.emb_layers = nn.Sequential(nn.SiLU(), nn.Linear(embedding_channels, out_channels))
        self.out_layers = nn.Sequential(
            GroupNorm(groups, out_channels),
            nn.SiLU(),
            nn.Dropout(dropout),
            zero_init(nn.Conv2d(out_channels, out_channels, 3, padding=1)),
        )
        self.skip_connection = nn.Conv2d(in_channels, out_channels, 1) if in_channels != out_channels else nn.Identity()

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        """Refine (B, C, H, W) under the time (B, E)."""
        h = self.in_layers(x) + self.emb_layers(embedding)[:, :, None, None]
        return self.skip_connection(x) + self.out_layers(h)


class Attention(nn.Module):
    """Multi-head self-attention of tokens."""

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.to_q, self.to_k, self.to_v = (nn.Linear(channels, channels, bias=False) for _ in range(3))
        self.to_out = nn.Sequential(nn.Linear(channels, channels))

    def forward(self, x: Tensor) -> Tensor:
        """Attend within (B, L, C)."""
        return self.to_out(multi_head_attention(self.to_q(x), self.to_k(x), self.to_v(x), self.heads))


class GatedLinear(nn.Module):
    """Linear layer of which one half passes through the GELU of the other."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.proj = nn.Linear(in_channels, 2 * out_channels)

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, L, C) to (B, L, C')."""
        value, gate = self.proj(x).chunk(2, dim=-1)
        return value * F.gelu(gate)


class TransformerBlock(nn.Module):
    """Self-attention twice, then the feed-forward layer, each normed before and added.

    The second attention is the cross-attention of other latent diffusion models, which AudioSR gives no context.
    """

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.attn1 = Attention(channels, heads)
        gated = GatedLinear(channels, 4 * channels)
        # the second entry was the original's dropout of 0: the last one keeps its name
        self.ff = nn.ModuleDict({"net": nn.Sequential(gated, nn.Identity(), nn.Linear(4 * channels, channels))})
        self.attn2 = Attention(channels, heads)
        self.norm1 = nn.LayerNorm(channels)
        self.norm2 = nn.LayerNorm(channels)
        self.norm3 = nn.LayerNorm(channels)

    def forward(self, x: Tensor) -> Tensor:
        """Refine (B, L, C)."""
        x = x + self.attn1(self.norm1(x))
        x = x + self.attn2(self.norm2(x))
        return x + self.ff["net"](self.norm3(x))


class SpatialTransformer(nn.Module):
    """A transformer block over all positions of an image, after the fusion of the global context."""

    def __init__(self, channels: int, heads: int, groups: int, fusion: Fusion, context_channels: int | None) -> None:
        super().__init__()
        self.norm = GroupNorm(groups, channels, TRANSFORMER_NORM_EPS)
        self.proj_in = nn.Conv2d(channels, channels, 1)
        self.transformer_blocks = nn.ModuleList([TransformerBlock(channels, heads)])
        self.proj_out = zero_init(nn.Conv2d(channels, channels, 1))
        self.fusion = fusion
        if context_channels and fusion != "none":
            self.global_proj = nn.Linear(context_channels, channels)
            self.global_attn = nn.MultiheadAttention(channels, heads, batch_first=True)

    def forward(self, x: Tensor, context: Tensor | None) -> Tensor:
        """Refine (B, C, H, W) with the clip's vector (B, G)."""
        if self.fusion != "none" and context is not None:
            x = self._fuse(x, context)
        h = self.proj_in(self.norm(x)).flatten(2).transpose(1, 2)  # (B, H * W, C)
        h = self.transformer_blocks[0](h)
        return x + self.proj_out(h.transpose(1, 2).reshape(x.shape))

    def _fuse(self, x: Tensor, context: Tensor) -> Tensor:
        """Attend to the clip's vector as in ProjectLily.

        One key gets all the attention, so every position receives the same value, and no queries are computed; the
        slices of the joint weights leave theirs a gradient of zero.
        """
        channels, attention = x.shape[1], self.global_attn
        weight, bias = attention.in_proj_weight[2 * channels :], attention.in_proj_bias[2 * channels :]
        value = attention.out_proj(F.linear(self.global_proj(context), weight, bias))[:, :, None, None]
        return value.expand_as(x) if self.fusion == "replace" else x + value


TRANSFORMERS = 2  # in a row, in the middle and on the way up


class UNet(nn.Module):
    """Predicts v (or the noise) of noisy latents beside the latents of the low-resolution input.

    The defaults are AudioSR's (258 195 088 parameters). Either order of the two image axes works; weights trained in
    one order work in the other when every kernel is transposed.

    Args:
        in_channels: of the input: noisy latents and condition.
        out_channels: of the prediction: those of a latent.
        channels: base width, even; the time embedding has four times as many.
        multipliers: width of each level as a multiple of the base; each level halves both axes of the one before.
        blocks: residual blocks per level on the way down; one more on the way up.
        attention_factors: down-sampling factors (1, 2, 4, ...) at which transformers follow the residual blocks.
        head_channels: width of a head of the attentions.
        transformers_per_down_block: transformers in a row on the way down; 2 in AudioSR and modelV1, 1 in model.py.
        fusion: how the global context enters before each transformer: attention to the clip's vector is added to the
            image ("residual", ProjectLily's model.py), replaces it ("replace", modelV1), or "none".
        context_channels: width of the global context; needed with a fusion.
        norm_groups: groups of every norm. The original's 32 on 32 channels remove the mean of each channel and with it
            the time; narrow nets need fewer.
        checkpointing: recompute activations of blocks in the backward pass instead of storing them.
        dropout: in the residual blocks, 0 to 1; AudioSR has 0.

    Source: Dhariwal and Nichol (2021), Rombach et al. (2022), Liu et al., "AudioSR" (2023), whose tensor names it has.
    """

    def __init__(
        self,
        in_channels: int = 32,
        out_channels: int = 16,
        channels: int = 128,
        multipliers: Sequence[int] = (1, 2, 3, 5),
        blocks: int = 2,
        attention_factors: Sequence[int] = (2, 4, 8),
        head_channels: int = 32,
        transformers_per_down_block: int = 2,
        fusion: Fusion = "none",
        context_channels: int | None = None,
        norm_groups: int = 32,
        checkpointing: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        check_levels(multipliers, blocks)
        _check(channels, multipliers, attention_factors, head_channels, norm_groups)
        check_one_of(get_args(Fusion), fusion=fusion)
        if (fusion == "none") != (context_channels is None):
            raise ValueError(f"fusion {fusion!r} with context_channels {context_channels}: give both or neither")
        if channels == norm_groups:
            log.warning("%d norm groups on %d channels: those blocks ignore the time", norm_groups, channels)
        self.channels = channels
        self.factor = 2 ** (len(multipliers) - 1)
        self.attention_factors = tuple(attention_factors)
        self.head_channels = head_channels
        self.fusion = fusion
        self.context_channels = context_channels
        self.norm_groups = norm_groups
        self.checkpointing = checkpointing
        self.dropout = dropout
        self.time_embed = nn.Sequential(
            nn.Linear(channels, 4 * channels), nn.SiLU(), nn.Linear(4 * channels, 4 * channels)
        )
        widths = [channels * multiplier for multiplier in multipliers]
        self.input_blocks, skips = self._down(in_channels, widths, blocks, transformers_per_down_block)
        bottom = widths[-1]
        self.middle_block = nn.ModuleList(
            [self._residual(bottom, bottom), *self._transformers(bottom, TRANSFORMERS), self._residual(bottom, bottom)]
        )
        self.output_blocks = self._up(widths, blocks, skips)
        self.out = nn.Sequential(
            GroupNorm(norm_groups, channels), nn.SiLU(), zero_init(nn.Conv2d(channels, out_channels, 3, padding=1))
        )

    def _down(
        self, in_channels: int, widths: Sequence[int], blocks: int, transformers: int
    ) -> tuple[nn.ModuleList, list[int]]:
        """Build the way down; returns the widths of its outputs too, which are inputs of the way up."""
        down, skips = [nn.ModuleList([nn.Conv2d(in_channels, widths[0], 3, padding=1)])], [widths[0]]
        for level, width in enumerate(widths):
            for _ in range(blocks):
                layers = [self._residual(skips[-1], width)]
                if 2**level in self.attention_factors:
                    layers += self._transformers(width, transformers)
                down.append(nn.ModuleList(layers))
                skips.append(width)
            if level < len(widths) - 1:
                halve = nn.Conv2d(width, width, 3, stride=2, padding=1)
                down.append(nn.ModuleList([nn.Sequential(OrderedDict(op=halve))]))
                skips.append(width)
        return nn.ModuleList(down), skips

    def _up(self, widths: Sequence[int], blocks: int, skips: Sequence[int]) -> nn.ModuleList:
        up, rest, before = [], list(skips), widths[-1]
        for level, width in reversed(list(enumerate(widths))):
            for index in range(blocks + 1):
                layers: list[nn.Module] = [self._residual(before + rest.pop(), width)]
                before = width
                if 2**level in self.attention_factors:
                    layers += self._transformers(width, TRANSFORMERS)
                if level and index == blocks:
                    layers.append(Upsample(width))
                up.append(nn.ModuleList(layers))
        return nn.ModuleList(up)

    def _residual(self, in_channels: int, out_channels: int) -> nn.Module:
        return ResBlock(in_channels, out_channels, 4 * self.channels, self.norm_groups, self.dropout)

    def _transformers(self, width: int, count: int) -> list[nn.Module]:
        sizes = (width, width // self.head_channels, self.norm_groups)
        return [SpatialTransformer(*sizes, self.fusion, self.context_channels) for _ in range(count)]

    def forward(self, x: Tensor, t: Tensor, context: Tensor | None = None) -> Tensor:
        """Predict (B, out_channels, H, W).

        Args:
            x: noisy latents and condition, (B, in_channels, H, W); H and W multiples of `factor`.
            t: diffusion steps (B,), 0 (clean) to 999.
            context: vector of the clip (B, context_channels); None leaves the fusion out.
        """
        check_divisible(x, self.factor)
        if self.fusion == "none" and context is not None:
            raise ValueError('the UNet has fusion "none" and takes no context')
        embedding = self.time_embed(timestep_embedding(t, self.channels).to(x.dtype))  # (B, 4 * channels)
        h, skips = x, []
        for block in self.input_blocks:
            h = self._run(block, h, embedding, context)
            skips.append(h)
        h = self._run(self.middle_block, h, embedding, context)  # (B, C, H / factor, W / factor)
        for block in self.output_blocks:
            h = self._run(block, torch.cat([h, skips.pop()], dim=1), embedding, context)
        return self.out(h)

    def _run(self, layers: nn.Module, h: Tensor, embedding: Tensor, context: Tensor | None) -> Tensor:
        for layer in layers.children():
            if isinstance(layer, ResBlock):
                h = checkpoint_block(self.checkpointing, layer, h, embedding)
            elif isinstance(layer, SpatialTransformer):
                h = checkpoint_block(self.checkpointing, layer, h, context)
            else:
                h = layer(h)
        return h


def _check(
    channels: int, multipliers: Sequence[int], attention_factors: Sequence[int], head_channels: int, norm_groups: int
) -> None:
    if channels % norm_groups or channels % 2:
        raise ValueError(f"channels {channels} must be even and a multiple of norm_groups {norm_groups}")
    factors = [2**level for level in range(len(multipliers))]
    if not set(attention_factors) <= set(factors):
        raise ValueError(f"attention_factors {list(attention_factors)} must be among {factors}, the levels' factors")
    for factor in {*attention_factors, factors[-1]}:
        width = channels * multipliers[factors.index(factor)]
        if width % head_channels:
            raise ValueError(f"{width} channels at factor {factor} cannot be divided into heads of {head_channels}")
