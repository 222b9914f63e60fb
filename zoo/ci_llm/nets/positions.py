"""Positions of tokens within their texts."""

from __future__ import annotations

import torch
from torch import Tensor


def positions(attention_mask: Tensor) -> Tensor:
    """Positions (..., T) of tokens within their text; 0 on padding before it.

    Args:
        attention_mask: (..., T), 1 for tokens and 0 for padding.
    """
    if attention_mask.ndim > 3:
        raise ValueError("attention_mask of pairs of positions needs position_ids")
    return (attention_mask.long().cumsum(-1) - 1).clamp(min=0)


def packed(segments: Tensor) -> tuple[Tensor, Tensor]:
    """Mask and positions of rows that hold several texts.

    Args:
        segments: (B, T) int64, number of the text that a token belongs to, from 1; 0 for padding.

    Returns:
        attention_mask (B, 1, T, T) bool, true from each token to those before it in its text and to itself, and
        position_ids (B, T) int64, counted anew in each text.
    """
    length = segments.shape[1]
    index = torch.arange(length, device=segments.device)
    begins = torch.ones_like(segments, dtype=torch.bool)
    begins[:, 1:] = segments[:, 1:] != segments[:, :-1]
    starts = torch.where(begins, index, 0).cummax(1).values
    same = segments[:, :, None] == segments[:, None, :]
    return (same & (index[:, None] >= index))[:, None], index - starts
