"""The feature loss of the cleaner, over valid frames."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from zoo.miipher.nets.families import valid_mask

EPSILON = 1e-9  # of the original's spectral convergence
TERMS = ("mae", "mse", "sc")
Reduction = Literal["item", "batch"]


def feature_loss(
    prediction: Tensor, target: Tensor, lengths: Tensor | None = None, reduction: Reduction = "batch"
) -> dict[str, Tensor]:
    """Compare features (B, F, C) with a target; the longer is cut, and `lengths` (B,) are the valid frames.

    Returns `mae`, `mse` (means over frames and channels) and `sc`, spectral convergence: the ratio of the squared norms
    of error and target. Reduction "batch" averages over all valid frames together (as the Miipher-2 reproduction),
    "item" over those of each item and then over items.
    """
    frames = min(prediction.shape[1], target.shape[1])
    prediction, target = prediction[:, :frames].float(), target[:, :frames].float()
    difference = prediction - target
    if lengths is None:
        count = torch.full((len(target),), frames, device=target.device)
    else:
        count = lengths.clamp(max=frames)
        mask = valid_mask(count, frames)[..., None]
        difference, target = difference * mask, target * mask
    per_item = {
        "absolute": difference.abs().sum((1, 2)),
        "squared": difference.square().sum((1, 2)),
        "target": target.square().sum((1, 2)),
        "values": count * target.shape[2],
    }
    if reduction == "batch":
        per_item = {key: value.sum(0, keepdim=True) for key, value in per_item.items()}
    squared = per_item["squared"]
    return {
        "mae": (per_item["absolute"] / per_item["values"]).mean(),
        "mse": (squared / per_item["values"]).mean(),
        "sc": (squared / (per_item["target"] + EPSILON)).mean(),
    }
