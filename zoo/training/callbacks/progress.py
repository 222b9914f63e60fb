"""One bar for a whole run; where standard error is no terminal (a file, a notebook), a log line now and then.

The lines go to train.log too. Nothing asks the device for a value between two drawings.
"""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import lightning as L
from lightning.pytorch import callbacks
from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID
from rich.text import Text

from zoo.common.checks import check_above
from zoo.common.environment import verbosity
from zoo.training.callbacks.checkpoint import Checkpoints

log = logging.getLogger(__name__)

REDRAW_SECONDS = 0.25
SPEED_SECONDS = 30.0  # over which the speed is a mean
BAR_WIDTH = 30
LOSSES = ("train/loss", "train/g/mel", "train/g/total")  # the first that is logged; a GAN's total says little
SEPARATOR = " · "


@dataclass
class TerminalSettings:
    """What is shown while a run trains.

    Args:
        metrics: keys of the values at the bar, e.g. `train/g/mel`; when null, the loss (of GANs that of the mel) and
            the monitored metric.
        every_seconds: time between two lines where there is no terminal, and in train.log.
    """

    metrics: list[str] | None = None
    every_seconds: float = 30.0


def select_metrics(keys: Iterable[str], chosen: Sequence[str] | None, monitor: str | None) -> list[str]:
    """Return the keys to show: those that the recipe names, else the loss and the monitored metric."""
    keys = list(keys)
    if chosen is not None:
        return [key for key in chosen if key in keys]
    loss = next((key for key in LOSSES if key in keys), None)
    loss = loss or next((key for key in keys if key.startswith("train/") and "loss" in key), None)
    return [key for key in dict.fromkeys((loss, monitor)) if key in keys]


def format_number(value: float) -> str:
    """Format a value in three digits."""
    return f"{value:,.0f}" if 999.5 <= abs(value) < 1e9 else f"{value:.3g}"


