"""Gradients and weights of which a strategy may keep parts: the few operations that callbacks and tasks need."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import lightning as L
import torch
from torch import Tensor
from torch.optim import Optimizer

from zoo.training.callbacks.checkpoint import SHARDING_STRATEGIES


def gradient_norm(trainer: L.Trainer, optimizer: Optimizer) -> Tensor:
    """The 2-norm over an optimizer's gradients, unclipped; called on every rank."""
    strategy: Any = trainer.strategy
    if hasattr(strategy, "gradient_norm"):
        return cast(Tensor, strategy.gradient_norm(optimizer))
    return torch.nn.utils.get_total_norm([p.grad for p in _with_gradients(optimizer) if p.grad is not None])


def clip_gradients(trainer: L.Trainer, optimizer: Optimizer, limit: float, norm: Tensor) -> None:
    """Scale an optimizer's gradients down to a norm of `limit`.

    Args:
        norm: what `gradient_norm` gave.
    """
    strategy: Any = trainer.strategy
    if hasattr(strategy, "limit_gradients"):
        strategy.limit_gradients(optimizer, limit)
    else:
        torch.nn.utils.clip_grads_with_norm_(_with_gradients(optimizer), limit, norm)


def drop_gradients(trainer: L.Trainer, optimizer: Optimizer) -> None:
    """Throw an optimizer's gradients away, so that its step changes nothing."""
    strategy: Any = trainer.strategy
    if hasattr(strategy, "drop_gradients"):
        strategy.drop_gradients(optimizer)
    for parameter in _with_gradients(optimizer):
        parameter.grad = None


def gathered(trainer: L.Trainer, weights: Iterable[Tensor], write: bool = False) -> AbstractContextManager[Any]:
    """A context in which every rank has these weights as a whole; all enter it together.

    Args:
        write: keep the changes made in it, which are alike on all ranks.
    """
    strategy: Any = trainer.strategy
    return strategy.gathered(weights, write) if hasattr(strategy, "gathered") else nullcontext()


def shards_weights(trainer: L.Trainer) -> bool:
    """Whether a rank alone has parts of the weights only."""
    own = bool(getattr(trainer.strategy, "shards_weights", False))
    return own or type(trainer.strategy).__name__ in SHARDING_STRATEGIES


def hides_gradients(trainer: L.Trainer) -> bool:
    """Whether gradients and optimizer states lie elsewhere than with the task's weights and optimizers (DeepSpeed)."""
    return hasattr(trainer.strategy, "drop_gradients")


def _with_gradients(optimizer: Optimizer) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
