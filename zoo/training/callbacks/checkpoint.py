"""Checkpoints while training: when they are written, which are kept, and how a signal ends a run."""

from __future__ import annotations

import dataclasses
import difflib
import logging
import math
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.loops.fit_loop import _FitLoop

from zoo.common.atomic import sweep_temporaries
from zoo.common.ranges import at_least, one_of
from zoo.runs import checkpoints as files
from zoo.runs.checkpoints import score_of
from zoo.runs.csv_log import RunCSV
from zoo.runs.folder import run_folder
from zoo.runs.frozen import frozen_modules
from zoo.training.signals import Interrupted, StopSignal


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


def count_batch_as_open(progress: dict[str, Any]) -> None:
    """Make a checkpoint that was saved after a validation look like one saved before it.

    From the first, Lightning decides by the resume's own `val_check_interval` whether the batch is done, and with
    another interval trains a batch twice. From the second on it continues with the next batch.

    Args:
        progress: the loop's counts of batches; changed in place.
    """
    for counts in (progress["total"], progress["current"]):
        if counts["ready"] > 0:
            counts["completed"] = counts["ready"] - 1


def validate_again(trainer: L.Trainer, epoch: int) -> None:
    """Validate before the first batch of a resumed run, as the interrupted run did or would have done at this step.

    Args:
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


log = logging.getLogger(__name__)


class AtomicCheckpointIO(TorchCheckpointIO):
    """Lightning's checkpoint I/O with our files: written aside, synced, renamed; read with weights_only."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        """Write a checkpoint so that a kill or a full disk costs nothing that was saved."""
        files.save_checkpoint(checkpoint, Path(path))

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        """Read a checkpoint of tensors and plain values; pickled objects are refused whatever `weights_only` says."""
        return files.load_checkpoint(Path(path), map_location or "cpu")

    def remove_checkpoint(self, path: Any) -> None:
        """Delete a checkpoint and its hash."""
        files.remove(Path(path))