def format_duration(seconds: float) -> str:
    """Format a time: 45 s, 13 min, 2 h 05 min, 3 d 4 h."""
    minutes, hours = round(seconds / 60), round(seconds / 3600)
    if seconds < 59.5:
        return f"{seconds:.0f} s"
    if minutes < 60:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60:02d} min" if minutes < 48 * 60 else f"{hours // 24} d {hours % 24} h"


def describe_task(task: Task) -> str:
    """Return `step 120/2,600 · 5 % · 3.1 it/s · ETA 13 min`, as far as it is known."""
    parts = [f"{task.description} {task.completed:,.0f}"]
    if task.total:
        parts[0] += f"/{task.total:,.0f}"
        parts.append(f"{100 if task.finished else min(round(task.percentage), 99)} %")
    if task.speed:
        parts.append(f"{task.speed:.3g} it/s" if task.speed >= 1 else f"{1 / task.speed:.3g} s/it")
    if task.speed and task.remaining:
        parts.append(f"ETA {format_duration(task.remaining / task.speed)}")
    return SEPARATOR.join(parts)


class _DescriptionColumn(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(describe_task(task), no_wrap=True, overflow="ellipsis")


class _Bars(Progress):
    values = ""

    def get_renderables(self) -> Iterable[RenderableType]:
        yield self.make_tasks_table(self.tasks)
        if self.values:
            yield Text(self.values, no_wrap=True, overflow="ellipsis")


class ProgressBar(callbacks.ProgressBar):
    """Shows a run's step of all, speed, end and chosen values; validations within it.

    Args:
        metrics: keys of values to show; see `TerminalSettings`.
        every_seconds: time between two lines, > 0.
    """

    def __init__(self, metrics: Sequence[str] | None = None, every_seconds: float = 30.0) -> None:
        super().__init__()
        check_above(0, every_seconds=every_seconds)
        self.metrics = metrics
        self.every_seconds = every_seconds
        self._enabled = True
        self._bars: _Bars | None = None
        self._training: TaskID | None = None
        self._evaluation: TaskID | None = None
        self._monitor: str | None = None
        self._drawn_at = self._logged_at = 0.0

    def disable(self) -> None:
        """Show nothing, on ranks above zero."""
        self._enabled = False

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Find the monitored metric."""
        super().setup(trainer, pl_module, stage)
        monitors = (each.monitor for each in trainer.checkpoint_callbacks if isinstance(each, Checkpoints))
        self._monitor = next(monitors, None)

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Start at the first step of the run or of the resume."""
        self._training = self._add("step", count_steps(trainer), trainer.global_step)

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        """Count a step."""
        self._update(self._training, trainer.global_step)

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Begin a validation: before a training, within it, or alone."""
        if trainer.sanity_checking:
            self._evaluation = self._add("validation before step 1", sum(trainer.num_sanity_val_batches))
        else:
            self._evaluation = self._add("validation", sum(trainer.num_val_batches))

    def on_test_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Begin a test."""
        self._evaluation = self._add("test", sum(trainer.num_test_batches))

    def on_validation_batch_end(self, *_: Any, **__: Any) -> None:
        """Count a batch."""
        if self._bars is not None and self._evaluation is not None:
            self._update(self._evaluation, self._bars.tasks[-1].completed + 1)

    on_test_batch_end = on_validation_batch_end

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Show a validation's result."""
        if self._training is None and not trainer.sanity_checking:
            return self._stop()
        if self._bars is not None and self._evaluation is not None:
            self._bars.remove_task(self._evaluation)
        self._evaluation = None
        if not trainer.sanity_checking:
            self._draw()
            self._log()

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Show the last values and leave them."""
        self._draw()
        self._stop()

    def on_test_end(self, *_: Any, **__: Any) -> None:
        """Leave the bar as it is, and the terminal as it was."""
        self._stop()

    on_exception = on_test_end

    def _add(self, name: str, total: float, completed: int = 0) -> TaskID | None:
        if not self._enabled:
            return None
        if self._bars is None:
            console = Console(stderr=True)
            animated = sys.stderr.isatty() and not console.is_dumb_terminal and verbosity() != "quiet"
            self._bars = _Bars(
                BarColumn(BAR_WIDTH),
                _DescriptionColumn(),
                console=console,
                auto_refresh=False,  # no thread, whose locks a forked loader process would inherit
                speed_estimate_period=SPEED_SECONDS,
                redirect_stdout=sys.stdout.isatty(),
                disable=not animated,
            )
            self._bars.start()
            self._logged_at = time.monotonic()
        return self._bars.add_task(name, total=total if math.isfinite(total) else None, completed=completed)

    def _update(self, task: TaskID | None, completed: float) -> None:
        if self._bars is None or task is None:
            return
        self._bars.update(task, completed=completed)
        now = time.monotonic()
        if now - self._drawn_at >= REDRAW_SECONDS:
            self._draw()
        if now - self._logged_at >= self.every_seconds:
            self._log()

    def _draw(self) -> None:
        if self._bars is not None and not self._bars.disable:
            self._drawn_at = time.monotonic()
            self._bars.values = SEPARATOR.join(self._describe_values())
            self._bars.refresh()

    def _log(self) -> None:
        if self._bars is not None:
            self._logged_at = time.monotonic()
            tasks = [describe_task(task) for task in self._bars.tasks]
            line = SEPARATOR.join([*tasks, *self._describe_values()])
            log.info("%s", line, extra={"terminal": self._bars.disable})

    def _stop(self) -> None:
        if self._bars is not None and not self._bars.disable:
            self._bars.stop()
        self._bars = self._training = self._evaluation = None

    def _describe_values(self) -> list[str]:
        """Return `loss 1.41` and `val/loss 1.62`, values of which no rank waits for another."""
        values = self.trainer.callback_metrics if self._training is not None else {}
        keys = select_metrics(values, self.metrics, self._monitor)
        return [f"{key.removeprefix('train/')} {format_number(float(values[key]))}" for key in keys]


def count_steps(trainer: L.Trainer) -> float:
    """Return the step at which a training ends by its steps or epochs; infinite when neither ends it."""
    steps = math.inf if trainer.max_steps == -1 else trainer.max_steps
    if trainer.max_epochs is None or trainer.max_epochs < 0 or trainer.num_training_batches == math.inf:
        return steps
    return min(steps, math.ceil(trainer.num_training_batches / trainer.accumulate_grad_batches) * trainer.max_epochs)
