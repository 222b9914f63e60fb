"""Blocks of AudioSR's UNet: residual blocks, transformers, and the ways a clip's global context enters them."""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Fusion = Literal["none", "replace", "residual", "film", "sequence"]
"""How the global context enters the UNet, see `zoo.audiosr.UNet`."""

MAX_PERIOD = 10000.0
TRANSFORMER_NORM_EPS = 1e-6  # the residual blocks have PyTorch's 1e-5


def timestep_embedding(t: Tensor, dim: int) -> Tensor:
    """Sinusoids of diffusion steps.

    Args:
        t: steps (B,), 0 to 999.
        dim: width, even.

    Returns:
        (B, dim) float32: cosines, then sines.

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


def zeroed(layer: nn.Conv2d | nn.Linear) -> nn.Conv2d | nn.Linear:
    """Set a layer's weights to zero, so that its block starts as the identity."""
    nn.init.zeros_(layer.weight)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


class ResBlock(nn.Module):
    """Two normed convolutions with the time between them, and a shortcut.

    Args:
        in_channels: of the input.
        out_channels: of the output.
        embedding_channels: width of the time embedding.
        groups: of the norms.
        context_channels: width of the clip's vector that scales and shifts the second norm's output; None for none.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        embedding_channels: int,
        groups: int,
        context_channels: int | None = None,
    ) -> None:
        super().__init__()
        self.in_layers = nn.Sequential(
            GroupNorm(groups, in_channels), nn.SiLU(), nn.Conv2d(in_channels, out_channels, 3, padding=1)
        )
        self.emb_layers = nn.Sequential(nn.SiLU(), nn.Linear(embedding_channels, out_channels))
        self.out_layers = nn.Sequential(
            GroupNorm(groups, out_channels),
            nn.SiLU(),
            nn.Identity(),  # the original's dropout of 0: keeps the convolution's name
            zeroed(nn.Conv2d(out_channels, out_channels, 3, padding=1)),
        )
        self.skip_connection = nn.Conv2d(in_channels, out_channels, 1) if in_channels != out_channels else nn.Identity()
        self.global_film = zeroed(nn.Linear(context_channels, 2 * out_channels)) if context_channels else None

    def forward(self, x: Tensor, embedding: Tensor, context: Tensor | None, sequence: Tensor | None) -> Tensor:
        """Refine (B, C, H, W) under the time (B, E) and, with film, the clip's vector (B, G)."""
        h = self.in_layers(x) + self.emb_layers(embedding)[:, :, None, None]
        norm, rest = self.out_layers[0], self.out_layers[1:]
        h = norm(h)
        if self.global_film is not None and context is not None:
            scale, shift = self.global_film(context)[:, :, None, None].chunk(2, dim=1)
            h = h * (1 + scale) + shift
        return self.skip_connection(x) + rest(h)


class Attention(nn.Module):
    """Multi-head attention of tokens to themselves or to others.

    Args:
        channels: of the tokens that ask.
        heads: of the attention.
        context_channels: of the tokens that are asked; None when they are the same.
    """

    def __init__(self, channels: int, heads: int, context_channels: int | None = None) -> None:
        super().__init__()
        self.heads = heads
        self.to_q = nn.Linear(channels, channels, bias=False)
        self.to_k = nn.Linear(context_channels or channels, channels, bias=False)
        self.to_v = nn.Linear(context_channels or channels, channels, bias=False)
        self.to_out = nn.Sequential(nn.Linear(channels, channels))

    def forward(self, x: Tensor, others: Tensor | None = None) -> Tensor:
        """Attend from (B, L, C) to itself or to others (B, M, C')."""
        others = x if others is None else others
        q, k, v = (
            tokens.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for tokens in (self.to_q(x), self.to_k(others), self.to_v(others))
        )
        return self.to_out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class GatedLinear(nn.Module):
    """Linear layer of which one half passes through the GELU of the other."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.proj = nn.Linear(in_channels, 2 * out_channels)

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, L, C) to (B, L, C')."""
        value, gate = self.proj(x).chunk(2, dim=-1)
        return value * F.gelu(gate)


class FeedForward(nn.Module):
    """Gated feed-forward layer, four times as wide inside."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.net = nn.Sequential(
            GatedLinear(channels, 4 * channels),
            nn.Identity(),  # the original's dropout of 0: keeps the last layer's name
            nn.Linear(4 * channels, channels),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Refine (B, L, C)."""
        return self.net(x)


