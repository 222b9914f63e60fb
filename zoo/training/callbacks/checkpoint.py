"""Checkpoints while training: when they are written, which are kept, and how a signal ends a run."""

from __future__ import annotations

import difflib
import logging
import math
import re
import time
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning.pytorch.callbacks import Checkpoint

from zoo.common.atomic_files import delete_temporary_files
from zoo.common.checks import check_at_least, check_one_of
from zoo.runs import checkpoints as files
from zoo.runs.checkpoints import parse_score
from zoo.runs.run_folder import run_folder
from zoo.training.signals import Interrupted, StopSignal

log = logging.getLogger(__name__)

# Names of the files that are deleted when better or newer ones come; all others are the user's.
_LAST_NAME = re.compile(r"step_\d+\.ckpt")
_BEST_NAME = re.compile(r"best-step_\d+--?\d+(\.\d+)?(e[+-]\d+)?\.ckpt")


class AtomicCheckpointIO(TorchCheckpointIO):
    """Lightning's checkpoint I/O with our files: written aside, synced, renamed; read with weights_only."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        """Write a checkpoint so that a kill or a full disk costs nothing that was saved."""
        files.save_checkpoint(checkpoint, Path(path))

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        """Read a checkpoint of tensors and plain values; pickled objects are refused whatever `weights_only` says."""
        return files.load_checkpoint(Path(path), map_location or "cpu")


class Checkpoints(Checkpoint):
    """Saves by steps, by time and by metric; keeps the last ones and the best ones; ends a run on a signal.

    A step whose validation is due is saved after it, so a resume after a kill repeats it. A stop signal saves at once
    and leaves that validation out, unless it is the last. Names carry the number of steps trained:
    `step_00001000.ckpt`, `best-step_00001000-0.512345.ckpt`. The run folder's files are all that decisions rest on.

    Args:
        every_n_steps: save after every so many steps; None for never.
        every_minutes: save when so much time has passed since the last save; None for never.
        monitor: metric key, e.g. `val/mel_l1`, whose best values are kept; None for none.
        mode: "min" or "max".
        save_best: how many best checkpoints to keep.
        keep_last: how many of the newest to keep.
    """

    def __init__(
        self,
        every_n_steps: int | None = 1000,
        every_minutes: float | None = 30.0,
        monitor: str | None = None,
        mode: str = "min",
        save_best: int = 1,
        keep_last: int = 2,
    ) -> None:
        check_one_of(("min", "max"), mode=mode)
        check_at_least(1, keep_last=keep_last, every_n_steps=1 if every_n_steps is None else every_n_steps)
        self.every_n_steps = every_n_steps
        self.every_minutes = every_minutes
        self.monitor = monitor
        self.mode = mode
        self.save_best = save_best
        self.keep_last = keep_last
        self.stop = StopSignal()
        self._saved_step = -1
        self._saved_at = 0.0
        self._save_due = False  # after the validation that is due

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Take over the stop signals and sweep what a killed process left half-written."""
        folder = run_folder(trainer)
        if stage != "fit":
            return
        self.stop.install()
        if trainer.is_global_zero:
            folder.mkdir(parents=True, exist_ok=True)
            for path in delete_temporary_files(folder):
                log.info("removed %s, left by a killed process", path.name)

    def on_sanity_check_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Take the signals back from Lightning, which registers its own handlers just before this."""
        self.stop.install()

    def on_sanity_check_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Find a mistyped monitor before the first step."""
        names = sorted(getattr(pl_module, "logged_metric_names", ()))
        if self.monitor is None or not names or self.monitor in names:
            return
        if nearest := difflib.get_close_matches(self.monitor, names, n=1, cutoff=0.8):
            raise ValueError(
                f"checkpoints.monitor: no validation gives {self.monitor}: did you mean {nearest[0]}? "
                f"(values: {', '.join(names)})"
            )
        log.warning("checkpoints.monitor: %s is none of the values so far (%s)", self.monitor, ", ".join(names))

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Take the signals back; start the clock."""
        self.stop.install()
        self._saved_at = time.monotonic()
        self._saved_step = trainer.global_step or -1
        repair_restart(trainer)
        self._finish_step(trainer, self._synchronize(trainer)[1])

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *_: Any) -> None:
        """Save when it is time, but after a validation that is due; after a stop signal save and exit."""
        if trainer.fit_loop.epoch_loop._should_accumulate():
            return  # the gradients gathered so far belong to a step under way
        time_is_up, exit_code = self._synchronize(trainer)
        by_steps = self.every_n_steps is not None and trainer.global_step % self.every_n_steps == 0
        self._save_due = by_steps or time_is_up or is_last_batch(trainer)
        loop: Any = trainer.fit_loop
        validation_is_due = loop.epoch_loop._should_check_val_fx(loop._data_fetcher)
        if not validation_is_due or (exit_code and not is_last_batch(trainer)):
            self._finish_step(trainer, exit_code, log_first=True)

    def on_validation_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *args: Any) -> None:
        """Save and exit in a validation but the last; several processes finish it, as their batches may differ."""
        if trainer.world_size > 1 or trainer.state.fn != "fit" or is_last_batch(trainer):
            return
        if self.stop.exit_code and not trainer.fit_loop.epoch_loop._should_accumulate():
            self._finish_step(trainer, self.stop.exit_code)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Keep this state when its metric is among the best; save and exit as after a step without validation."""
        if trainer.sanity_checking or trainer.state.fn != "fit" or is_fast_dev_run(trainer):
            return
        if self.monitor is not None and self.save_best > 0:
            self._save_best(trainer, self.monitor)
        if not trainer.fit_loop.epoch_loop._should_accumulate():
            self._save_due = self._save_due or is_last_batch(trainer)  # a callback may have stopped the training
            self._finish_step(trainer, self._synchronize(trainer)[1])

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Save the final state."""
        self._save_last(trainer)

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Note what the scores of the best checkpoints are, and whether gathered gradients are lost at a resume."""
        checkpoint["best_by"] = [self.monitor, self.mode]
        checkpoint["is_accumulating"] = trainer.fit_loop.epoch_loop._should_accumulate()

    def on_load_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Make a checkpoint that was saved after a validation look like one saved before it, in its counts of batches.

        From the first, Lightning decides by the resume's own `val_check_interval` whether the batch is done, and with
        another interval trains a batch twice. From the second it continues with the next batch. Best checkpoints of
        another metric are refused: the scores in their names would be compared with this one's.
        """
        if trainer.state.fn != "fit":
            return
        progress = checkpoint["loops"]["fit_loop"]["epoch_loop.batch_progress"]
        for counts in (progress["total"], progress["current"]):
            counts["completed"] = max(counts["ready"] - 1, 0)
        if checkpoint.get("is_accumulating") and trainer.is_global_zero:
            log.warning("resumed between accumulated batches, whose gradients are not saved: the result is another one")
        monitor, mode = checkpoint.get("best_by", (self.monitor, self.mode))
        if self.monitor and (monitor, mode) != (self.monitor, self.mode) and self._best_paths(run_folder(trainer)):
            raise ValueError(
                f"best-step_*.ckpt in {run_folder(trainer)} are the best by {monitor} ({mode}), not by {self.monitor} "
                f"({self.mode}): move or delete them, or resume with the former checkpoints.monitor and mode"
            )

    def teardown(self, *_: Any, **__: Any) -> None:
        """Give the signals back."""
        self.stop.uninstall()

    on_exception = teardown  # after which Lightning calls no teardown

    def _synchronize(self, trainer: L.Trainer) -> tuple[bool, int]:
        """Return whether it is time to save, and the exit code of a stop signal or 0, the same on all ranks."""
        minutes = (time.monotonic() - self._saved_at) / 60
        time_is_up = trainer.is_global_zero and self.every_minutes is not None and minutes > self.every_minutes
        exit_code = self.stop.exit_code or 0
        if trainer.world_size == 1:
            return time_is_up, exit_code
        numbers = torch.tensor([int(time_is_up), exit_code], device=trainer.strategy.root_device)
        time_is_up, exit_code = trainer.strategy.reduce(numbers, reduce_op="max").tolist()
        return bool(time_is_up), exit_code

    def _finish_step(self, trainer: L.Trainer, exit_code: int, log_first: bool = False) -> None:
        if self._save_due or exit_code:
            self._save_due = False
            self._save_last(trainer)
        if exit_code:
            if log_first:
                trainer._logger_connector.update_train_step_metrics()  # Lightning logs this batch after its hooks
            raise Interrupted(exit_code)

    def _save_last(self, trainer: L.Trainer) -> None:
        """Write `step_<steps>.ckpt` unless it is written, and delete all but the last `keep_last` of its kind."""
        if trainer.global_step != self._saved_step:
            self._save(trainer, run_folder(trainer) / f"step_{trainer.global_step:08d}.ckpt")
            self._saved_step, self._saved_at = trainer.global_step, time.monotonic()

    def _save_best(self, trainer: L.Trainer, monitor: str) -> None:
        if monitor not in trainer.callback_metrics:
            names = ", ".join(sorted(map(str, trainer.callback_metrics))) or "none"
            raise ValueError(f"Checkpoints: monitor {monitor!r} is not logged; logged metrics: {names}")
        score = float(f"{trainer.callback_metrics[monitor]:.6g}")  # as the names have it
        scores = [parse_score(path) for path in self._best_paths(run_folder(trainer))[: self.save_best]]
        is_better = len(scores) < self.save_best or (score < scores[-1] if self.mode == "min" else score > scores[-1])
        if trainer.strategy.broadcast(math.isfinite(score) and is_better):
            self._save(trainer, run_folder(trainer) / f"best-step_{trainer.global_step:08d}-{score:.6g}.ckpt")

    def _save(self, trainer: L.Trainer, path: Path) -> None:
        if is_fast_dev_run(trainer):
            return
        trainer.save_checkpoint(path, weights_only=False)
        if trainer.is_global_zero:
            saved = [each for each in files.find_checkpoints(path.parent) if _LAST_NAME.fullmatch(each.name)]
            # those of later steps do not count: the training was resumed from one before them, as they are damaged
            outdated = [each for each in saved if files.parse_step(each) <= trainer.global_step][self.keep_last :]
            if self.monitor is not None and self.save_best > 0:
                outdated += self._best_paths(path.parent)[self.save_best :]
            for old in outdated:
                files.delete_checkpoint(old)

    def _best_paths(self, folder: Path) -> list[Path]:
        paths = [path for path in folder.glob("best-step_*.ckpt") if _BEST_NAME.fullmatch(path.name)]
        return sorted(paths, key=parse_score, reverse=self.mode == "max")


def find_checkpoints_callback(trainer: L.Trainer) -> Checkpoints | None:
    """Return the callback that saves a trainer's checkpoints."""
    return next((each for each in trainer.checkpoint_callbacks if isinstance(each, Checkpoints)), None)


