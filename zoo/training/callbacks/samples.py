"""Samples of what a run makes, logged while it trains."""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable
from typing import Any

import lightning as L
import numpy as np
import torch

from zoo.common.checks import check_at_least
from zoo.runs.run_folder import run_folder
from zoo.training.callbacks import media
from zoo.training.callbacks.checkpoint import is_fast_dev_run
from zoo.training.callbacks.metrics import count_items
from zoo.training.callbacks.progress import count_steps
from zoo.training.callbacks.rng import capture_rng, restore_rng
from zoo.training.strategies.sharding import gather_weights

log = logging.getLogger(__name__)


class Samples(L.Callback):
    """Lets a task log samples of the first validation batches: files in `media/` of the run folder, and in the loggers.

    Their seed is fixed, so the pictures of two validations differ by the weights alone. Neither random numbers nor an
    error of a sample reaches the training.

    Args:
        enabled: whether there are samples at all.
        items: how many of the validation's items are shown.
        every_n_validations: how often; the first and the last validation of a fit always have samples.
        seed: of their random numbers.
    """

    def __init__(self, enabled: bool = True, items: int = 4, every_n_validations: int = 5, seed: int = 0) -> None:
        check_at_least(1, items=items, every_n_validations=every_n_validations)
        check_at_least(0, seed=seed)
        self.enabled = enabled
        self.items = items
        self.every_n_validations = every_n_validations
        self.seed = seed
        self.showing = enabled
        self._validations = 0  # of this process
        self._batches: list[Any] = []
        self._count = 0
        self._failed = False

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Decide whether this validation has samples."""
        run_folder(trainer)  # the first call is collective
        self._batches, self._count = [], 0
        shortened = media.is_shortened(trainer) or is_fast_dev_run(trainer)
        due = self._validations % self.every_n_validations == 0 or is_last_validation(trainer)
        self.showing = self.enabled and trainer.state.fn in ("fit", "validate") and not shortened and due
        self._validations += not shortened

    def on_validation_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, *_: Any, **__: Any
    ) -> None:
        """Keep the first items."""
        if self.showing and self._count < self.items:
            self._batches.append(batch)
            self._count += getattr(pl_module, "count_items", count_items)(batch)

    def on_validation_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Let the task sample."""
        batches, self._batches = self._batches, []
        log_samples: Any = getattr(pl_module, "log_samples", None)
        if self.showing and log_samples is not None:
            with gather_weights(trainer):
                self.run_isolated(lambda: log_samples(batches, is_last_validation(trainer)))

    def run_isolated(self, function: Callable[[], object]) -> None:
        """Call a function that samples, with separate random numbers; an error is reported once and stops nothing."""
        state = capture_rng()
        random.seed(self.seed)
        np.random.seed(self.seed % 2**32)
        torch.manual_seed(self.seed)
        try:
            with torch.no_grad():
                function()
        except Exception as error:  # whatever a picture's maker raises: the run is worth more than the picture
            if not self._failed:
                log.warning("samples failed, and will be missing (said once): %s: %s", type(error).__name__, error)
                log.debug("samples failed", exc_info=error)
            self._failed = True
        finally:
            restore_rng(state)


def is_last_validation(trainer: L.Trainer) -> bool:
    """Return whether no further validation will come before the fit reaches its limit of steps or epochs."""
    if trainer.state.fn != "fit" or trainer.should_stop:
        return True
    if trainer.sanity_checking:  # Lightning does not know its periods yet
        return False
    left = (count_steps(trainer) - trainer.global_step) * trainer.accumulate_grad_batches
    per_epoch = float(trainer.num_training_batches)
    period, epochs = float(trainer.val_check_batch or math.inf), trainer.check_val_every_n_epoch
    if epochs is None:
        return left < period
    rest = per_epoch - trainer.fit_loop.epoch_loop.batch_idx - 1  # of this epoch; the next one counts from 0
    return left < (period if period <= rest else rest + (epochs - 1) * per_epoch + min(period, per_epoch))
