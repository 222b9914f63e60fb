"""The causal transformer of algorithm distillation, with a cache of keys and values for acting step by step."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.common.checks import check_at_least

Activation = Literal["gelu", "relu"]
INIT_STD = 0.02


class KVCache:
    """Keys and values of all layers for the tokens seen so far."""

    def __init__(self, depth: int) -> None:
        self.layers: list[tuple[Tensor, Tensor] | None] = [None] * depth

    def extend(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Append (B, heads, N, head size) to a layer; return all of its keys and values."""
        if (cached := self.layers[layer]) is not None:
            keys, values = torch.cat([cached[0], keys], 2), torch.cat([cached[1], values], 2)
        self.layers[layer] = (keys, values)
        return keys, values

    def drop_last(self) -> None:
        """Remove the newest token."""
        self.layers = [None if each is None else (each[0][:, :, :-1], each[1][:, :, :-1]) for each in self.layers]


class Attention(nn.Module):
    """Multi-head self-attention with one projection for queries, keys and values."""

    def __init__(self, dim: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.qkv_proj = nn.Linear(dim, 3 * dim)
        self.out_proj = nn.Linear(dim, dim)

    def split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, each (B, heads, N, head size)."""
        batch, length, dim = x.shape
        heads = self.qkv_proj(x).view(batch, length, 3, self.heads, dim // self.heads)  # (B, N, 3, heads, D)
        q, k, v = heads.permute(2, 0, 3, 1, 4)  # (B, heads, N, D) each
        return q, k, v

    def forward(self, x: Tensor, mask: Tensor | None, cache: KVCache | None = None, layer: int = 0) -> Tensor:
        """Attend; see `Transformer.forward`."""
        q, k, v = self.split(x)
        if cache is not None:
            k, v = cache.extend(layer, k, v)
        causal = True if mask is None and x.shape[1] > 1 else False  # a branch: a size is a symbol to torch.compile
        dropout = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, mask, dropout, is_causal=causal)  # (B, heads, N, D)
        y = self.out_proj(y.transpose(1, 2).reshape(x.shape))  # (B, N, dim)
        return F.dropout(y, self.dropout, self.training)


class Feedforward(nn.Module):
    """Two linear layers; dropout on the output."""

    def __init__(self, dim: int, hidden: int, dropout: float, activation: Activation = "gelu") -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden)
        self.fc2 = nn.Linear(hidden, dim)
        self.dropout = dropout
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        """(..., dim) to (..., dim)."""
        hidden = F.gelu(self.fc1(x)) if self.activation == "gelu" else F.relu(self.fc1(x))
        return F.dropout(self.fc2(hidden), self.dropout, self.training)


class Block(nn.Module):
    """Attention and feedforward, each after a norm and added to its input."""

    def __init__(self, dim: int, heads: int, hidden: int, dropout: float, activation: Activation) -> None:
        super().__init__()
        self.ln1 = nn.LayerNorm(dim)
        self.attn = Attention(dim, heads, dropout)
        self.ln2 = nn.LayerNorm(dim)
        self.mlp = Feedforward(dim, hidden, dropout, activation)

    def forward(self, x: Tensor, mask: Tensor | None, cache: KVCache | None = None, layer: int = 0) -> Tensor:
        """See `Transformer.forward`."""
        x = x + self.attn(self.ln1(x), mask, cache, layer)
        return x + self.mlp(self.ln2(x))


class Transformer(nn.Module):
    """Pre-norm transformer with learned positions.

    Args:
        dim: width of the tokens.
        depth: number of blocks.
        heads: of attention; they divide `dim`.
        context: positions: the most tokens of a sequence, its last query included.
        feedforward: channels between the linear layers of a block; four times `dim` by default.
        dropout: of attention and of the blocks' outputs in training, 0 to below 1.
        activation: between the linear layers of a block.
        input_norm: normalise tokens before positions are added, as the earlier encoder's model does.
        final_norm: normalise the output; the earlier encoder's model does not.
    """

    def __init__(
        self,
        dim: int = 64,
        depth: int = 4,
        heads: int = 4,
        context: int = 60,
        feedforward: int | None = None,
        dropout: float = 0.1,
        activation: Activation = "gelu",
        input_norm: bool = False,
        final_norm: bool = True,
    ) -> None:
        super().__init__()
        if dim % heads:
            raise ValueError(f"transformer: {heads} heads do not divide {dim} channels")
        check_at_least(2, context=context)  # a transition and a query
        self.dim = dim
        self.context = context
        self.dropout = dropout
        self.pos_embedding = nn.Parameter(torch.zeros(1, context, dim))
        self.ln_in = nn.LayerNorm(dim) if input_norm else nn.Identity()
        hidden = feedforward or 4 * dim
        self.blocks = nn.ModuleList(Block(dim, heads, hidden, dropout, activation) for _ in range(depth))
        self.ln_f = nn.LayerNorm(dim) if final_norm else nn.Identity()
        nn.init.trunc_normal_(self.pos_embedding, std=INIT_STD)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=INIT_STD)
                nn.init.zeros_(module.bias)

    def forward(
        self, tokens: Tensor, positions: Tensor | None = None, mask: Tensor | None = None, cache: KVCache | None = None
    ) -> Tensor:
        """Transform tokens (B, N, dim).

        Args:
            positions: of the tokens (N,), int64; 0 to N - 1 by default.
            mask: (N, M), true where token n may see key m; causal by default. A single token sees all by default.
            cache: of earlier tokens, which all these tokens see besides; it is extended. Give a mask, or one token.
        """
        if positions is None:
            if tokens.shape[1] > self.context:
                raise ValueError(f"{tokens.shape[1]} tokens exceed the transformer's context of {self.context}")
            encoding = self.pos_embedding[:, : tokens.shape[1]]
        else:
            encoding = self.pos_embedding[:, positions]
        x = F.dropout(self.ln_in(tokens) + encoding, self.dropout, self.training)
        for number, block in enumerate(self.blocks):
            x = block(x, mask, cache, number)
        return self.ln_f(x)
