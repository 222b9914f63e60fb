"""One bar for a whole run; where standard error is no terminal (a file, a notebook), a plain line now and then.

The lines go to train.log too. Nothing asks the device for a value between two drawings.
"""

from __future__ import annotations

import logging
import math
import sys
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import ProgressBar, Timer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar as Bar
from rich.table import Table
from rich.text import Text

from zoo.common.checks import check_above
from zoo.common.environment import verbosity
from zoo.runs.folder import run_folder
from zoo.training.callbacks.checkpoint import Checkpoints, score_of

log = logging.getLogger(__name__)

REDRAW_SECONDS = 0.25
RATE_SECONDS = 30.0  # over which the speed is a mean
BAR_WIDTH = 30
LOSSES = ("train/loss", "train/g/mel", "train/g/total")  # the first that is logged; a GAN's total tells little
SEPARATOR = " · "


@dataclass
class TerminalSettings:
    """What is shown while a run trains.

    Args:
        metrics: keys of the values beside the bar, e.g. `train/g/mel`; when null, the loss (of GANs that of the mel)
            and the monitored metric.
        every_seconds: time between two lines where there is no terminal, and in train.log.
    """

    metrics: list[str] | None = None
    every_seconds: float = 30.0


def shown_metrics(known: Iterable[str], chosen: Sequence[str] | None, monitor: str | None) -> list[str]:
    """The keys to show: those that the recipe names, else the loss and the monitored metric."""
    keys = list(known)
    if chosen is not None:
        return [key for key in chosen if key in keys]
    total = next((key for key in LOSSES if key in keys), None)
    total = total or next((key for key in keys if key.startswith("train/") and "loss" in key), None)
    return [key for key in dict.fromkeys((total, monitor)) if key in keys]


def number(value: float) -> str:
    """A value in three digits."""
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e9 else f"{value:.3g}"


def duration(seconds: float) -> str:
    """A time in words: 45 s, 13 min, 2 h 05 min, 3 d 4 h."""
    minutes = round(seconds / 60)
    if seconds < 59.5:
        return f"{seconds:.0f} s"
    if minutes < 60:
        return f"{minutes} min"
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    hours = round(seconds / 3600)
    return f"{hours // 24} d {hours % 24} h"


def speed(rate: float) -> str:
    """A rate: 3.1 it/s, or 2.5 s/it below one a second."""
    return f"{rate:.3g} it/s" if rate >= 1 else f"{1 / rate:.3g} s/it"


@dataclass
class Count:
    """How far something has come.

    Args:
        total: number of steps; infinite when unknown.
        done: so far.
    """

    name: str
    total: float
    done: int = 0
    _first: int = 0
    _began: float = 0.0
    _held: float | None = None
    _paused: float = 0.0
    _marks: deque[tuple[float, int]] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self._first, self._began = self.done, time.monotonic()
        self._marks.append((0.0, self.done))

    def hold(self) -> None:
        """Begin a pause, which the rate leaves out."""
        self._held = time.monotonic()

    def go_on(self) -> None:
        """End it."""
        if self._held is not None:
            self._paused += time.monotonic() - self._held
            self._held = None

    @property
    def share(self) -> float:
        """Finished share, 0 to 1; 0 when unknown."""
        return self.done / self.total if 0 < self.total < math.inf else 0.0

    @property
    def rate(self) -> float:
        """Per second, lately; 0 while unknown."""
        now = (time.monotonic() if self._held is None else self._held) - self._began - self._paused
        if now - self._marks[-1][0] >= 1:
            self._marks.append((now, self.done))
        while len(self._marks) > 2 and now - self._marks[1][0] > RATE_SECONDS:
            self._marks.popleft()
        then, count = self._marks[0]
        return (self.done - count) / (now - then) if now > then else 0.0

    @property
    def seconds_left(self) -> float:
        """By the mean time so far, pauses included; infinite while unknown."""
        made = self.done - self._first
        if made < 1 or self.total == math.inf:
            return math.inf
        return (time.monotonic() - self._began) / made * max(self.total - self.done, 0)

    def text(self) -> str:
        """`validation 30/200`."""
        return f"{self.name} {self.done:,}" + (f"/{self.total:,.0f}" if self.total < math.inf else "")


