"""Watching a training: throughput, resources, gradient norms, and a train.log that survives the terminal."""

from __future__ import annotations

import contextlib
import logging
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import lightning as L
from torch import Tensor
from torch.optim import Optimizer

from zoo.common.hardware import peak_memory_bytes
from zoo.runs.folder import run_folder
from zoo.training.callbacks.rates import rate_factor
from zoo.training.strategies.sharding import gradient_norm

LOG_NAME = "train.log"
LOG_FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
LOGGERS = ("zoo", "lightning.pytorch", "lightning.fabric")
GIB = 2.0**30


def due(trainer: L.Trainer) -> bool:
    """Whether Lightning sends this batch's values to the loggers, so that a value is worth computing."""
    return trainer._logger_connector.should_update_logs and not trainer.fit_loop.epoch_loop._should_accumulate()


def items_in(batch: Any) -> int:
    """The number of items in a batch: the first axis of its first tensor, else its length, else 1."""
    tensor = _first_tensor(batch)
    if tensor is not None:
        return len(tensor) if tensor.ndim else 1
    return len(batch) if isinstance(batch, Sequence) and not isinstance(batch, str) else 1


def _first_tensor(batch: Any) -> Tensor | None:
    if isinstance(batch, Tensor):
        return batch
    parts = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, list | tuple) else ()
    return next((found for part in parts if (found := _first_tensor(part)) is not None), None)


class Throughput(L.Callback):
    """Logs `train/samples_per_sec` over all ranks and `train/data_wait`, the share of time spent waiting for batches.

    Both are means over the time since the last logged step. A pause with a validation or a checkpoint in it counts as
    neither work nor waiting. No step waits for the device: its queue is bounded, so over a window the host keeps pace.
    A task whose batches do not count along their first axis defines `items_in(batch) -> int`.
    """

    def __init__(self) -> None:
        self._started = 0.0
        self._ended: float | None = None
        self._reset()

    def _reset(self) -> None:
        self._samples = 0
        self._working = self._waiting = 0.0

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Start counting."""
        self._reset()
        self._ended = None

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Leave this pause out."""
        self._ended = None

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Leave this pause out."""
        self._ended = None

    def on_train_batch_start(self, trainer: L.Trainer, pl_module: L.LightningModule, *_: Any) -> None:
        """End of waiting."""
        self._started = time.perf_counter()
        if self._ended is not None:
            self._waiting += self._started - self._ended

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """End of work; log when it is time."""
        self._ended = time.perf_counter()
        self._working += self._ended - self._started
        self._samples += getattr(pl_module, "items_in", items_in)(batch) * trainer.world_size
        elapsed = self._working + self._waiting
        if due(trainer) and elapsed > 0:
            pl_module.log("train/samples_per_sec", self._samples / elapsed)
            pl_module.log("train/data_wait", self._waiting / elapsed)
            self._reset()


class Resources(L.Callback):
    """Logs learning rates, the loss scale of fp16, and peak memory.

    Keys: `train/lr_<name>` for each optimizer, by the task's `optimizer_names` or the optimizer's class, and
    `train/lr_<name>_<group>` where it has several groups; `train/amp_scale`; `train/memory_gib`: the device's peak, or
    the process's without a device.
    """

    def __init__(self) -> None:
        self._rates: dict[str, float] = {}

    def on_train_batch_start(self, trainer: L.Trainer, pl_module: L.LightningModule, *_: Any) -> None:
        """Note the rates of this step: when it ends, the schedules have moved on."""
        self._rates = learning_rates(trainer.optimizers, getattr(pl_module, "optimizer_names", ()))

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *_: Any) -> None:
        """Log when it is time."""
        if not due(trainer):
            return
        values: dict[str, float] = dict(self._rates)
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        if scaler is not None and scaler.is_enabled():
            values["train/amp_scale"] = scaler.get_scale()
        values["train/memory_gib"] = peak_memory_bytes(pl_module.device) / GIB
        pl_module.log_dict(values)


def learning_rates(optimizers: Sequence[Optimizer], names: Sequence[str] = ()) -> dict[str, float]:
    """Learning rates by log key.

    Args:
        optimizers: whose rates are asked for, as their next step uses them.
        names: of the optimizers, in their order; without them their classes, numbered from the second of a class on.

    Returns:
        `train/lr_<name>` or, for several groups, `train/lr_<name>_<group name or number>`.
    """
    rates: dict[str, float] = {}
    classes: list[str] = []
    for number, optimizer in enumerate(optimizers):
        kind = type(optimizer).__name__.lower()
        again = classes.count(kind)
        classes.append(kind)
        name = names[number] if number < len(names) else f"{kind}_{again}" if again else kind
        groups = optimizer.param_groups
        for index, group in enumerate(groups):
            suffix = f"_{group.get('name', index)}" if len(groups) > 1 else ""
            rates[f"train/lr_{name}{suffix}"] = float(group["lr"]) * rate_factor(optimizer)
    return rates


class GradNorm(L.Callback):
    """Logs `train/grad_norm`, the 2-norm over all gradients before clipping, for tasks of automatic optimisation.

    Tasks of manual optimisation know which gradients belong together and log their own.
    """

    def on_before_optimizer_step(self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: Optimizer) -> None:
        """Log when it is time; gradients are unscaled and not yet clipped here."""
        if not pl_module.automatic_optimization or not due(trainer):
            return
        pl_module.log("train/grad_norm", gradient_norm(trainer, optimizer))


class _LogFile(logging.FileHandler):
    """A log file that loses lines on a full disk, where Python's prints a traceback for each."""

    def handleError(self, record: logging.LogRecord) -> None:
        """Pass over what the disk does not take."""
        if not isinstance(sys.exception(), OSError):
            super().handleError(record)

    def close(self) -> None:
        """Close, whether or not the last lines could be written."""
        with contextlib.suppress(OSError):
            super().close()


