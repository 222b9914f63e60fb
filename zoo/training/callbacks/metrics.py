"""Speed, learning rates, loss scale, memory and gradient norm of a training, as logged metrics."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import lightning as L
from torch import Tensor
from torch.optim import Optimizer

from zoo.common.environment import peak_memory_bytes
from zoo.training.callbacks.guard import lr_multiplier
from zoo.training.strategies.sharding import gradient_norm

GIB = 2.0**30


def is_logging_step(trainer: L.Trainer) -> bool:
    """Return whether Lightning sends this batch's values to the loggers."""
    return trainer._logger_connector.should_update_logs and not trainer.fit_loop.epoch_loop._should_accumulate()


def count_items(batch: Any) -> int:
    """Return the number of items in a batch: the first axis of its first tensor, else its length, else 1."""
    tensor = _first_tensor(batch)
    if tensor is not None:
        return len(tensor) if tensor.ndim else 1
    return len(batch) if isinstance(batch, Sequence) and not isinstance(batch, str) else 1


def _first_tensor(batch: Any) -> Tensor | None:
    if isinstance(batch, Tensor):
        return batch
    parts = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, list | tuple) else ()
    return next((tensor for part in parts if (tensor := _first_tensor(part)) is not None), None)


class TrainingMetrics(L.Callback):
    """Logs metrics of the training itself at Lightning's logging steps.

    | key | value |
    |---|---|
    | `train/samples_per_sec` | items of all ranks per second since the last logged step, without pauses |
    | `train/data_wait` | share of that time spent waiting for batches |
    | `train/lr_<name>` | learning rate of the step, see `learning_rates` |
    | `train/amp_scale` | loss scale of fp16 |
    | `train/memory_gib` | peak memory of the device; of the process without one |
    | `train/grad_norm` | 2-norm over all gradients before clipping, under automatic optimization |

    No step waits for the device: its queue is bounded, so over a window the host keeps pace. A task whose batches do
    not count along their first axis defines `count_items(batch) -> int`.
    """

    def __init__(self) -> None:
        self._rates: dict[str, float] = {}
        self._started = 0.0
        self._ended: float | None = None
        self._samples = 0
        self._working = self._waiting = 0.0

    def on_validation_start(self, *_: Any, **__: Any) -> None:
        """Leave this pause out."""
        self._ended = None

    on_save_checkpoint = on_validation_start

    def on_train_batch_start(self, trainer: L.Trainer, pl_module: L.LightningModule, *_: Any) -> None:
        """Stop the clock of waiting; note the rates, which the schedules change before the step ends."""
        names, multiplier = getattr(pl_module, "optimizer_names", ()), lr_multiplier(trainer)
        self._rates = {key: lr * multiplier for key, lr in learning_rates(trainer.optimizers, names).items()}
        self._started = time.perf_counter()
        if self._ended is not None:
            self._waiting += self._started - self._ended

    def on_before_optimizer_step(self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: Optimizer) -> None:
        """Log the gradient norm; gradients are unscaled and not yet clipped here.

        Tasks of manual optimization know which gradients belong together and log their own.
        """
        if pl_module.automatic_optimization and is_logging_step(trainer):
            pl_module.log("train/grad_norm", gradient_norm(trainer, optimizer))

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count the batch's items; log at a logging step."""
        self._ended = time.perf_counter()
        self._working += self._ended - self._started
        self._samples += getattr(pl_module, "count_items", count_items)(batch) * trainer.world_size
        if not is_logging_step(trainer):
            return
        values = dict(self._rates)
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        if scaler is not None and scaler.is_enabled():
            values["train/amp_scale"] = scaler.get_scale()
        values["train/memory_gib"] = peak_memory_bytes(pl_module.device) / GIB
        elapsed = self._working + self._waiting
        if elapsed > 0:
            values["train/samples_per_sec"] = self._samples / elapsed
            values["train/data_wait"] = self._waiting / elapsed
            self._samples = 0
            self._working = self._waiting = 0.0
        pl_module.log_dict(values)


def learning_rates(optimizers: Sequence[Optimizer], names: Sequence[str] = ()) -> dict[str, float]:
    """Return learning rates by log key: `train/lr_<name>`, of several groups `train/lr_<name>_<name or number>`.

    Args:
        names: of the optimizers, in their order; without them their classes, numbered where there are several.
    """
    rates: dict[str, float] = {}
    for index, optimizer in enumerate(optimizers):
        kind = type(optimizer).__name__.lower()
        name = names[index] if index < len(names) else f"{kind}_{index}" if len(optimizers) > 1 else kind
        groups = optimizer.param_groups
        for number, group in enumerate(groups):
            suffix = f"_{group.get('name', number)}" if len(groups) > 1 else ""
            rates[f"train/lr_{name}{suffix}"] = float(group["lr"])
    return rates