class Checkpoints(Checkpoint):
    """Saves by batches, by time and by metric; keeps the last ones and the best ones; ends a run on a signal.

    Everything is decided from the run folder's files, so nothing here needs restoring. Names carry the number of
    batches trained: `step_00001000.ckpt`, `best-step_00001000-0.512345.ckpt`.

    Args:
        every_n_batches: save after every so many batches; None for never.
        every_minutes: save when so much time has passed since the last save; None for never.
        monitor: metric key, e.g. `val/mel_l1`, whose best values are kept; None for none.
        mode: "min" or "max".
        save_best: how many best checkpoints to keep.
        keep_last: how many of the newest to keep.
    """

    def __init__(
        self,
        every_n_batches: int | None = 1000,
        every_minutes: float | None = 30.0,
        monitor: str | None = None,
        mode: str = "min",
        save_best: int = 1,
        keep_last: int = 2,
    ) -> None:
        one_of(("min", "max"), mode=mode)
        at_least(1, keep_last=keep_last, every_n_batches=1 if every_n_batches is None else every_n_batches)
        self.every_n_batches = every_n_batches
        self.every_minutes = every_minutes
        self.monitor = monitor
        self.mode = mode
        self.save_best = save_best
        self.keep_last = keep_last
        self.stop = StopSignal()
        self.listeners: list[Callable[[L.Trainer, Path], None]] = []  # called on every rank when a file is written
        self._saved_step = -1
        self._saved_at = 0.0
        self._at_boundary = True
        self._validated_step = -1
        self._owed_epoch: int | None = None  # of a validation

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Take over the stop signals and sweep what a killed process left half-written."""
        folder = run_folder(trainer)
        if stage != "fit":
            return
        self.stop.install()
        if trainer.is_global_zero:
            folder.mkdir(parents=True, exist_ok=True)
            for path in sweep_temporaries(folder):
                log.info("removed %s, left by a killed process", path.name)

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Estimate the room that this run's checkpoints need."""
        if trainer.is_global_zero and not is_trial(trainer):
            check_disk(run_folder(trainer), pl_module, copies=self.keep_last + self.save_best + 1)

    def on_sanity_check_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Take the signals back from Lightning, which registers its own handlers just before this."""
        self.stop.install()

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Take the signals back; start the clock."""
        self.stop.install()
        self._saved_at = time.monotonic()
        self._saved_step = trainer.global_step
        repair_restart(trainer)
        if self._owed_epoch is not None:
            validate_again(trainer, self._owed_epoch)
            self._owed_epoch = None

    def on_train_batch_start(self, trainer: L.Trainer, pl_module: L.LightningModule, *_: Any) -> None:
        """Note that a step is under way: its half-done state is never saved."""
        self._at_boundary = False

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *_: Any) -> None:
        """Save when it is time; after a stop signal save and leave."""
        if trainer.fit_loop.epoch_loop._should_accumulate():
            return  # the gradients gathered so far belong to a step under way
        self._at_boundary = True
        step = trainer.global_step
        by_batches = self.every_n_batches is not None and step % self.every_n_batches == 0
        last = is_last_batch(trainer)
        # a run killed in its last validation must come back to it, so its end is saved after that
        wait = step == self._saved_step or (last and validation_is_due(trainer)) or is_trial(trainer)
        if (by_batches or last or self._time_is_up(trainer)) and not wait:
            self.save_last(trainer)
        self._leave_if_asked(trainer, log_first=True)

    def on_sanity_check_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Find a mistyped monitor before the first step."""
        found = getattr(pl_module, "logged_metric_names", ())
        if self.monitor is None or not found or self.monitor in found:
            return
        near = difflib.get_close_matches(self.monitor, found, n=1, cutoff=0.8)
        if near:
            raise ValueError(
                f"checkpoints.monitor: no validation gives {self.monitor}: did you mean {near[0]}? "
                f"(values: {', '.join(sorted(found))})"
            )
        log.warning("checkpoints.monitor: %s is none of the values so far (%s)", self.monitor, ", ".join(sorted(found)))

    def on_validation_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *args: Any) -> None:
        """Leave in the middle of a validation but the last (several processes finish it, their batches may differ)."""
        if trainer.world_size == 1 and trainer.state.fn == "fit" and not is_last_batch(trainer):
            self._leave_if_asked(trainer)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Keep this state when its metric is among the best."""
        if trainer.sanity_checking or trainer.state.fn != "fit" or is_trial(trainer):
            return
        self._validated_step = trainer.global_step
        if self.monitor is not None and self.save_best > 0:
            self._save_best(trainer)
        if is_last_batch(trainer) and trainer.global_step != self._saved_step:
            self.save_last(trainer)
        self._leave_if_asked(trainer)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Save the final state."""
        if trainer.global_step != self._saved_step and not is_trial(trainer):
            self.save_last(trainer)

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        """Save what is whole: an exception between two steps loses nothing, one inside a step loses that step only."""
        disk_failed = isinstance(exception, OSError)
        if not self._at_boundary or trainer.state.fn != "fit" or disk_failed or is_trial(trainer):
            return
        if trainer.world_size > 1 and not isinstance(exception, Interrupted):
            return  # one rank's error: the others are in their step, and saving takes all
        # before the first step only a signal makes a state worth keeping: a run that could not start leaves none
        worth = trainer.global_step != self._saved_step if trainer.global_step else isinstance(exception, Interrupted)
        if worth:
            self.save_last(trainer)

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Note when a validation belongs between this state and the next batch: a kill in it must not cost it."""
        checkpoint["validation_due"] = validation_is_due(trainer) and self._validated_step != trainer.global_step

    def on_load_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Remember a validation that the interrupted run may not have finished."""
        if trainer.state.fn != "fit":
            return
        count_batch_as_open(checkpoint["loops"]["fit_loop"]["epoch_loop.batch_progress"])
        self._owed_epoch = checkpoint["epoch"] if checkpoint.get("validation_due") else None
        if self._owed_epoch is not None:
            owe_validation(trainer)

    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Give the signals back."""
        self.stop.uninstall()

    def save_last(self, trainer: L.Trainer) -> Path:
        """Write `step_<batches>.ckpt` and delete all but the last `keep_last` of its kind."""
        path = run_folder(trainer) / f"step_{trainer.global_step:08d}.ckpt"
        self._save(trainer, path)
        self._saved_step, self._saved_at = trainer.global_step, time.monotonic()
        return path

    def _prune(self, folder: Path) -> None:
        for old in files.find_checkpoints(folder, "step_*.ckpt")[self.keep_last :]:
            files.remove(old)
        if self.monitor is not None and self.save_best > 0:
            sign = 1.0 if self.mode == "min" else -1.0
            kept = sorted(folder.glob("best-step_*.ckpt"), key=lambda path: sign * score_of(path))
            for old in kept[self.save_best :]:
                files.remove(old)

    def _save_best(self, trainer: L.Trainer) -> None:
        value = trainer.callback_metrics.get(self.monitor or "")
        if value is None:
            known = ", ".join(sorted(map(str, trainer.callback_metrics))) or "none"
            raise ValueError(f"Checkpoints: monitor {self.monitor!r} is not logged; logged metrics: {known}")
        score = float(value)
        folder = run_folder(trainer)
        sign = 1.0 if self.mode == "min" else -1.0
        kept = sorted(folder.glob("best-step_*.ckpt"), key=lambda path: sign * score_of(path))
        worst = sign * score_of(kept[self.save_best - 1]) if len(kept) >= self.save_best else math.inf
        good = trainer.strategy.broadcast(math.isfinite(score) and sign * score < worst)
        if not good:
            return
        self._save(trainer, folder / f"best-step_{trainer.global_step:08d}-{score:.6f}.ckpt")

    def _save(self, trainer: L.Trainer, path: Path) -> None:
        trainer.save_checkpoint(path, weights_only=False)
        if trainer.is_global_zero:
            self._prune(path.parent)
        for listener in self.listeners:
            listener(trainer, path)

    def _time_is_up(self, trainer: L.Trainer) -> bool:
        if self.every_minutes is None:
            return False
        up = time.monotonic() - self._saved_at > 60 * self.every_minutes
        return bool(trainer.strategy.broadcast(up)) if trainer.world_size > 1 else up

    def _leave_if_asked(self, trainer: L.Trainer, log_first: bool = False) -> None:
        code = self.stop.exit_code
        if trainer.world_size > 1:
            # one rank may see its signal a step before another; all leave together
            asked = trainer.strategy.reduce_boolean_decision(code is not None, all=False)
            code = (code or 143) if asked else None
        if code is None:
            return
        # on_exception saves: the state is whole here, and an EMA swapped in for validation is swapped back before
        self._at_boundary = True
        if log_first:
            trainer._logger_connector.update_train_step_metrics()  # Lightning logs this batch after its hooks
        raise Interrupted(code)


