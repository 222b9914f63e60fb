"""The cost of a training step: seconds, and bytes by what holds them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable
from typing import Any

import lightning as L
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

WARM_UP_BATCHES = 2  # the first allocates; activations are counted in the second


class StepCost(L.Callback):
    """Measures the cost of a few optimizer steps after two other batches, then ends the run.

    `step_seconds` and `wait_seconds`, for its batches, are medians, the device's queue included.
    `state_bytes` are those of weights, gradients, buffers and optimizers; `activation_bytes` of the storages that
    autograd saves for the backward pass, without the weights, at their peak within one step.
    """

    def __init__(self, steps: int, batches_per_step: int) -> None:
        self.batches = steps * batches_per_step
        self.batches_per_step = batches_per_step
        self.state_bytes = self.activation_bytes = 0
        self.step_seconds = self.wait_seconds = 0.0
        self._durations: list[float] = []
        self._waits: list[float] = []
        self._last_time = 0.0
        self._counter: ActivationCounter | None = None

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Start the clock."""
        self._last_time = time.perf_counter()

    def on_train_batch_start(self, trainer: L.Trainer, pl_module: L.LightningModule, *_: Any) -> None:
        """Record the wait; count activations in the last warm-up batch."""
        self._waits.append(self._measure(pl_module.device))
        if len(self._durations) == WARM_UP_BATCHES - 1:
            self._counter = ActivationCounter(pl_module.parameters())
            self._counter.__enter__()

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *_: Any) -> None:
        """Record the duration; after the last step count the tensors that exist between steps, and stop."""
        self._durations.append(self._measure(pl_module.device))
        if self._counter is not None:
            self._counter.__exit__(None, None, None)
            self.activation_bytes, self._counter = self._counter.peak, None
        if len(self._durations) < WARM_UP_BATCHES + self.batches:
            return
        self.step_seconds = self._median_of_steps(self._durations)
        self.wait_seconds = self._median_of_steps(self._waits)
        tensors = [*pl_module.parameters(), *pl_module.buffers()]
        tensors += [weight for weight in pl_module.parameters() if weight.requires_grad]  # their gradients
        states = [value for each in trainer.optimizers for state in each.state.values() for value in state.values()]
        tensors += [value for value in states if isinstance(value, Tensor)]
        self.state_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        trainer.should_stop = True

    def _median_of_steps(self, seconds: list[float]) -> float:
        """Return the median of a step: of sums over its number of batches, each of which has one update."""
        steps = range(WARM_UP_BATCHES, WARM_UP_BATCHES + self.batches, self.batches_per_step)
        return statistics.median(sum(seconds[first : first + self.batches_per_step]) for first in steps)

    def _measure(self, device: torch.device) -> float:
        """Return the seconds since the last call."""
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        before, self._last_time = self._last_time, time.perf_counter()
        return self._last_time - before


class ActivationCounter(saved_tensors_hooks):
    """Counts the bytes that autograd saves, each storage once; `peak` is the largest number so far."""

    def __init__(self, weights: Iterable[Tensor]) -> None:
        self.peak = 0
        self._bytes = 0
        self._users = {weight.untyped_storage().data_ptr(): 1 for weight in weights}  # never counted
        super().__init__(lambda tensor: SavedTensor(self, tensor), lambda saved: saved.tensor)

    def change(self, tensor: Tensor, users: int) -> None:
        """Count a tensor that is saved (1) or released (-1)."""
        storage = tensor.untyped_storage()
        before = self._users.get(storage.data_ptr(), 0)
        self._users[storage.data_ptr()] = before + users
        if (before == 0) != (before + users == 0):
            self._bytes += users * storage.nbytes()
            self.peak = max(self.peak, self._bytes)


class SavedTensor:
    """A tensor that autograd saves."""

    def __init__(self, counter: ActivationCounter, tensor: Tensor) -> None:
        self.tensor = tensor
        self._counter = counter
        counter.change(tensor, 1)

    def __del__(self) -> None:
        self._counter.change(self.tensor, -1)