def is_fast_dev_run(trainer: L.Trainer) -> bool:
    """Return whether this is a fast_dev_run, which leaves no files."""
    return bool(getattr(trainer, "fast_dev_run", False))


def is_last_batch(trainer: L.Trainer) -> bool:
    """Return whether training ends with this batch: its state is saved before Lightning counts the epoch as done."""
    loop: Any = trainer.fit_loop
    epoch_ends = loop.epoch_loop.batch_progress.is_last_batch
    last_epoch = loop.max_epochs not in (None, -1) and loop.epoch_progress.current.processed + 1 >= loop.max_epochs
    stops_early = trainer.should_stop and loop._can_stop_early
    return trainer.global_step == trainer.max_steps or (epoch_ends and last_epoch) or stops_early


def repair_restart(trainer: L.Trainer) -> None:
    """Mend two states that Lightning restores wrongly; without it, a second resume from such a run repeats an epoch."""
    loop = trainer.fit_loop
    if trainer.global_step == 0:  # saved before the first batch: taken for the end of one
        loop.epoch_loop.restarting = False
    at_end = loop.epoch_loop.restarted_on_train_batch_end and loop.epoch_loop.batch_progress.is_last_batch
    if at_end and loop.restarted_mid_epoch:  # saved after the last batch of an epoch: the next one is never begun
        loop.reset_restart_stage()
