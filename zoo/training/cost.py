"""What a step costs: seconds, and memory by what holds it. For planning a run on other machines."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable
from typing import Any

import lightning as L
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from zoo.training.callbacks.ema import EMA

WARM_UP_STEPS = 2  # the first allocates, and in the second activations are counted


class Cost(L.Callback):
    """Ends a run after a few steps and knows then what they cost.

    Activations are the storages that autograd keeps for the backward pass, at their peak within one step, without the
    weights; a part that recomputes its own (gradient checkpointing) is counted without what it recomputes.

    Args:
        steps: to time, after two others.

    Attributes:
        step_seconds: median of a step, the device's queue included.
        wait_seconds: median of waiting for a batch.
        frozen_bytes: of the other weights and the buffers.
        gradient_bytes: of the trained weights' gradients.
        optimizer_bytes: of what the optimizers keep for each weight.
        average_bytes: of the weights' moving average.
        worked: seconds of each step so far.
        activation_bytes: of one step on one device.
    """

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.weight_bytes = self.frozen_bytes = self.gradient_bytes = 0
        self.optimizer_bytes = self.average_bytes = self.activation_bytes = 0
        self.worked: list[float] = []
        self._waited: list[float] = []
        self._at = 0.0
        self._count: _Saved | None = None

    @property
    def step_seconds(self) -> float:
        """Median of a step."""
        return statistics.median(self.worked[WARM_UP_STEPS:] or self.worked)

    @property
    def wait_seconds(self) -> float:
        """Median of waiting for a batch."""
        return statistics.median(self._waited[WARM_UP_STEPS:] or self._waited)

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Start the clock."""
        self._at = time.perf_counter()

    def on_train_batch_start(self, trainer: L.Trainer, pl_module: L.LightningModule, *_: Any) -> None:
        """End of waiting."""
        self._waited.append(self._lap(pl_module.device))
        if len(self.worked) == WARM_UP_STEPS - 1:
            self._count = _Saved(pl_module.parameters())
            self._count.__enter__()

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *_: Any) -> None:
        """End of work; the last step counts what is kept between steps."""
        self.worked.append(self._lap(pl_module.device))
        if self._count is not None:
            self._count.__exit__(None, None, None)
            self.activation_bytes, self._count = self._count.peak, None
        if len(self.worked) < WARM_UP_STEPS + self.steps:
            return
        weights = list(pl_module.parameters())
        self.weight_bytes = self.gradient_bytes = _bytes(weight for weight in weights if weight.requires_grad)
        self.frozen_bytes = _bytes(weight for weight in weights if not weight.requires_grad)
        self.frozen_bytes += _bytes(pl_module.buffers())
        kept = (
            value for optimizer in trainer.optimizers for state in optimizer.state.values() for value in state.values()
        )
        self.optimizer_bytes = _bytes(value for value in kept if isinstance(value, Tensor))
        averages = [each for each in getattr(trainer, "callbacks", ()) if isinstance(each, EMA)]
        self.average_bytes = sum(_bytes(average.shadow.values()) for average in averages)
        trainer.should_stop = True

    def _lap(self, device: torch.device) -> float:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        before, self._at = self._at, time.perf_counter()
        return self._at - before


class _Saved(saved_tensors_hooks):
    """Counts the bytes that autograd keeps, a storage once however many tensors share it."""

    def __init__(self, weights: Iterable[Tensor]) -> None:
        self.peak = 0
        self._now = 0
        self._users = {weight.untyped_storage().data_ptr(): 1 for weight in weights}  # never counted
        super().__init__(self._pack, lambda kept: kept.tensor)

    def _pack(self, tensor: Tensor) -> _Kept:
        return _Kept(self, tensor)

    def change(self, tensor: Tensor, users: int) -> None:
        """Count a tensor that is saved (1) or released (-1)."""
        storage = tensor.untyped_storage()
        place = storage.data_ptr()
        before = self._users.get(place, 0)
        self._users[place] = before + users
        if (before == 0) != (before + users == 0):
            self._now += users * storage.nbytes()
            self.peak = max(self.peak, self._now)


class _Kept:
    """A tensor that autograd keeps."""

    def __init__(self, saved: _Saved, tensor: Tensor) -> None:
        self.tensor = tensor
        self._saved = saved
        saved.change(tensor, 1)

    def __del__(self) -> None:
        self._saved.change(self.tensor, -1)


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
