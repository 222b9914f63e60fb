"""One bar for a whole run; where standard error is no terminal (a file, a notebook), a log line now and then.

The lines go to train.log too. Nothing asks the device for a value between two drawings.
"""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any

import lightning as L
from lightning.pytorch import callbacks
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID
from rich.text import Text

from zoo.common.checks import check_above
from zoo.common.environment import verbosity
from zoo.runs.run_info import format_duration
from zoo.training.callbacks.checkpoint import find_checkpoints_callback

log = logging.getLogger(__name__)

REDRAW_SECONDS = 0.25
SPEED_SECONDS = 30.0  # over which the speed is a mean; of longer steps over all since the start
BAR_WIDTH = 20
LOSSES = ("train/loss", "train/g/mel", "train/g/total")  # the first that is logged; a GAN's total says little


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


def describe_task(task: Task) -> str:
    """Return `step 120/2,600 · 5 % · 3.1 it/s · ETA 13 min` as far as it is known, and the task's values."""
    parts = [f"{task.description} {task.completed:,.0f}"]
    total = task.total or math.inf
    if total < math.inf:
        parts[0] += f"/{total:,.0f}"
        parts.append(f"{100 if task.finished else min(round(task.percentage), 99)} %")
    done = task.completed - task.fields["first"]
    speed = task.speed or (done / task.elapsed if done >= 2 and task.elapsed else None)
    if speed:
        parts.append(f"{speed:.3g} it/s" if speed >= 1 else f"{1 / speed:.3g} s/it")
    if total < math.inf and speed and task.remaining:
        parts.append(f"ETA {format_duration(task.remaining / speed)}")
    return " · ".join([*parts, *task.fields["values"]])


class _DescriptionColumn(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(describe_task(task), no_wrap=True, overflow="ellipsis")


class ProgressBar(callbacks.ProgressBar):
    """Shows a run's step of all, speed, end and chosen values; validations within it.

    Args:
        metrics: keys of the values at the bar, e.g. `train/g/mel`; when null, the loss (of GANs that of the mel) and
            the monitored metric.
        every_seconds: time between two lines where there is no terminal, and in train.log, > 0.
    """

    def __init__(self, metrics: list[str] | None = None, every_seconds: float = 30.0) -> None:
        super().__init__()
        check_above(0, every_seconds=every_seconds)
        self.metrics = metrics
        self.every_seconds = every_seconds
        self._enabled = True
        self._bars = Progress(disable=True)
        self._training: TaskID | None = None
        self._evaluation = TaskID(0)
        self._monitor: str | None = None
        self._drawn_at = self._logged_at = 0.0

    def disable(self) -> None:
        """Show nothing, on ranks above zero."""
        self._enabled = False

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Find the monitored metric; take the terminal."""
        super().setup(trainer, pl_module, stage)
        checkpoints = find_checkpoints_callback(trainer)
        self._monitor = None if checkpoints is None else checkpoints.monitor
        console = Console(stderr=True)
        animated = sys.stderr.isatty() and not console.is_dumb_terminal and verbosity() != "quiet"
        self._bars = Progress(
            BarColumn(BAR_WIDTH),
            _DescriptionColumn(),
            console=console,
            auto_refresh=False,  # no thread, whose locks a forked loader process would inherit
            speed_estimate_period=SPEED_SECONDS,
            redirect_stdout=sys.stdout.isatty(),
            disable=not (self._enabled and animated),
        )
        self._bars.start()
        self._training = None
        self._logged_at = time.monotonic()

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Start at the first step of the run or of the resume."""
        total, first = count_steps(trainer), trainer.global_step
        self._training = self._bars.add_task("step", total=total, completed=first, first=first, values=[])

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        """Count a step."""
        if self._training is not None:
            self._update(self._training, trainer.global_step)

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Begin an evaluation: before a training, within it, or alone."""
        name, batches = "validation", trainer.num_val_batches
        if trainer.sanity_checking:
            name, batches = "validation before step 1", trainer.num_sanity_val_batches
        elif trainer.testing:
            name, batches = "test", trainer.num_test_batches
        self._evaluation = self._bars.add_task(name, total=sum(batches), first=0, values=[])

    def on_validation_batch_end(self, *_: Any, **__: Any) -> None:
        """Count a batch."""
        self._update(self._evaluation, self._bars.tasks[-1].completed + 1)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Show a validation's result within the training."""
        if trainer.state.fn == "fit":
            self._bars.remove_task(self._evaluation)
            if not trainer.sanity_checking:
                self._draw()
                self._log()

    on_test_start = on_validation_start
    on_test_batch_end = on_validation_batch_end

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Show the last values and leave them."""
        self._draw()
        self.on_exception()

    def on_exception(self, *_: Any, **__: Any) -> None:
        """Leave the bar as it is, and the terminal as it was."""
        if not self._bars.disable:
            self._bars.stop()

    teardown = on_exception

    def _update(self, task: TaskID, completed: float) -> None:
        self._bars.update(task, completed=completed)
        now = time.monotonic()
        if now - self._drawn_at >= REDRAW_SECONDS:
            self._draw()
        if now - self._logged_at >= self.every_seconds:
            self._log()

    def _draw(self) -> None:
        self._drawn_at = time.monotonic()
        if not self._bars.disable:
            self._update_values()
            self._bars.refresh()

    def _log(self) -> None:
        self._logged_at = time.monotonic()
        if self._enabled:
            self._update_values()
            line = " · ".join(map(describe_task, self._bars.tasks))
            log.info("%s", line, extra={"terminal": self._bars.disable})

    def _update_values(self) -> None:
        """Take `loss 1.41` and `val/loss 1.62`, values of which no rank waits for another."""
        if self._training is not None:
            values = self.trainer.callback_metrics
            keys = select_metrics(values, self.metrics, self._monitor)
            texts = [f"{key.removeprefix('train/')} {format_number(float(values[key]))}" for key in keys]
            self._bars.update(self._training, values=texts)


def count_steps(trainer: L.Trainer) -> float:
    """Return the step at which a training ends by its steps or epochs; infinite when neither ends it."""
    steps = math.inf if trainer.max_steps == -1 else trainer.max_steps
    if trainer.max_epochs is None or trainer.max_epochs < 0 or trainer.num_training_batches == math.inf:
        return steps
    return min(steps, math.ceil(trainer.num_training_batches / trainer.accumulate_grad_batches) * trainer.max_epochs)
