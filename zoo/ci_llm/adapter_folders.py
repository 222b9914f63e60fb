"""The original's checkpoint folders and PEFT folders, written beside our checkpoints while training."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import lightning as L
import yaml

from zoo.atomic import remove
from zoo.ci_llm.convert_peft import write_peft
from zoo.ci_llm.folders import adapters_of, write_original
from zoo.ci_llm.task import CrowdTask
from zoo.training.checkpoint import SHARDING_STRATEGIES, is_trial
from zoo.training.checkpoint_files import step_of
from zoo.training.run import CONFIG_NAME, run_folder

log = logging.getLogger(__name__)

STEP = "checkpoint_step_"
FINAL = "final_checkpoint"
PEFT_STEP = "peft_step_"
PEFT_FINAL = "peft_final"


class AdapterFolders(L.Callback):
    """Writes the adapters of each checkpoint in the original's layout and as PEFT folders, into the run folder.

    `checkpoint_step_<n>/` and, at the end of training, `final_checkpoint/` hold adapters, tokenizer, configuration and
    progress; `peft_step_<n>/agent<k>/` and `peft_final/agent<k>/` the same adapters for peft. Folders of checkpoints
    that are no longer kept are deleted. A run does not resume from them: that is what the checkpoints are for.

    Under a strategy that shards weights nothing is written: convert a checkpoint instead.

    Args:
        peft: write PEFT folders too.
    """

    def __init__(self, peft: bool = True) -> None:
        self.peft = peft
        self._written = -1

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Write the folders of this step, once, however many checkpoints it has."""
        if trainer.global_step != self._written and self._writes(trainer, pl_module):
            self._written = trainer.global_step
            self._write(trainer, pl_module, f"{STEP}{trainer.global_step}", f"{PEFT_STEP}{trainer.global_step}", False)
            self._sweep(run_folder(trainer), trainer.global_step)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Write the final folders."""
        if self._writes(trainer, pl_module):
            self._write(trainer, pl_module, FINAL, PEFT_FINAL, True)

    def _writes(self, trainer: L.Trainer, pl_module: L.LightningModule) -> bool:
        if not isinstance(pl_module, CrowdTask):
            raise ValueError(f"AdapterFolders is for zoo.ci_llm.task.CrowdTask, not {type(pl_module).__name__}")
        if type(trainer.strategy).__name__ in SHARDING_STRATEGIES:
            return False
        return trainer.is_global_zero and not is_trial(trainer)

    def _write(self, trainer: L.Trainer, pl_module: Any, name: str, peft_name: str, completed: bool) -> None:
        folder = run_folder(trainer)
        crowd = pl_module.crowd
        config = folder / CONFIG_NAME
        recipe = yaml.safe_load(config.read_text(encoding="utf-8")) if config.is_file() else {}
        progress = {
            "epoch": trainer.current_epoch,
            "global_step": trainer.global_step,
            "config": {"model_name": crowd.backbone.source, **recipe},
            **({"completed": True} if completed else {}),
        }
        adapters = adapters_of(crowd, progress, pl_module.tokenizer)
        write_original(folder / name, adapters)
        if self.peft:
            write_peft(folder / peft_name, replace(adapters, progress={}, tokenizer=None))
        log.info("adapters of %d agents: %s", crowd.agents.count, folder / name)

    def _sweep(self, folder: Path, step: int) -> None:
        """Delete folders of steps whose checkpoints are gone; this step's is about to be written."""
        kept = {step, *(step_of(path) for path in folder.glob("*.ckpt"))}
        for prefix in (STEP, PEFT_STEP):
            for path in folder.glob(f"{prefix}*"):
                number = path.name.removeprefix(prefix)
                if number.isdigit() and int(number) not in kept:
                    remove(path)
