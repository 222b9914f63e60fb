"""Compressors of old context: learned ones, and one that forgets to compare them with."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.common.checks import check_at_least
from zoo.compressed_ad.envs.base import Env
from zoo.compressed_ad.envs.spaces import Box, Discrete
from zoo.compressed_ad.nets.embedding import REWARDS, check_rewards, check_space
from zoo.compressed_ad.nets.steps import Steps

STD = 0.02


class Compressor(nn.Module, ABC):
    """Turns a sequence of tokens, old latents first, into `num_latents` latents, 0 or more.

    Args:
        num_latents: latents that are left, 0 or more.
    """

    def __init__(self, num_latents: int) -> None:
        super().__init__()
        check_at_least(0, num_latents=num_latents)
        self.num_latents = num_latents

    @abstractmethod
    def forward(self, tokens: Tensor) -> Tensor:
        """Compress tokens (B, N, dim) to (B, num_latents, dim)."""


class Forget(Compressor):
    """Keeps nothing: the context is wiped whenever it is full."""

    def __init__(self) -> None:
        super().__init__(0)

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, N, dim) to (B, 0, dim)."""
        return tokens[:, :0]


class CrossAttention(nn.Module):
    """Multi-head attention from one sequence to another, with separate projections."""

    def __init__(self, dim: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.q_proj = nn.Linear(dim, dim)
        self.k_proj = nn.Linear(dim, dim)
        self.v_proj = nn.Linear(dim, dim)
        self.out_proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        """(B, N, dim) attends to (B, M, dim)."""
        q, k, v = (
            linear(values).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for linear, values in ((self.q_proj, x), (self.k_proj, context), (self.v_proj, context))
        )
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout if self.training else 0.0)
        return self.out_proj(y.transpose(1, 2).flatten(2))  # (B, N, dim)


class QueryLayer(nn.Module):
    """Learned queries attend to each other, to a context, and pass a feedforward; each after a norm."""

    def __init__(self, dim: int, heads: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.self_attn = nn.MultiheadAttention(dim, heads, dropout=dropout, batch_first=True)
        self.self_attn_norm = nn.LayerNorm(dim)
        self.cross_attn = CrossAttention(dim, heads, dropout)
        self.cross_attn_norm = nn.LayerNorm(dim)
        self.ffn = nn.Sequential(
            nn.Linear(dim, hidden), nn.GELU(), nn.Dropout(dropout), nn.Linear(hidden, dim), nn.Dropout(dropout)
        )
        self.ffn_norm = nn.LayerNorm(dim)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        """(B, N, dim) with (B, M, dim), which is not normalised."""
        normed = self.self_attn_norm(x)
        x = x + self.self_attn(normed, normed, normed, need_weights=False)[0]
        x = x + self.cross_attn(self.cross_attn_norm(x), context)
        return x + self.ffn(self.ffn_norm(x))


class QueryCompressor(Compressor):
    """Learned queries that attend to the tokens, as in a Q-Former: the original's last compressor.

    Args:
        dim: width of the tokens.
        num_latents: queries, hence latents.
        depth: number of blocks.
        heads: of attention; they divide `dim`.
        feedforward: channels between the linear layers; four times `dim` by default.
        dropout: in training, 0 to below 1.
        max_tokens: most tokens that are compressed at once.
    """

    def __init__(
        self,
        dim: int = 64,
        num_latents: int = 16,
        depth: int = 3,
        heads: int = 4,
        feedforward: int | None = None,
        dropout: float = 0.1,
        max_tokens: int = 2048,
    ) -> None:
        super().__init__(num_latents)
        self.dim = dim
        self.compress_queries = nn.Parameter(torch.randn(1, num_latents, dim) * STD)
        self.context_pos_embedding = nn.Parameter(torch.randn(1, max_tokens, dim) * STD)
        hidden = feedforward or 4 * dim
        self.layers = nn.ModuleList(QueryLayer(dim, heads, hidden, dropout) for _ in range(depth))
        self.final_norm = nn.LayerNorm(dim)

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, N, dim) to (B, K, dim)."""
        context = tokens + _positions(self.context_pos_embedding, tokens)
        x = self.compress_queries.expand(len(tokens), -1, -1)  # (B, K, dim)
        for layer in self.layers:
            x = layer(x, context)
        return self.final_norm(x)


class EncoderCompressor(Compressor):
    """A transformer encoder over the tokens and K query tokens after them: the original's earlier compressor.

    Args:
        dim: width of the tokens.
        num_latents: query tokens, hence latents.
        depth: number of blocks.
        heads: of attention; they divide `dim`.
        feedforward: channels between the linear layers; four times `dim` by default.
        dropout: in training, 0 to below 1.
        max_tokens: most tokens of a call, query tokens included.
    """

    def __init__(
        self,
        dim: int = 128,
        num_latents: int = 40,
        depth: int = 3,
        heads: int = 8,
        feedforward: int | None = None,
        dropout: float = 0.1,
        max_tokens: int = 512,
    ) -> None:
        super().__init__(num_latents)
        self.dim = dim
        self.query_tokens = nn.Parameter(torch.randn(1, num_latents, dim) * STD)
        self.pos_embedding = nn.Parameter(torch.randn(1, max_tokens, dim) * STD)
        self.input_ln = nn.LayerNorm(dim)
        layer = nn.TransformerEncoderLayer(
            dim, heads, feedforward or 4 * dim, dropout, "gelu", batch_first=True, norm_first=True
        )
        layer.activation_relu_or_gelu = 0  # leaves out the fused kernel of inference, which torch.compile cannot trace
        self.transformer_encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.output_ln = nn.LayerNorm(dim)

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, N, dim) to (B, K, dim)."""
        x = torch.cat([self.input_ln(tokens), self.query_tokens.expand(len(tokens), -1, -1)], 1)  # (B, N + K, dim)
        x = self.transformer_encoder(x + _positions(self.pos_embedding, x))
        return self.output_ln(x[:, tokens.shape[1] :])  # (B, K, dim)