def is_trial(trainer: L.Trainer) -> bool:
    """Whether this is a fast_dev_run, which leaves no files."""
    return bool(getattr(trainer, "fast_dev_run", False))


def check_disk(folder: Path, module: L.LightningModule, copies: int) -> None:
    """Compare the free room with what a run's checkpoints will take.

    Raises:
        OSError: when not even two checkpoints fit (the one kept and the one being written).
    """
    trainable = sum(p.numel() * p.element_size() for p in module.parameters() if p.requires_grad)
    backbones = frozen_modules({"": module}).values()
    left_out = {id(p) for backbone in backbones for p in backbone.parameters() if not p.requires_grad}
    kept = [t for t in [*module.parameters(), *module.buffers()] if id(t) not in left_out]
    everything = sum(t.numel() * t.element_size() for t in kept)
    one = everything + 2 * trainable  # Adam holds two moments of each trainable weight
    existing = next(parent for parent in [folder, *folder.absolute().parents] if parent.exists())
    free = shutil.disk_usage(existing).free
    if free < 2 * one:
        raise OSError(
            f"too little room in {folder}: one checkpoint takes about {one / 2**20:.0f} MiB, two must fit, "
            f"{free / 2**20:.0f} MiB are free; set trainer.default_root_dir to another disk"
        )
    if free < copies * one:
        said = "%s has %.1f GiB free; %d checkpoints of about %.2f GiB will not all fit"
        log.warning(said, folder, free / 2**30, copies, one / 2**30)
