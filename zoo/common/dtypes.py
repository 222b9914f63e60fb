"""Number formats."""

from __future__ import annotations

import torch
from torch import Tensor


def at_least_float32(x: Tensor) -> Tensor:
    """Half precisions as float32; float32 and float64 as they are."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
