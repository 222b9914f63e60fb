"""Diffusion transformer: patches of an image as tokens, blocks modulated by time and class."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from zoo.blocks.image import check_divisible, checkpoint_block
from zoo.common.checks import check_at_least, check_one_of, check_within
from zoo.flow.nets.velocity import TimeEmbedding, VelocityNet, check_conditions, expand_time

Size = Literal["S", "B", "L", "XL"]
Positions = Literal["sincos", "rope"]

SIZES: dict[str, tuple[int, int, int]] = {  # depth, width, heads
    "S": (12, 384, 6),
    "B": (12, 768, 12),
    "L": (24, 1024, 16),
    "XL": (28, 1152, 16),
}
POSITIONS = ("sincos", "rope")
EPS = 1e-6  # of the layer norms
ROTARY_BASE = 10000.0
ZERO = ("modulation.linear", "cross.out", "norm.linear", "tail", "condition_patches")  # layers that begin as nothing
TIME_SCALE = 1000.0  # of the sinusoids
EMBEDDING_STD = 0.02  # of classes and times at the start


class Block(nn.Module):
    """Attention and a feed-forward layer, scaled, shifted and gated by a vector (adaLN-Zero).

    With a `context_dim` above 0 there is attention to a context between them. Arguments: see `DiT`.
    """

    def __init__(self, dim: int, heads: int, hidden_mult: int, dropout: float, qk_norm: bool, context_dim: int) -> None:
        super().__init__()
        self.heads = heads
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
        context: Tensor | None = None,
        context_mask: Tensor | None = None,
    ) -> Tensor:
        """Refine (B, T, dim) under vectors (B, dim).

        Args:
            positions: cosines and sines (T, head_dim / 2) of rotary positions; None for none.
            context: (B, L, context_dim), for a block that attends to one.
            context_mask: (B, 1, 1, L), True where the context may be attended to.
        """
        shift_a, scale_a, gate_a, shift_f, scale_f, gate_f = self.modulation(vector)
        attended = self._attend(modulate(h, shift_a, scale_a), positions)
        h = h + gate_a * self.dropout(attended)
        if self.cross is not None and context is not None:
            normed = functional.layer_norm(h, h.shape[-1:], eps=EPS)
            h = h + self.dropout(self.cross(normed, context, context_mask))
        return h + gate_f * self.dropout(self.feed_forward(modulate(h, shift_f, scale_f)))

    def _attend(self, h: Tensor, positions: tuple[Tensor, Tensor] | None) -> Tensor:
        batch, tokens, dim = h.shape
        query, key, value = self.qkv(h).view(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)  # (B, H, T, D)
        query, key = self.query_norm(query), self.key_norm(key)
        if positions is not None:
            query, key = rotate(query, positions), rotate(key, positions)
        outputs = functional.scaled_dot_product_attention(query, key, value)
        return self.out(outputs.transpose(1, 2).reshape(batch, tokens, dim))


class CrossAttention(nn.Module):
    """Attention from tokens to those of a context."""

    def __init__(self, dim: int, context_dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(dim, dim)
        self.key_value = nn.Linear(context_dim, 2 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, h: Tensor, context: Tensor, mask: Tensor | None) -> Tensor:
        """What (B, T, dim) takes from (B, L, context_dim); a mask (B, 1, 1, L) is True where it may look."""
        query = self.query(h).unflatten(-1, (self.heads, -1)).transpose(1, 2)  # (B, H, T, D)
        key, value = self.key_value(context).unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)  # (B, H, L, D)
        outputs = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        return self.out(outputs.transpose(1, 2).flatten(2))


class Modulated(nn.Module):
    """Shifts, scales and gates from a vector."""

    def __init__(self, dim: int, count: int) -> None:
        super().__init__()
        self.count = count
        self.linear = nn.Linear(dim, count * dim)

    def forward(self, vector: Tensor) -> tuple[Tensor, ...]:
        """Turn vectors (B, dim) into `count` tensors (B, 1, dim)."""
        return self.linear(vector)[:, None].chunk(self.count, dim=-1)


def modulate(h: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    """Layer norm of (B, T, dim), then scaled and shifted."""
    return functional.layer_norm(h, h.shape[-1:], eps=EPS) * (1 + scale) + shift


def rotate(x: Tensor, positions: tuple[Tensor, Tensor]) -> Tensor:
    """Turn the two halves of each head (..., T, head_dim) by the angles of their positions."""
    cos, sin = positions
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1).to(x.dtype)


class DiT(VelocityNet):
    """Velocity of images or latents, conditioned on classes, text or further images.

    Positions are computed from the size of what comes in, so any height and width that the patches divide can be
    computed, whatever it was trained on. At the start the output is exactly 0 and each block passes on what it gets.

    Weights: `patches` (a convolution), `time_embedding`, `class_embedding` (row 0 is the null class), `blocks.<i>` of
    `Block`, `norm` (shift, scale) and `tail`, whose outputs are ordered row, column, channel
    within a patch. Nothing of the positions is stored.

    Args:
        image_resolution: height and width in pixels (of latents: in their cells), or one number for both.
        in_channels: of the image or latent.
        size: S, B, L or XL of the paper: depth, width and heads.
        patch: height and width of a patch, in pixels.
        depth: number of blocks; the size's when null, like the following two.
        dim: width of the tokens; a multiple of four times `heads`.
        heads: of attention.
        hidden_mult: width of the feed-forward layers in multiples of `dim`.
        num_classes: real classes, labelled 1 to num_classes; 0 builds an unconditional net.
        positions: "sincos" adds a fixed table to the tokens; "rope" turns queries and keys in every block.
        qk_norm: bring queries and keys to a root mean square of 1 in each head.
        dropout: of what each layer adds, 0 to 1; the original has none.
        context_dim: width of the tokens of a text to attend to ("tokens" of the conditions); 0 for none.
        pooled_dim: width of one vector of a text ("pooled"), added to the time; 0 for none.
        condition_channels: of an image ("image") that is patched beside the input; 0 for none. Its weights are zero at
            first.
        spans: take the length of the interval over which the velocity is averaged ("span"), for
            `zoo.flow.MeanFlowTask`.
        time_scale: factor on times and spans before their sinusoids; null for 1000, and for 1 with `spans`, whose
            training follows the derivative by the time: sinusoids a thousand times as fast bury it. 1 in SiT.
        checkpointing: recompute activations of blocks in the backward pass instead of storing them.

    Source: Peebles and Xie, "Scalable Diffusion Models with Transformers" (2023); as a velocity: Ma et al., "SiT"
    (2024); rotary positions over two axes: Su et al., "RoFormer" (2021), half of each head for an axis.
    """

    def __init__(
        self,
        image_resolution: int | tuple[int, int] = 32,
        in_channels: int = 4,
        size: Size = "B",
        patch: int = 2,
        depth: int | None = None,
        dim: int | None = None,
        heads: int | None = None,
        hidden_mult: int = 4,
        num_classes: int = 3,
        positions: Positions = "sincos",
        qk_norm: bool = False,
        dropout: float = 0.0,
        context_dim: int = 0,
        pooled_dim: int = 0,
        condition_channels: int = 0,
        spans: bool = False,
        time_scale: float | None = None,
        checkpointing: bool = False,
    ) -> None:
        super().__init__()
        check_one_of(SIZES, size=size)
        check_one_of(POSITIONS, positions=positions)
        check_within(0, 1, dropout=dropout)
        depth, dim, heads = (value or default for value, default in zip((depth, dim, heads), SIZES[size], strict=True))
        check_at_least(1, patch=patch, depth=depth, heads=heads, hidden_mult=hidden_mult)
        if dim % (4 * heads):
            raise ValueError(f"dim is a multiple of four times the heads, which dim {dim} and heads {heads} are not")
        self.sample_shape = (in_channels, *_patched_sides(image_resolution, patch))
        self.num_classes = num_classes
        self.patch = patch
        self.dim, self.heads = dim, heads
        self.positions = positions
        self.time_scale = time_scale = (1.0 if spans else TIME_SCALE) if time_scale is None else time_scale
        self.checkpointing = checkpointing
        sizes = {"tokens": context_dim, "pooled": pooled_dim, "image": condition_channels}
        self.condition_shapes = {name: (width,) for name, width in sizes.items() if width}
        self.condition_shapes |= dict.fromkeys(["mask"] * bool(context_dim) + ["span"] * spans, ())
        self.patches = nn.Conv2d(in_channels, dim, patch, patch)
        self.time_embedding = TimeEmbedding(dim, time_scale)
        self.class_embedding = nn.Embedding(num_classes + 1, dim) if num_classes else None
        self.pooled = nn.Linear(pooled_dim, dim) if pooled_dim else None
        self.condition_patches = nn.Conv2d(condition_channels, dim, patch, patch) if condition_channels else None
        self.span_embedding = TimeEmbedding(dim, time_scale) if spans else None
        blocks = [Block(dim, heads, hidden_mult, dropout, qk_norm, context_dim) for _ in range(depth)]
        self.blocks = nn.ModuleList(blocks)
        self.norm = Modulated(dim, 2)
        self.tail = nn.Linear(dim, patch**2 * in_channels)
        self._initialise()

    def forward(
        self,
        x: Tensor,
        t: Tensor | float,
        label: Tensor | None = None,
        conditions: Mapping[str, Tensor] | None = None,
    ) -> Tensor:
        """Predict for images (B, C, H, W) whose sides the patch divides; see `VelocityNet.forward`."""
        check_divisible(x, self.patch)
        conditions = check_conditions(self.condition_shapes, conditions)
        vector = self.time_embedding(expand_time(t, x))  # (B, D)
        if self.class_embedding is not None and label is not None:
            vector = vector + self.class_embedding(label.clamp(min=0)) * (label >= 0)[:, None]
        if self.pooled is not None:
            vector = vector + self.pooled(conditions["pooled"])
        if self.span_embedding is not None:
            vector = vector + self.span_embedding(conditions["span"])
        vector = functional.silu(vector)
        h = self.patches(x)  # (B, D, H / p, W / p)
        if self.condition_patches is not None:
            h = h + self.condition_patches(conditions["image"])
        rows, columns = h.shape[2:]
        h = h.flatten(2).transpose(1, 2).to(x.dtype)  # (B, L, D); under autocast the residual stream stays float32
        rotary = None
        if self.positions == "rope":
            angles = grid_angles(rows, columns, self.dim // self.heads, x.device).flatten(1)
            rotary = angles.cos(), angles.sin()  # (L, head_dim / 2)
        else:
            h = h + sine_table(rows, columns, self.dim, x.device).to(h.dtype)
        context, mask = conditions.get("tokens"), conditions.get("mask")
        allowed = None if mask is None else mask.bool()[:, None, None]  # (B, 1, 1, tokens)
        for block in self.blocks:
            h = checkpoint_block(self.checkpointing, block, h, vector, rotary, context, allowed)
        shift, scale = self.norm(vector)
        h = self.tail(modulate(h, shift, scale))  # (B, L, p * p * C)
        return _merge_patches(h, rows, columns, self.patch)  # (B, C, H, W)

    def _initialise(self) -> None:
        """The paper's start: zero at the end of each branch, Xavier-uniform elsewhere."""
        for name, layer in self.named_modules():
            if isinstance(layer, nn.Embedding):
                nn.init.normal_(layer.weight, std=EMBEDDING_STD)
            if not isinstance(layer, nn.Linear | nn.Conv2d):
                continue
            if name.endswith(ZERO):
                nn.init.zeros_(layer.weight)
            elif "time_embedding" in name or "span_embedding" in name:
                nn.init.normal_(layer.weight, std=EMBEDDING_STD)
            else:
                nn.init.xavier_uniform_(layer.weight.flatten(1))
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