@contextlib.contextmanager
def log_file(path: Path, logger: logging.Logger) -> Iterator[None]:
    """Write what a logger says to the end of a `train.log` as well."""
    handler = _open_log(path)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        handler.close()


def _open_log(path: Path) -> _LogFile:
    handler = _LogFile(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter(LOG_FORMAT))
    return handler


class TrainLog(L.Callback):
    """Copies what zoo, Lightning and `warnings` say into `train.log` of the run folder, on rank zero.

    A resumed run appends. An exception is written with its traceback. What reaches the terminal stays as it was.

    Args:
        level: lowest level that is written, e.g. "INFO".
    """

    def __init__(self, level: str = "INFO") -> None:
        if level not in logging.getLevelNamesMapping():
            raise ValueError(
                f"TrainLog: unknown level {level!r}, expected one of {list(logging.getLevelNamesMapping())}"
            )
        self.level = level
        self._handler: _LogFile | None = None
        self._added: list[tuple[logging.Logger, logging.Handler]] = []

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Open the file and listen."""
        folder = run_folder(trainer)
        if stage != "fit" or not trainer.is_global_zero or self._handler is not None:
            return
        folder.mkdir(parents=True, exist_ok=True)
        self._handler = _open_log(folder / LOG_NAME)
        self._handler.setLevel(self.level)
        for name in LOGGERS:
            logger = logging.getLogger(name)
            if not logger.hasHandlers() and logging.lastResort is not None:
                # Python shows warnings of a logger without handlers on the terminal; ours must not end that
                self._add(logger, logging.lastResort)
            self._add(logger, self._handler)
        self._zoo_level = logging.getLogger("zoo").level
        logging.getLogger("zoo").setLevel(min(logging.getLogger("zoo").getEffectiveLevel(), self._handler.level))
        self._show = warnings.showwarning
        warnings.showwarning = self._shown

    def _add(self, logger: logging.Logger, handler: logging.Handler) -> None:
        logger.addHandler(handler)
        self._added.append((logger, handler))

    def _shown(
        self,
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        self._show(message, category, filename, lineno, file, line)
        self._write(logging.WARNING, "warnings", f"{category.__name__}: {message} ({filename}:{lineno})")

    def _write(self, level: int, name: str, text: str, error: BaseException | None = None) -> None:
        if self._handler is not None and level >= self._handler.level:
            trace = (type(error), error, error.__traceback__) if error is not None else None
            self._handler.emit(logging.LogRecord(name, level, "", 0, text, None, trace))

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        """Write what ended the run, and close: Lightning calls no teardown hook after an exception."""
        if isinstance(exception, Exception):
            self._write(logging.ERROR, __name__, f"ended by {type(exception).__name__}", exception)
        else:  # a signal or Ctrl-C: asked for, so its traceback tells nothing
            self._write(logging.WARNING, __name__, f"ended by {type(exception).__name__} {exception}")
        self.close()

    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Close the file."""
        self.close()

    def close(self) -> None:
        """Stop listening and close the file."""
        if self._handler is None:
            return
        for logger, handler in self._added:
            logger.removeHandler(handler)
        self._added = []
        logging.getLogger("zoo").setLevel(self._zoo_level)
        if warnings.showwarning == self._shown:
            warnings.showwarning = self._show
        self._handler.close()
        self._handler = None