class TransformerBlock(nn.Module):
    """Self-attention twice, then the feed-forward layer, each normed before and added.

    The second attention is the cross-attention of other latent diffusion models, which AudioSR gives no context.
    """

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.attn1 = Attention(channels, heads)
        self.ff = FeedForward(channels)
        self.attn2 = Attention(channels, heads)
        self.norm1 = nn.LayerNorm(channels)
        self.norm2 = nn.LayerNorm(channels)
        self.norm3 = nn.LayerNorm(channels)

    def forward(self, x: Tensor) -> Tensor:
        """Refine (B, L, C)."""
        x = x + self.attn1(self.norm1(x))
        x = x + self.attn2(self.norm2(x))
        return x + self.ff(self.norm3(x))


class TokenAttention(nn.Module):
    """Cross-attention to a clip's tokens, added through a gate that starts at zero.

    Args:
        channels: width of the image.
        heads: of the attention.
        groups: of the norm.
        context_channels: width of the tokens.
    """

    def __init__(self, channels: int, heads: int, groups: int, context_channels: int) -> None:
        super().__init__()
        self.norm = GroupNorm(groups, channels, TRANSFORMER_NORM_EPS)
        self.attention = Attention(channels, heads, context_channels)
        self.gate = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor, tokens: Tensor) -> Tensor:
        """Add to (B, C, H, W) what its positions find among tokens (B, T, G)."""
        found = self.gate * self.attention(self.norm(x).flatten(2).transpose(1, 2), tokens)
        return x + found.transpose(1, 2).reshape(x.shape)


class SpatialTransformer(nn.Module):
    """A transformer block over all positions of an image, preceded by what the fusion does.

    Args:
        channels: width.
        heads: of the attentions.
        groups: of the norm.
        fusion: see `zoo.audiosr.UNet`; "film" does nothing here.
        context_channels: width of the global context.
    """

    def __init__(self, channels: int, heads: int, groups: int, fusion: Fusion, context_channels: int | None) -> None:
        super().__init__()
        self.norm = GroupNorm(groups, channels, TRANSFORMER_NORM_EPS)
        self.proj_in = nn.Conv2d(channels, channels, 1)
        self.transformer_blocks = nn.ModuleList([TransformerBlock(channels, heads)])
        self.proj_out = zeroed(nn.Conv2d(channels, channels, 1))
        self.fusion = fusion
        if context_channels and fusion in ("replace", "residual"):
            self.global_proj = nn.Linear(context_channels, channels)
            self.global_attn = nn.MultiheadAttention(channels, heads, batch_first=True)
        if context_channels and fusion == "sequence":
            self.global_tokens = TokenAttention(channels, heads, groups, context_channels)

    def forward(self, x: Tensor, embedding: Tensor, context: Tensor | None, sequence: Tensor | None) -> Tensor:
        """Refine (B, C, H, W): the fusion takes the clip's vector (B, G) or tokens (B, T, G); the time is not used."""
        if self.fusion == "sequence" and sequence is not None:
            x = self.global_tokens(x, sequence)
        if self.fusion in ("replace", "residual") and context is not None:
            x = self._attend_globally(x, context)
        h = self.proj_in(self.norm(x)).flatten(2).transpose(1, 2)
        for block in self.transformer_blocks:
            h = block(h)
        return x + self.proj_out(h.transpose(1, 2).reshape(x.shape))

    def _attend_globally(self, x: Tensor, context: Tensor) -> Tensor:
        """ProjectLily's fusion; its one key gets all the attention, so every position receives the same vector.

        Written out for one key: exact, and without the queries' work. The slices leave those a gradient of zero.
        """
        channels, attention = x.shape[1], self.global_attn
        weight, bias = attention.in_proj_weight[2 * channels :], attention.in_proj_bias[2 * channels :]
        found = attention.out_proj(F.linear(self.global_proj(context), weight, bias))[:, :, None, None]
        return found.expand_as(x) if self.fusion == "replace" else x + found


class Downsample(nn.Module):
    """Halves both axes by a strided convolution."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.op = nn.Conv2d(channels, channels, 3, stride=2, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """Halve (B, C, H, W)."""
        return self.op(x)


class Upsample(nn.Module):
    """Doubles both axes by repetition, then a convolution."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """Double (B, C, H, W)."""
        return self.conv(F.interpolate(x, scale_factor=2.0, mode="nearest"))
