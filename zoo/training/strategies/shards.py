"""Tensors of which each process holds a part (DTensor): the few operations that callbacks and tasks need.

Known by their methods, so that a training without shards does not import `torch.distributed.tensor`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import lightning as L
import torch
from torch import Tensor


def is_shard(value: Any) -> bool:
    """Whether a tensor is a part of one that all processes hold together."""
    return isinstance(value, Tensor) and hasattr(value, "full_tensor")


def placed_like(value: Tensor, target: Tensor) -> Tensor:
    """A copy of a tensor on the device of another and spread over the processes as that is.

    Args:
        value: whole, the same on every process, or spread; of any shape.
        target: whole or spread; of the same shape where it is spread.
    """
    if is_shard(target) and not is_shard(value):
        from torch.distributed.tensor import distribute_tensor

        spread: Any = target
        # without a source rank each process cuts its own part; cloned, lest the part keep the whole in memory
        return distribute_tensor(
            value.detach().to(target.device), spread.device_mesh, spread.placements, src_data_rank=None
        ).clone()
    if is_shard(value) and not is_shard(target):
        value = value.full_tensor()  # type: ignore[attr-defined]
    return value.to(target.device, copy=True)


def total_norm(gradients: Sequence[Tensor]) -> Tensor:
    """The 2-norm over all gradients, whole ones or parts; where they are parts, all processes call this together."""
    norm = torch.nn.utils.get_total_norm(gradients)
    return norm.full_tensor() if is_shard(norm) else norm  # type: ignore[attr-defined]


def whole_weights(trainer: L.Trainer) -> AbstractContextManager[Any]:
    """Let every process hold weights whole, for what reads them outside of a step; all processes enter together."""
    whole = getattr(trainer.strategy, "whole", None)
    return nullcontext() if whole is None else whole()


def let_go(trainer: L.Trainer) -> None:
    """Leave every process its parts, for what changes weights at a validation's end."""
    reshard = getattr(trainer.strategy, "reshard", None)
    if reshard is not None:
        reshard()
