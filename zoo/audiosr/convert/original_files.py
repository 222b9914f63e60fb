"""The original's weight files, written beside our checkpoints while training."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import lightning as L

from zoo.audiosr.convert.write import FINAL, from_ours, layout_of, original_name
from zoo.audiosr.task import DiffusionTask
from zoo.runs.checkpoints import find_checkpoints
from zoo.runs.run_folder import run_folder
from zoo.training.callbacks.checkpoint import is_fast_dev_run
from zoo.training.strategies.sharding import is_sharded

log = logging.getLogger(__name__)

FOLDER = "checkpoints"


class OriginalFiles(L.Callback):
    """Keeps `checkpoints/` of the run folder as ProjectLily's trainers did, beside our checkpoints.

    Each checkpoint that is kept has its `step_<n>.pt` or `best_step_<n>.pt` with weights and averages; at the end of
    training there is `final_ema.pt`. They are as large as the whole model, autoencoder twice. A run does not resume
    from them: that is what the checkpoints are for.

    Under a strategy that shards weights nothing is written: convert a checkpoint instead.

    Raises:
        ValueError: as training begins, when the originals have no such net.
    """

    def __init__(self) -> None:
        self._due = False
        self._ended = False

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Refuse a net that the files cannot hold."""
        if not isinstance(pl_module, DiffusionTask):
            raise ValueError(f"OriginalFiles is for zoo.audiosr.DiffusionTask, not {type(pl_module).__name__}")
        if pl_module.latent_scale == "auto":
            raise ValueError("OriginalFiles: ProjectLily's files hold no latent_scale; train with latent_scale: 1.0")
        layout_of(pl_module.net, pl_module.autoencoder.net, ".pt")

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Note that a checkpoint is being written."""
        self._due = True

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Write what new checkpoints hold: they are complete now."""
        self._follow(trainer)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Note that training came to its end."""
        self._ended = True

    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Write what the last checkpoints hold."""
        self._follow(trainer)

    def _follow(self, trainer: L.Trainer) -> None:
        """Make the folder hold the files of the checkpoints that are there."""
        if not self._due or is_fast_dev_run(trainer) or is_sharded(trainer):
            return
        self._due = False
        if not trainer.is_global_zero:
            return
        run = run_folder(trainer)
        checkpoints = find_checkpoints(run)
        wanted = {run / FOLDER / original_name(path): path for path in checkpoints}
        for file, checkpoint in wanted.items():
            if not file.exists():
                self._write(checkpoint, file)
        for file in [*(run / FOLDER).glob("step_*.pt"), *(run / FOLDER).glob("best_step_*.pt")]:
            if file not in wanted:
                file.unlink()
        if self._ended and checkpoints:
            self._write(checkpoints[0], run / FOLDER / FINAL)

    def _write(self, checkpoint: Path, file: Path) -> None:
        for note in from_ours(checkpoint, file)["notes"]:
            log.info("%s: %s", file.name, note)
