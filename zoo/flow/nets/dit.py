"""Diffusion transformer: patches of an image as tokens, blocks modulated by time and class."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from zoo.blocks.image import check_divisible, checkpoint_block
from zoo.common.checks import check_at_least, check_one_of, check_within
from zoo.flow.nets.transformer import ROTARY_BASE, Block, Modulated, modulate
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
EPS = 1e-6
ZERO = ("modulation.linear", "cross.out", "norm.linear", "tail", "condition_patches")  # layers that begin as nothing
TIME_SCALE = 1000.0  # of the sinusoids
EMBEDDING_STD = 0.02  # of classes and times at the start


class DiT(VelocityNet):
    """Velocity of images or latents, conditioned on classes, text or further images.

    Positions are computed from the size of what comes in, so any height and width that the patches divide can be
    computed, whatever it was trained on. At the start the output is exactly 0 and each block passes on what it gets.

    Weights: `patches` (a convolution), `time_embedding`, `class_embedding` (row 0 is the null class), `blocks.<i>` of
    `zoo.flow.nets.transformer.Block`, `norm` (shift, scale) and `tail`, whose outputs are ordered row, column, channel
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
        interpolate: spread the positions of another resolution over the range of `image_resolution`; otherwise a cell
            counts as one, and a larger image has positions that training never saw.
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
        interpolate: bool = False,
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
        usual = SIZES[size]
        depth, dim, heads = (
            conditions or of_size for conditions, of_size in zip((depth, dim, heads), usual, strict=True)
        )
        sides = (image_resolution,) * 2 if isinstance(image_resolution, int) else tuple(image_resolution)
        check_at_least(1, patch=patch, depth=depth, heads=heads, hidden_mult=hidden_mult)
        if dim % (4 * heads):
            raise ValueError(f"dim is a multiple of four times the heads, which dim {dim} and heads {heads} are not")
        if len(sides) != 2 or any(side < patch or side % patch for side in sides):
            raise ValueError(f"image_resolution {image_resolution} is no multiple of the patch, {patch}")
        self.sample_shape = (in_channels, *sides)
        self.num_classes = num_classes
        self.patch = patch
        self.dim, self.heads = dim, heads
        self.positions = positions
        self.interpolate = interpolate
        self.time_scale = time_scale = (1.0 if spans else TIME_SCALE) if time_scale is None else time_scale
        self.checkpointing = checkpointing
        self.condition_shapes = {
            **({"tokens": (context_dim,), "mask": ()} if context_dim else {}),
            **({"pooled": (pooled_dim,)} if pooled_dim else {}),
            **({"image": (condition_channels,)} if condition_channels else {}),
            **({"span": ()} if spans else {}),
        }
        self.patches = nn.Conv2d(in_channels, dim, patch, patch)
        self.time_embedding = TimeEmbedding(dim, time_scale)
        self.class_embedding = nn.Embedding(num_classes + 1, dim) if num_classes else None
        self.pooled = nn.Linear(pooled_dim, dim) if pooled_dim else None
        self.condition_patches = nn.Conv2d(condition_channels, dim, patch, patch) if condition_channels else None
        self.span_embedding = TimeEmbedding(dim, time_scale) if spans else None
        self.blocks = nn.ModuleList(
            Block(dim, heads, hidden_mult, dropout, EPS, qk_norm, context_dim) for _ in range(depth)
        )
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
        rotary, steps = None, self._steps(rows, columns)
        if self.positions == "rope":
            angles = grid_angles(rows, columns, self.dim // self.heads, steps, x.device).flatten(1)
            rotary = angles.cos(), angles.sin()  # (L, head_dim / 2)
        else:
            h = h + sine_table(rows, columns, self.dim, steps, x.device).to(h.dtype)
        context, mask = conditions.get("tokens"), conditions.get("mask")
        allowed = None if mask is None else mask.bool()[:, None, None]  # (B, 1, 1, tokens)
        for block in self.blocks:
            h = checkpoint_block(self.checkpointing, block, h, vector, rotary, None, context, allowed)
        shift, scale = self.norm(vector)
        h = self.tail(modulate(h, shift, scale, EPS))  # (B, L, p * p * C)
        return _merge_patches(h, rows, columns, self.patch)  # (B, C, H, W)

    def _steps(self, rows: int, columns: int) -> tuple[float, float]:
        """Distance of neighbouring rows and columns in positions."""
        if not self.interpolate:
            return 1.0, 1.0
        return self.sample_shape[1] / (self.patch * rows), self.sample_shape[2] / (self.patch * columns)

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


def _merge_patches(h: Tensor, rows: int, columns: int, patch: int) -> Tensor:
    """Images (B, C, rows * p, columns * p) from tokens (B, L, p * p * C)."""
    h = h.unflatten(2, (patch, patch, -1)).unflatten(1, (rows, columns))  # (B, h, w, p, q, C)
    return h.permute(0, 5, 1, 3, 2, 4).flatten(4, 5).flatten(2, 3)


def grid_angles(
    rows: int,
    columns: int,
    width: int,
    steps: tuple[float, float] = (1.0, 1.0),
    device: torch.device | str = "cpu",
) -> Tensor:
    """Angles (L, 2, width / 4), float32, of the column and the row of each cell of a grid, row by row.

    Args:
        width: of the vectors that they are for, a multiple of 4.
        steps: distance of neighbouring rows and columns.
    """
    exponents = torch.arange(width // 4, device=device, dtype=torch.float32) / (width // 4)
    row, column = (
        step * torch.arange(count, device=device, dtype=torch.float32)
        for step, count in zip(steps, (rows, columns), strict=True)
    )
    places = torch.stack([column.repeat(rows), row.repeat_interleave(columns)], dim=1)  # (L, 2)
    return places[:, :, None] * ROTARY_BASE**-exponents


def sine_table(
    rows: int,
    columns: int,
    width: int,
    steps: tuple[float, float] = (1.0, 1.0),
    device: torch.device | str = "cpu",
) -> Tensor:
    """Sines and cosines (L, width) of a grid: the first half of the vector is the column's, the second the row's."""
    angles = grid_angles(rows, columns, width, steps, device)
    return torch.cat([angles.sin(), angles.cos()], dim=2).flatten(1)