class Progress(ProgressBar):
    """Shows a run's step of all, speed, end, chosen values and the best of the monitored one; validations within it.

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
        self._live: Live | None = None
        self._training: Count | None = None
        self._evaluation: Count | None = None
        self._limit: Timer | None = None
        self._checkpoints: Checkpoints | None = None
        self._best: float | None = None
        self._known: dict[str, float] = {}
        self._drawn = self._told = 0.0

    def enable(self) -> None:
        """Show again."""
        self._enabled = True

    def disable(self) -> None:
        """Show nothing from here on."""
        self._enabled = False

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Print above the bar."""
        print(*args, **{"file": sys.stderr, **kwargs})

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Look for what limits the run, and what it is best by."""
        super().setup(trainer, pl_module, stage)
        callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
        self._limit = next((each for each in callbacks if isinstance(each, Timer)), None)
        self._checkpoints = next((each for each in callbacks if isinstance(each, Checkpoints)), None)

    def on_sanity_check_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """It is done."""
        self._evaluation = None

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Start at the first step of the run or of the resume."""
        checkpoints = self._checkpoints
        if checkpoints is not None and checkpoints.monitor is not None:
            scores = [score_of(path) for path in run_folder(trainer).glob("best-step_*.ckpt")]
            self._best = (min if checkpoints.mode == "min" else max)(scores, default=None)
        self._training = Count("step", steps_of(trainer), trainer.global_step)
        self._start()

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        """Count a step."""
        if self._training is not None:
            self._training.done = trainer.global_step
            self._tick(read=True)

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Begin a validation: before a training, within it, or alone."""
        before = trainer.sanity_checking
        batches = trainer.num_sanity_val_batches if before else trainer.num_val_batches
        self._evaluate("validation before step 1" if before else "validation", batches)

    def on_test_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Begin a test."""
        self._evaluate("test", trainer.num_test_batches)

    def on_predict_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Begin a prediction."""
        self._evaluate("predict", trainer.num_predict_batches)

    def on_validation_batch_end(self, *_: Any, **__: Any) -> None:
        """Count a batch."""
        if self._evaluation is not None:
            self._evaluation.done += 1
            self._tick()

    on_test_batch_end = on_predict_batch_end = on_validation_batch_end

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Tell a validation's result."""
        if trainer.sanity_checking:
            return
        if self._training is None:
            return self._stop()
        self._evaluation = None
        self._training.go_on()
        if self._enabled:
            self._read()
            self._note_best()
            self._draw()
            self._tell()

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Show the last values and leave them."""
        if self._enabled:
            self._read()
        self._stop()

    def on_test_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Leave the bar as it is."""
        self._stop()

    on_predict_end = on_test_end

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        """Leave the bar as it is, and the terminal as it was."""
        self._stop()

    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """The same."""
        self._stop()

    def line(self) -> str:
        """`step 120/2600 · 5 % · 3.1 it/s · ETA 13 min · g/mel 0.83 · val/mel_l1 0.71 (best)`."""
        within = [self._evaluation.text()] if self._training is not None and self._evaluation is not None else []
        return SEPARATOR.join([*self._place(), *within, *self._values()])

    def _evaluate(self, name: str, batches: Sequence[float] | float) -> None:
        total = sum(batches) if isinstance(batches, Sequence) else batches
        self._evaluation = Count(name, total)
        if self._training is not None:
            self._training.hold()
        self._start()

    def _start(self) -> None:
        if not self._enabled:
            return
        if self._training is None or self._evaluation is None:
            self._told = time.monotonic()
        console = Console(stderr=True)
        animated = sys.stderr.isatty() and not console.is_dumb_terminal and verbosity() != "quiet"
        if animated and self._live is None:
            # no thread, whose locks a forked loader process would inherit
            self._live = Live(
                console=console,
                get_renderable=self._rows,
                auto_refresh=False,
                redirect_stdout=sys.stdout.isatty(),
            )
            self._live.start()
        self._draw()

    def _stop(self) -> None:
        self._evaluation = None if self._training is not None else self._evaluation
        if self._live is not None:
            self._live.stop()
        self._live = self._training = self._evaluation = None

    def _tick(self, read: bool = False) -> None:
        if not self._enabled:
            return
        now = time.monotonic()
        draw = self._live is not None and now - self._drawn >= REDRAW_SECONDS
        tell = now - self._told >= self.every_seconds
        if read and (draw or tell):
            self._read()
        if draw:
            self._draw()
        if tell:
            self._tell()

    def _read(self) -> None:
        """Fetch the values, at places where Lightning has them without a reduction over ranks."""
        values: Mapping[str, Any] = self.trainer.callback_metrics
        keys = [*shown_metrics(values, self.metrics, self._monitor), self._monitor or ""]
        self._known = {key: float(values[key]) for key in keys if key in values}

    def _draw(self) -> None:
        if self._live is not None:
            self._live.refresh()
            self._drawn = time.monotonic()

    def _tell(self) -> None:
        self._told = time.monotonic()
        log.info("%s", self.line(), extra={"terminal": self._live is None})

    def _place(self) -> list[str]:
        """How far, how fast, how long: of the training, else of what runs."""
        count = self._training or self._evaluation
        if count is None:
            return []
        left, share = count.seconds_left, count.share
        parts = [count.text()]
        trainer, limit = self.trainer, self._limit
        if self._training is not None:
            epochs = trainer.max_epochs
            if epochs is not None and epochs > 0 and trainer.max_steps == -1:
                parts.append(f"epoch {min(trainer.current_epoch + 1, epochs)}/{epochs}")
            remaining = None if limit is None else limit.time_remaining()
            if limit is not None and remaining is not None:
                spent = limit.time_elapsed()
                parts.append(f"{duration(spent)} of {duration(spent + remaining)}")
                left, share = min(left, max(remaining, 0)), max(share, min(spent / (spent + remaining), 1.0))
        percent = 100 if share >= 1 else min(round(100 * share), 99)
        parts += [f"{percent} %"] if share or count.total < math.inf else []
        rate = count.rate
        parts += [speed(rate)] if rate else []
        parts += [f"ETA {duration(left)}"] if 0 < left < math.inf else []
        return parts

    @property
    def _monitor(self) -> str | None:
        return None if self._checkpoints is None else self._checkpoints.monitor

    def _values(self) -> list[str]:
        if self._training is None:
            return []
        parts = []
        for key in shown_metrics(self._known, self.metrics, self._monitor):
            value = self._known[key]
            text = f"{key.removeprefix('train/')} {number(value)}"
            if key == self._monitor and self._best is not None:
                text += " (best)" if value == self._best else f" (best {number(self._best)})"
            parts.append(text)
        if self._monitor not in self._known and self._best is not None:
            parts.append(f"{self._monitor} best {number(self._best)}")
        return parts

    def _note_best(self) -> None:
        value = self._known.get(self._monitor or "", math.nan)
        if self._checkpoints is None or not math.isfinite(value):
            return
        sign = 1.0 if self._checkpoints.mode == "min" else -1.0
        # names of files round: after a resume the same value may come again
        if self._best is None or sign * round(value, 6) <= sign * round(self._best, 6):
            self._best = value

    def _rows(self) -> RenderableType:
        """What a terminal shows."""
        rows: list[RenderableType] = []
        if self._training is not None:
            rows.append(_row(self._training, SEPARATOR.join(self._place())))
            if values := self._values():
                rows.append(_fitting(SEPARATOR.join(values)))
        if self._evaluation is not None:
            within = self._training is not None
            text = self._evaluation.text() if within else SEPARATOR.join(self._place())
            rows.append(_row(self._evaluation, text))
        return Group(*rows)


def steps_of(trainer: L.Trainer) -> float:
    """The step at which a training ends by its steps or epochs; infinite when neither ends it."""
    steps = math.inf if trainer.max_steps == -1 else trainer.max_steps
    if trainer.max_epochs is None or trainer.max_epochs < 0 or trainer.num_training_batches == math.inf:
        return steps
    return min(steps, math.ceil(trainer.num_training_batches / trainer.accumulate_grad_batches) * trainer.max_epochs)


def _row(count: Count, text: str) -> RenderableType:
    row = Table.grid(padding=(0, 1))
    total = max(count.total, 1) if count.total < math.inf else None
    row.add_row(Bar(total, count.done, width=BAR_WIDTH), _fitting(text))
    return row


def _fitting(text: str) -> Text:
    return Text(text, no_wrap=True, overflow="ellipsis")
