"""Blocks of transformers whose layers are scaled, shifted and gated by a vector (adaLN-Zero)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

ROTARY_BASE = 10000.0
NORM_EPS = 1e-5


class Block(nn.Module):
    """Attention and a feed-forward layer, both modulated by a vector; between them, attention to a context if wanted.

    Args:
        dim: width of the tokens.
        hidden_mult: width of the feed-forward layer in multiples of `dim`.
        dropout: of what each layer adds, 0 to 1.
        eps: of the layer norms.
        qk_norm: bring queries and keys to a root mean square of 1 in each head, which keeps long runs in bf16 stable.
        context_dim: width of the tokens of a context to attend to; 0 for none. What it adds is zero at first.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        hidden_mult: int,
        dropout: float,
        eps: float = NORM_EPS,
        qk_norm: bool = False,
        context_dim: int = 0,
    ) -> None:
        super().__init__()
        self.heads = heads
        self.eps = eps
        self.modulation = Modulated(dim, 6)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)
        self.query_norm, self.key_norm = (nn.RMSNorm(dim // heads) if qk_norm else nn.Identity() for _ in range(2))
        self.cross = CrossAttention(dim, context_dim, heads) if context_dim else None
        self.feed_forward = nn.Sequential(
            nn.Linear(dim, hidden_mult * dim), nn.GELU(approximate="tanh"), nn.Linear(hidden_mult * dim, dim)
        )
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        h: Tensor,
        vector: Tensor,
        positions: tuple[Tensor, Tensor] | None,
        mask: Tensor | None,
        context: Tensor | None = None,
        context_mask: Tensor | None = None,
    ) -> Tensor:
        """Refine (B, T, dim) under vectors (B, dim).

        Args:
            positions: cosines and sines (T, head_dim / 2) of rotary positions; None for none.
            mask: (B, 1, 1, T), True where tokens may be attended to.
            context: (B, L, context_dim), for a block that attends to one.
            context_mask: likewise (B, 1, 1, L).
        """
        shift_a, scale_a, gate_a, shift_f, scale_f, gate_f = self.modulation(vector)
        attended = self._attend(modulate(h, shift_a, scale_a, self.eps), positions, mask)
        h = h + gate_a * self.dropout(attended)
        if self.cross is not None and context is not None:
            normed = functional.layer_norm(h, h.shape[-1:], eps=self.eps)
            h = h + self.dropout(self.cross(normed, context, context_mask))
        return h + gate_f * self.dropout(self.feed_forward(modulate(h, shift_f, scale_f, self.eps)))

    def _attend(self, h: Tensor, positions: tuple[Tensor, Tensor] | None, mask: Tensor | None) -> Tensor:
        batch, tokens, dim = h.shape
        query, key, value = self.qkv(h).view(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)  # (B, H, T, D)
        query, key = self.query_norm(query), self.key_norm(key)
        if positions is not None:
            query, key = rotate(query, positions), rotate(key, positions)
        outputs = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        return self.out(outputs.transpose(1, 2).reshape(batch, tokens, dim))


class CrossAttention(nn.Module):
    """Attention from tokens to those of a context; adds nothing at first."""

    def __init__(self, dim: int, context_dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(dim, dim)
        self.key_value = nn.Linear(context_dim, 2 * dim)
        self.out = nn.Linear(dim, dim)
        for weight in self.out.parameters():
            nn.init.zeros_(weight)

    def forward(self, h: Tensor, context: Tensor, mask: Tensor | None) -> Tensor:
        """What (B, T, dim) takes from (B, L, context_dim); a mask (B, 1, 1, L) is True where it may look."""
        query = self.query(h).unflatten(-1, (self.heads, -1)).transpose(1, 2)  # (B, H, T, D)
        key, value = self.key_value(context).unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)  # (B, H, L, D)
        outputs = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        return self.out(outputs.transpose(1, 2).flatten(2))


class Modulated(nn.Module):
    """Shifts, scales and gates from a vector; all zero at first."""

    def __init__(self, dim: int, count: int) -> None:
        super().__init__()
        self.count = count
        self.linear = nn.Linear(dim, count * dim)
        for weight in self.linear.parameters():
            nn.init.zeros_(weight)

    def forward(self, vector: Tensor) -> tuple[Tensor, ...]:
        """Turn vectors (B, dim) into `count` tensors (B, 1, dim)."""
        return self.linear(vector)[:, None].chunk(self.count, dim=-1)


def modulate(h: Tensor, shift: Tensor, scale: Tensor, eps: float = NORM_EPS) -> Tensor:
    """Layer norm of (B, T, dim), then scaled and shifted."""
    return functional.layer_norm(h, h.shape[-1:], eps=eps) * (1 + scale) + shift


def rotate(x: Tensor, positions: tuple[Tensor, Tensor]) -> Tensor:
    """Turn the two halves of each head (..., T, head_dim) by the angles of their positions."""
    cos, sin = positions
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1).to(x.dtype)
