"""Where a run may end and how it is taken up again, as far as Lightning's loops alone do not get it right."""

from __future__ import annotations

import dataclasses
from typing import Any

import lightning as L
from lightning.pytorch.loops.fit_loop import _FitLoop

from zoo.training.csv_log import RunCSV


class OwingFitLoop(_FitLoop):
    """Lightning's loop of a run that owes a validation: it begins also where no batch is left to train."""

    @property
    def skip(self) -> bool:
        """Whether there is nothing to do."""
        return bool(self.trainer.limit_train_batches == 0)


def owe_validation(trainer: L.Trainer) -> None:
    """Let the hook at the training's start run, in which `validate_again` is called, though all batches are trained.

    Args:
        trainer: whose loops are not yet restored.
    """
    loop = OwingFitLoop(trainer)
    vars(loop).update(vars(trainer.fit_loop))
    trainer.fit_loop = loop


def is_last_batch(trainer: L.Trainer) -> bool:
    """Whether training ends with this batch: its state is saved now, before Lightning counts the epoch as done."""
    loop: Any = trainer.fit_loop
    epoch_ends = loop.epoch_loop.batch_progress.is_last_batch
    last_epoch = loop.max_epochs not in (None, -1) and loop.epoch_progress.current.processed + 1 >= loop.max_epochs
    wished = trainer.should_stop and loop._can_stop_early
    return trainer.global_step == trainer.max_steps or (epoch_ends and last_epoch) or wished


def validation_is_due(trainer: L.Trainer) -> bool:
    """Whether a validation belongs between this batch and the next."""
    loop: Any = trainer.fit_loop
    return trainer.global_step > 0 and bool(loop.epoch_loop._should_check_val_fx(loop._data_fetcher))


def repair_restart(trainer: L.Trainer) -> None:
    """Mend two states that Lightning restores wrongly; without it, a second resume from such a run repeats an epoch."""
    loop = trainer.fit_loop
    if trainer.global_step == 0:  # saved before the first batch: taken for the end of one
        loop.epoch_loop.restarting = False
    at_end = loop.epoch_loop.restarted_on_train_batch_end and loop.epoch_loop.batch_progress.is_last_batch
    if at_end and loop.restarted_mid_epoch:  # saved after the last batch of an epoch: the next one is never begun
        loop.reset_restart_stage()


def validate_again(trainer: L.Trainer, epoch: int) -> None:
    """Validate before the first batch of a resumed run, as the interrupted run did or would have done at this step.

    Args:
        trainer: about to train.
        epoch: that the step belongs to; where it ends one, Lightning has begun the next.
    """
    for logger in trainer.loggers:
        if isinstance(logger, RunCSV):
            logger.drop(trainer.global_step - 1, "val/")
    connector: Any = trainer._logger_connector
    epochs: Any = trainer.fit_loop.epoch_progress
    before = epochs.current, connector._first_loop_iter
    epochs.current = dataclasses.replace(epochs.current, processed=epoch, completed=epoch)
    loop = trainer.fit_loop.epoch_loop.val_loop
    loop.restarting = False
    loop.reset_restart_stage()
    trainer.validating = True
    loop.run()
    trainer.training = True
    epochs.current, connector._first_loop_iter = before
