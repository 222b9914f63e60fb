"""Operations on weights and gradients that a strategy may shard, for callbacks and tasks.

DTensors are recognised by their methods, so that a training without shards does not import `torch.distributed.tensor`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import lightning as L
import torch
from torch import Tensor
from torch.optim import Optimizer


def is_dtensor(value: Any) -> bool:
    """Whether a tensor is this process's part of one that all processes hold together."""
    return isinstance(value, Tensor) and hasattr(value, "full_tensor")


def distribute_like(value: Tensor, target: Tensor) -> Tensor:
    """A copy of a tensor on the device of another and spread over the processes as that is.

    Args:
        value: whole, the same on every process, or spread; of any shape.
        target: whole or spread; of the same shape where it is spread.
    """
    if is_dtensor(target) and not is_dtensor(value):
        from torch.distributed.tensor import distribute_tensor

        spread: Any = target
        # without a source rank each process cuts its own part; cloned, lest the part keep the whole in memory
        return distribute_tensor(
            value.detach().to(target.device), spread.device_mesh, spread.placements, src_data_rank=None
        ).clone()
    if is_dtensor(value) and not is_dtensor(target):
        value = value.full_tensor()  # type: ignore[attr-defined]
    return value.to(target.device, copy=True)


def total_norm(gradients: Sequence[Tensor]) -> Tensor:
    """The 2-norm over all gradients, whole ones or parts; where they are parts, all processes call this together."""
    norm = torch.nn.utils.get_total_norm(gradients)
    return norm.full_tensor() if is_dtensor(norm) else norm  # type: ignore[attr-defined]


def gather_to_first_rank(value: Any) -> Any:
    """Return a sharded tensor in full on rank 0, in CPU memory; other ranks, which all call this, keep their part."""
    if not is_dtensor(value):
        return value
    full = value.full_tensor()
    return full.cpu() if torch.distributed.get_rank() == 0 else value


def gather_weights(trainer: L.Trainer) -> AbstractContextManager[Any]:
    """Hold full weights on every process, for what reads them outside of a step; all processes enter together."""
    gather = getattr(trainer.strategy, "gather_weights", None)
    return nullcontext() if gather is None else gather()


def reshard(trainer: L.Trainer) -> None:
    """Leave every process its part, for what changes weights at a validation's end."""
    if hasattr(trainer.strategy, "reshard"):
        trainer.strategy.reshard()


def gradient_norm(trainer: L.Trainer, optimizer: Optimizer) -> Tensor:
    """The 2-norm over an optimizer's gradients, unclipped; called on every rank."""
    strategy: Any = trainer.strategy
    if hasattr(strategy, "gradient_norm"):
        return cast(Tensor, strategy.gradient_norm(optimizer))
    return total_norm([p.grad for p in _with_gradients(optimizer) if p.grad is not None])


def clip_gradients(optimizer: Optimizer, limit: float, norm: Tensor) -> None:
    """Scale an optimizer's gradients down to a norm of `limit`.

    Args:
        norm: what `gradient_norm` gave.
    """
    torch.nn.utils.clip_grads_with_norm_(_with_gradients(optimizer), limit, norm)


def is_sharded(trainer: L.Trainer) -> bool:
    """Whether a rank alone has parts of the weights only."""
    return bool(getattr(trainer.strategy, "shards_weights", False))


def hides_gradients(trainer: L.Trainer) -> bool:
    """Whether gradients and optimizer lie in the strategy's engine, out of a callback's reach (DeepSpeed)."""
    return bool(getattr(trainer.strategy, "hides_gradients", False))


def _with_gradients(optimizer: Optimizer) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
