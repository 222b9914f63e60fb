"""How transitions and queries stand in a sequence, and what sees what."""

from __future__ import annotations

import torch
from torch import Tensor


def fuse(before: Tensor, queries: Tensor) -> Tensor:
    """Add each transition (B, L - 1, dim) to the query (B, L, dim) after it."""
    return torch.cat([queries[:, :1], queries[:, 1:] + before], 1)


def separate_mask(latents: int, count: int, device: torch.device) -> Tensor:
    """Latents and transitions see what is not later; each query sees what was before it, and itself."""
    kept = latents + count - 1
    mask = torch.zeros(kept + count, kept + count, dtype=torch.bool, device=device)
    mask[:kept, :kept] = torch.ones(kept, kept, dtype=torch.bool, device=device).tril()
    mask[kept:, :kept] = torch.ones(count, kept, dtype=torch.bool, device=device).tril(latents - 1)
    mask[kept:, kept:] = torch.eye(count, dtype=torch.bool, device=device)
    return mask


def full_mask(latents: int, count: int, device: torch.device) -> Tensor:
    """Latents see everything, the other tokens what is not later (count, count)."""
    mask = torch.ones(count, count, dtype=torch.bool, device=device).tril()
    mask[:latents] = True
    return mask