def _patched_sides(resolution: int | tuple[int, int], patch: int) -> tuple[int, ...]:
    sides = (resolution,) * 2 if isinstance(resolution, int) else tuple(resolution)
    if len(sides) != 2 or any(side < patch or side % patch for side in sides):
        raise ValueError(f"image_resolution {resolution} is no multiple of the patch, {patch}")
    return sides


def _merge_patches(h: Tensor, rows: int, columns: int, patch: int) -> Tensor:
    """Images (B, C, rows * p, columns * p) from tokens (B, L, p * p * C)."""
    h = h.unflatten(2, (patch, patch, -1)).unflatten(1, (rows, columns))  # (B, h, w, p, q, C)
    return h.permute(0, 5, 1, 3, 2, 4).flatten(4, 5).flatten(2, 3)


def grid_angles(rows: int, columns: int, width: int, device: torch.device | str = "cpu") -> Tensor:
    """Angles (L, 2, width / 4), float32, of the column and the row of each cell of a grid, row by row.

    Args:
        width: of the vectors that they are for, a multiple of 4.
    """
    exponents = torch.arange(width // 4, device=device, dtype=torch.float32) / (width // 4)
    row, column = (torch.arange(count, device=device, dtype=torch.float32) for count in (rows, columns))
    positions = torch.stack([column.repeat(rows), row.repeat_interleave(columns)], dim=1)  # (L, 2)
    return positions[:, :, None] * ROTARY_BASE**-exponents


def sine_table(rows: int, columns: int, width: int, device: torch.device | str = "cpu") -> Tensor:
    """Sines and cosines (L, width) of a grid: the first half of the vector is the column's, the second the row's."""
    angles = grid_angles(rows, columns, width, device)
    return torch.cat([angles.sin(), angles.cos()], dim=2).flatten(1)
