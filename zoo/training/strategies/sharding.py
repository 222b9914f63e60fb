"""Operations on weights and gradients that a strategy may shard, for callbacks and tasks.

DTensors are recognised by their methods, so that a training without shards does not import `torch.distributed.tensor`.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import lightning as L
import torch
from torch import Tensor
from torch.optim import Optimizer


def is_dtensor(value: Any) -> bool:
    """Return whether a tensor is sharded over the processes."""
    return isinstance(value, Tensor) and hasattr(value, "full_tensor")


def distribute_like(value: Any, target: Tensor) -> Any:
    """Return a copy of a full or sharded tensor on the device of another, sharded as that is.

    What is no tensor of the other's shape is returned as is.
    """
    if not isinstance(value, Tensor) or value.shape != target.shape:
        return value
    if is_dtensor(target) and not is_dtensor(value):
        from torch.distributed.tensor import distribute_tensor

        sharded: Any = target
        # without a source rank each process cuts its own shard; cloned, lest the shard hold the full tensor in memory
        return distribute_tensor(
            value.detach().to(target.device), sharded.device_mesh, sharded.placements, src_data_rank=None
        ).clone()
    if is_dtensor(value) and not is_dtensor(target):
        value = value.full_tensor()  # type: ignore[attr-defined]
    return value.to(target.device, copy=True)


def gather_to_first_rank(value: Any) -> Any:
    """Return a sharded tensor in full on rank 0, in CPU memory; the other ranks, which all call this, keep theirs."""
    if not is_dtensor(value):
        return value
    full = value.full_tensor()
    return full.cpu() if torch.distributed.get_rank() == 0 else value


def gather_weights(trainer: L.Trainer) -> AbstractContextManager[Any]:
    """Hold full weights on every process outside of a step; all processes enter together."""
    gather = getattr(trainer.strategy, "gather_weights", None)
    return nullcontext() if gather is None else gather()


def reshard(trainer: L.Trainer) -> None:
    """Free the shards of other processes, before weights are changed at the end of a validation."""
    if hasattr(trainer.strategy, "reshard"):
        trainer.strategy.reshard()


def gradient_norm(trainer: L.Trainer, optimizer: Optimizer) -> Tensor:
    """Return the 2-norm over an optimizer's gradients, unclipped; called on every rank."""
    strategy: Any = trainer.strategy
    if hasattr(strategy, "gradient_norm"):
        return cast(Tensor, strategy.gradient_norm(optimizer))
    norm = torch.nn.utils.get_total_norm([p.grad for p in _with_gradients(optimizer) if p.grad is not None])
    return norm.full_tensor() if is_dtensor(norm) else norm  # type: ignore[attr-defined]


def clip_gradients(optimizer: Optimizer, limit: float, norm: Tensor) -> None:
    """Scale an optimizer's gradients, whose norm is given, down to a norm of `limit`."""
    torch.nn.utils.clip_grads_with_norm_(_with_gradients(optimizer), limit, norm)


def is_sharded(trainer: L.Trainer) -> bool:
    """Return whether each rank has only its shards of the weights."""
    return bool(getattr(trainer.strategy, "shards_weights", False))


def _with_gradients(optimizer: Optimizer) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
