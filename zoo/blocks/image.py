"""Building blocks of image nets, without weights: attention, resizing, checkpointing, guidance and size checks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


def pixel_attention(x: Tensor, norm: nn.Module, q: nn.Module, k: nn.Module, v: nn.Module, out: nn.Module) -> Tensor:
    """Add single-head self-attention over all pixels of (B, C, H, W), by convolutions of size 1, to the input."""
    h = norm(x)
    query, key, value = (conv(h).flatten(2).transpose(1, 2)[:, None] for conv in (q, k, v))  # (B, 1, H * W, C)
    h = F.scaled_dot_product_attention(query, key, value)[:, 0]  # (B, H * W, C)
    return x + out(h.transpose(1, 2).reshape(x.shape))


def multi_head_attention(q: Tensor, k: Tensor, v: Tensor, heads: int) -> Tensor:
    """Attend with several heads from tokens (B, L, C) to (B, M, C); returns (B, L, C)."""
    q, k, v = (tokens.unflatten(-1, (heads, -1)).transpose(1, 2) for tokens in (q, k, v))  # (B, H, L, D)
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)  # (B, L, C)


def upsample_nearest(x: Tensor) -> Tensor:
    """Double both axes of images (B, C, H, W) by repetition."""
    return F.interpolate(x, scale_factor=2.0, mode="nearest")  # (B, C, 2H, 2W)


def checkpoint_block(checkpointing: bool, block: Callable[..., Tensor], *inputs: Any) -> Tensor:
    """Run a block; with `checkpointing` its activations are recomputed in the backward pass."""
    if checkpointing and torch.is_grad_enabled():
        return checkpoint(block, *inputs, use_reentrant=False)
    return block(*inputs)


def check_levels(multipliers: Sequence[int], blocks: int) -> None:
    """Refuse image nets without a level or without a residual block in it."""
    if not multipliers or blocks < 1:
        raise ValueError(f"expected at least one level and one residual block, found {list(multipliers)} and {blocks}")


def check_divisible(x: Tensor, factor: int) -> None:
    """Refuse images (B, C, H, W) that cannot be halved once per level."""
    if x.shape[-1] % factor or x.shape[-2] % factor:
        raise ValueError(
            f"images of {x.shape[-2]} x {x.shape[-1]} pixels; both must be multiples of {factor}: pad them"
        )


def classifier_free_guidance(conditional: Tensor, unconditional: Tensor, scale: float, rescale: float = 0.0) -> Tensor:
    """Guide outputs (B, ...): u + scale (c - u).

    Args:
        scale: 1 is conditional, 0 unconditional, above 1 exaggerates the condition.
        rescale: share, 0 to 1, of the result that is brought back to the conditional output's standard deviation.

    Source: Ho and Salimans (2022), equation 6; rescale: Lin et al., "Common Diffusion Noise Schedules and Sample Steps
    are Flawed" (2024), section 3.4.
    """
    result = unconditional + scale * (conditional - unconditional)
    if not rescale:
        return result
    axes = tuple(range(1, result.dim()))
    least = torch.finfo(result.dtype).tiny
    factor = conditional.std(axes, keepdim=True) / result.std(axes, keepdim=True).clamp(min=least)  # (B, 1, ...)
    return result * (1 - rescale + rescale * factor)