class ReconstructionDecoder(nn.Module):
    """Learned position queries attend to the latents and reconstruct the tokens of the compression.

    Args:
        dim: width of the tokens.
        depth: number of blocks.
        heads: of attention; they divide `dim`.
        feedforward: channels between the linear layers; four times `dim` by default.
        dropout: in training, 0 to below 1.
        max_tokens: positions that can be reconstructed.
    """

    def __init__(
        self,
        dim: int = 64,
        depth: int = 3,
        heads: int = 4,
        feedforward: int | None = None,
        dropout: float = 0.1,
        max_tokens: int = 1024,
    ) -> None:
        super().__init__()
        self.dim = dim
        self.position_queries = nn.Parameter(torch.randn(1, max_tokens, dim) * STD)
        hidden = feedforward or 4 * dim
        self.layers = nn.ModuleList(QueryLayer(dim, heads, hidden, dropout) for _ in range(depth))
        self.final_norm = nn.LayerNorm(dim)

    def check_tokens(self, count: int) -> None:
        """Refuse more positions than there are queries."""
        if count > self.position_queries.shape[1]:
            raise ValueError(
                f"the reconstruction decoder has {self.position_queries.shape[1]} positions; "
                f"position {count - 1} needs a larger max_tokens"
            )

    def forward(self, latents: Tensor, positions: Tensor) -> Tensor:
        """Reconstruct tokens (B, N, dim) at positions (N,) from latents (B, K, dim)."""
        x = self.position_queries[:, positions].expand(len(latents), -1, -1)  # (B, N, dim)
        for layer in self.layers:
            x = layer(x, latents)
        return self.final_norm(x)


def _positions(table: Tensor, tokens: Tensor) -> Tensor:
    if tokens.shape[1] > table.shape[1]:
        raise ValueError(f"{tokens.shape[1]} tokens exceed the compressor's max_tokens of {table.shape[1]}")
    return table[:, : tokens.shape[1]]


class FieldDecoder(ReconstructionDecoder):
    """Reconstructs the fields of transitions: state, action, reward and next state, each as classes.

    Tokens are a moving target, which the embedding may make small; fields are not. A few positions of a segment,
    sampled in every training step, cost less than all.

    Args:
        dim: width of the tokens.
        grid_size: rows and columns, at least 2.
        num_actions: actions to choose from.
        positions: transitions of a segment that a training step reconstructs; all by default.
        depth: number of blocks.
        heads: of attention; they divide `dim`.
        feedforward: channels between the linear layers; four times `dim` by default.
        dropout: in training, 0 to below 1.
        max_tokens: positions that can be reconstructed.
    """

    def __init__(
        self,
        dim: int = 64,
        grid_size: int = 9,
        num_actions: int = 5,
        positions: int | None = 16,
        depth: int = 1,
        heads: int = 4,
        feedforward: int | None = None,
        dropout: float = 0.1,
        max_tokens: int = 1024,
    ) -> None:
        super().__init__(dim, depth, heads, feedforward, dropout, max_tokens)
        check_at_least(1, positions=1 if positions is None else positions)
        self.positions = positions
        self.grid_size, self.num_actions = grid_size, num_actions
        self.sizes = (grid_size, grid_size, num_actions, REWARDS, grid_size, grid_size)
        self.fields = nn.Linear(dim, sum(self.sizes))

    def check(self, env: Env) -> None:
        """Refuse an environment of other spaces, or of other rewards than 0 and 1."""
        check_rewards(env)
        check_space("observation", Box(0, self.grid_size - 1, (2,), np.int64), env.schema.observation, env)
        check_space("action", Discrete(self.num_actions), env.schema.action, env)

    def sample_positions(self, count: int, seed: int) -> Tensor:
        """Sample positions (n,) to reconstruct, out of `count`, on the CPU."""
        order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
        return order[: self.positions].sort().values

    def field_logits(self, latents: Tensor, positions: Tensor) -> tuple[Tensor, ...]:
        """Logits (B, N, classes) of row, column, action, reward, next row, next column, at positions (N,) int64."""
        return self.fields(self(latents, positions)).split(self.sizes, -1)

    @staticmethod
    def field_values(steps: Steps) -> tuple[Tensor, ...]:
        """Targets of these logits, each (B, L) int64."""
        return (*steps.states.unbind(-1), steps.actions, steps.rewards.long(), *steps.next_states.unbind(-1))
