"""Blocks of generative nets that several systems build on; their weights have names of their own in each system."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

ATTENTION_NAME = "zoo_sdpa"


def pixel_attention(x: Tensor, norm: nn.Module, q: nn.Module, k: nn.Module, v: nn.Module, out: nn.Module) -> Tensor:
    """One head of self-attention over all pixels of (B, C, H, W), by convolutions of size 1, added to the input."""
    h = norm(x)
    query, key, value = (conv(h).flatten(2).transpose(1, 2)[:, None] for conv in (q, k, v))  # (B, 1, H * W, C)
    h = F.scaled_dot_product_attention(query, key, value)[:, 0]  # (B, H * W, C)
    return x + out(h.transpose(1, 2).reshape(x.shape))


def head_attention(q: Tensor, k: Tensor, v: Tensor, heads: int) -> Tensor:
    """Attention of several heads from tokens (B, L, C) to (B, M, C), as (B, L, C)."""
    q, k, v = (tokens.unflatten(-1, (heads, -1)).transpose(1, 2) for tokens in (q, k, v))  # (B, H, L, D)
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)  # (B, L, C)


def doubled(x: Tensor) -> Tensor:
    """Images (B, C, H, W) twice as large along both axes, by repetition."""
    return F.interpolate(x, scale_factor=2.0, mode="nearest")  # (B, C, 2H, 2W)


def maybe_checkpointed(checkpointing: bool, block: Callable[..., Tensor], *inputs: Any) -> Tensor:
    """Run a block; its activations are computed anew in the backward pass where `checkpointing` asks for it."""
    if checkpointing and torch.is_grad_enabled():
        return checkpoint(block, *inputs, use_reentrant=False)
    return block(*inputs)


def check_levels(multipliers: Sequence[int], blocks: int) -> None:
    """Refuse nets of images without a level or without a residual block in it."""
    if not multipliers or blocks < 1:
        raise ValueError(f"expected at least one level and one residual block, found {list(multipliers)} and {blocks}")


def check_size(x: Tensor, factor: int) -> None:
    """Refuse images (B, C, H, W) that cannot be halved once per level."""
    if x.shape[-1] % factor or x.shape[-2] % factor:
        raise ValueError(
            f"images of {x.shape[-2]} x {x.shape[-1]} pixels; both must be multiples of {factor}: pad them"
        )


def mix(conditional: Tensor, unconditional: Tensor, scale: float, rescale: float = 0.0) -> Tensor:
    """Classifier-free guidance of outputs (B, ...): u + scale (c - u).

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


def keep_masks_on_the_device(model: Any) -> None:
    """Let a transformers model that uses `sdpa` take every padding mask as it is.

    By itself it reads each mask back, to leave it out where nothing is padded. Without a mask nothing changes.
    """
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    if model.config._attn_implementation != "sdpa":
        return
    AttentionInterface.register(ATTENTION_NAME, sdpa_attention_forward)
    AttentionMaskInterface.register(ATTENTION_NAME, _mask)
    model.set_attn_implementation(ATTENTION_NAME)


def _mask(attention_mask: Any = None, **kwargs: Any) -> Any:
    from transformers.masking_utils import sdpa_mask

    if attention_mask is not None:
        kwargs |= {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
    return sdpa_mask(attention_mask=attention_mask, **kwargs)
