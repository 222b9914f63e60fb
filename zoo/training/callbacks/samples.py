"""What a run makes, shown while it trains."""

from __future__ import annotations

import logging
import math
import random
import time
from collections.abc import Callable
from typing import Any

import lightning as L
import numpy as np
import torch

from zoo.common.checks import check_at_least
from zoo.runs.folder import run_folder
from zoo.training.callbacks import media
from zoo.training.callbacks.metrics import items_in
from zoo.training.resume import capture_rng, restore_rng
from zoo.training.strategies.sharding import gather_weights

log = logging.getLogger(__name__)


class Samples(L.Callback):
    """Lets a task show what it makes at its validations: files in `media/` of the run folder, and in the loggers.

    The task samples from the first validation batches with a fixed seed, so that the pictures of two validations
    differ by the weights alone; the averaged weights where the validation has them. The first and the last validation
    always show samples, the others as long as `share` allows; an animation, which only the last one shows, belongs to
    the end of the run and not to that validation. Neither the training's random numbers nor an error in
    drawing reaches the training.

    Args:
        enabled: whether samples are shown at all.
        items: how many of the validation's items are shown.
        share: of the time of the validations that samples may take.
        seed: of what is drawn for them.
    """

    def __init__(self, enabled: bool = True, items: int = 4, share: float = 0.1, seed: int = 0) -> None:
        check_at_least(1, items=items)
        check_at_least(0, share=share, seed=seed)
        self.enabled = enabled
        self.items = items
        self.share = share
        self.seed = seed
        self.showing = enabled
        self._batches: list[Any] = []
        self._count = 0
        self._started = 0.0
        self._validated: list[float] = []  # seconds of this process's validations, samples left out
        self._spent: list[float] = []  # seconds of their samples
        self._failed = False

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Decide whether this validation shows samples, on rank zero for all."""
        run_folder(trainer)  # the first call is collective
        self._batches, self._count = [], 0
        shortened = trainer.sanity_checking and not math.isinf(float(trainer.num_sanity_val_steps))
        shown = (
            trainer.state.fn in ("fit", "validate") and not shortened and not getattr(trainer, "fast_dev_run", False)
        )
        wanted = self.enabled and shown and (not self._spent or is_last(trainer) or self._affordable())
        self.showing = bool(trainer.strategy.broadcast(wanted))
        if shown:
            self._spent.append(0.0)
        self._started = time.perf_counter()

    def _affordable(self) -> bool:
        return sum(self._spent) + max(self._spent[-8:]) <= self.share * (sum(self._validated) + self._validated[-1])

    def on_validation_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Keep the first items."""
        if self.showing and self._count < self.items:
            self._batches.append(batch)
            self._count += getattr(pl_module, "items_in", items_in)(batch)

    def on_validation_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Let the task draw."""
        batches, self._batches = self._batches, []
        draw: Any = getattr(pl_module, "log_samples", None)
        if self.showing and draw is not None:
            with gather_weights(trainer):
                self.run(lambda: draw(batches, is_last(trainer)))
        if self._spent:
            self._validated.append(time.perf_counter() - self._started - self._spent[-1])

    def write(self, task: L.LightningModule, kind: str, name: str, *content: Any) -> None:
        """Write a sample by `zoo.training.callbacks.media.log_<kind>`."""
        getattr(media, f"log_{kind}")(task, name, *content)

    def run(self, draw: Callable[[], object]) -> None:
        """Make samples with separate random numbers; an error is reported once and stops nothing."""
        started, state = time.perf_counter(), capture_rng()
        random.seed(self.seed)
        np.random.seed(self.seed % 2**32)
        torch.manual_seed(self.seed)
        try:
            with torch.no_grad():
                draw()
        except Exception as error:  # whatever a picture's maker raises: the run is worth more than the picture
            if not self._failed:
                self._failed = True
                log.warning(
                    "samples could not be drawn, and will be missing (said once): %s: %s", type(error).__name__, error
                )
                log.debug("drawing samples failed", exc_info=error)
        finally:
            restore_rng(state)
        if self._spent:
            self._spent[-1] += time.perf_counter() - started


def is_last(trainer: L.Trainer) -> bool:
    """Whether no further validation will come before the fit reaches its limit of steps or epochs."""
    if trainer.state.fn != "fit" or trainer.should_stop:
        return True
    if trainer.sanity_checking:  # Lightning does not know its periods yet
        return False
    per_epoch = float(trainer.num_training_batches)
    left = math.inf
    if trainer.max_steps >= 0:
        left = float((trainer.max_steps - trainer.global_step) * trainer.accumulate_grad_batches)
    if trainer.max_epochs is not None and trainer.max_epochs >= 0 and math.isfinite(per_epoch):
        done = trainer.fit_loop.epoch_loop.batch_progress.current.completed
        left = min(left, (trainer.max_epochs - trainer.current_epoch) * per_epoch - done)
    period, epochs = float(trainer.val_check_batch or math.inf), trainer.check_val_every_n_epoch
    return left < (epochs * per_epoch if epochs is not None and period >= per_epoch else period)
