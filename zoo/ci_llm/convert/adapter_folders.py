"""The original's checkpoint folders and PEFT folders, written with the checkpoints of a training."""

from __future__ import annotations

import logging
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import lightning as L
from safetensors import SafetensorError, safe_open

from zoo.ci_llm.convert.checkpoints import adapters_of
from zoo.ci_llm.convert.read import BACKBONE, META, PEFT_WEIGHTS, agent_name, read_json
from zoo.ci_llm.convert.write import write_original, write_peft
from zoo.ci_llm.task import CrowdTask
from zoo.common.atomic_files import delete_path
from zoo.common.configs import load_yaml
from zoo.runs.checkpoints import parse_step
from zoo.runs.run_folder import CONFIG_NAME, run_folder
from zoo.training.callbacks.checkpoint import is_fast_dev_run
from zoo.training.callbacks.ema import EMA
from zoo.training.strategies.sharding import is_sharded

log = logging.getLogger(__name__)

STEP, FINAL = "checkpoint_step_", "final_checkpoint"
PEFT_STEP, PEFT_FINAL = "peft_step_", "peft_final"
_FOLDER = re.compile(rf"({STEP}|{PEFT_STEP})\d+|{FINAL}|{PEFT_FINAL}")


class AdapterFolders(L.Callback):
    """Writes the adapters of each checkpoint in the original's layout and as PEFT folders, into the run folder.

    `checkpoint_step_<n>/` and, at the end of training, `final_checkpoint/` hold adapters, tokenizer, configuration and
    progress; `peft_step_<n>/agent<k>/` and `peft_final/agent<k>/` the same adapters for peft. What the run wrote for
    deleted checkpoints is deleted when the next batch begins or the training ends. A run does not resume from these
    folders: that is what the checkpoints are for.

    With rsLoRA there are PEFT folders alone. A strategy that shards weights writes nothing: convert a checkpoint
    instead.

    Args:
        peft: write PEFT folders too.

    Raises:
        ValueError: as training begins, when the run folder holds such a folder of another program, or the run has EMA,
            whose averages the folders would lack.
    """

    def __init__(self, peft: bool = True) -> None:
        self.peft = peft
        self._steps: list[int] = []  # whose folders this run wrote
        self._is_outdated = False  # folders may belong to deleted checkpoints

    def state_dict(self) -> dict[str, Any]:
        """The steps whose folders the run wrote; `on_save_checkpoint` adds that of the checkpoint itself."""
        return {"steps": self._steps}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the steps."""
        self._steps = list(state_dict["steps"])

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Refuse a run folder with adapters of another program, which would be replaced or deleted, and EMA."""
        if any(isinstance(callback, EMA) for callback in trainer.callbacks):  # type: ignore[attr-defined]
            raise ValueError(
                "AdapterFolders writes no averages: leave it out beside EMA, and use zoo convert on the run"
            )
        if not self._writes(trainer, pl_module):
            return
        for path in sorted(run_folder(trainer).glob("*")):
            if _FOLDER.fullmatch(path.name) and not self._is_own(path):
                raise ValueError(f"{path} is another program's: train into another folder, or move it away")

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Write the folders of this step, once, however many checkpoints it has."""
        if not self._writes(trainer, pl_module):
            return
        self._is_outdated = True
        step = trainer.global_step
        if step not in self._steps:
            self._steps.append(step)
            self._write(trainer, pl_module, f"{STEP}{step}", f"{PEFT_STEP}{step}")

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Delete outdated folders: checkpoints are written, and older ones deleted, only after `on_save_checkpoint`."""
        self._delete_outdated(trainer)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Write the final folders."""
        if self._writes(trainer, pl_module):
            self._write(trainer, pl_module, FINAL, PEFT_FINAL, completed=True)

    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Delete outdated folders after the last save."""
        self._delete_outdated(trainer)

    def _writes(self, trainer: L.Trainer, pl_module: L.LightningModule) -> bool:
        if not isinstance(pl_module, CrowdTask):
            raise ValueError(f"AdapterFolders is for zoo.ci_llm.CrowdTask, not {type(pl_module).__name__}")
        return not is_sharded(trainer) and trainer.is_global_zero and not is_fast_dev_run(trainer)

    def _is_own(self, path: Path) -> bool:
        """Whether a run wrote a folder: it is recorded, or its files name the backbone."""
        if path.name.startswith(STEP) or path.name == FINAL:
            return (path / META).is_file() and BACKBONE in read_json(path / META)
        recorded = {f"{PEFT_STEP}{step}" for step in self._steps} | ({PEFT_FINAL} if self._steps else set())
        if path.name in recorded or not self.peft:
            return True
        try:  # left by a kill before the checkpoint, or of a later step than the one that is resumed
            with safe_open(path / agent_name(0) / PEFT_WEIGHTS[0], framework="pt") as file:
                return BACKBONE in (file.metadata() or {})
        except (OSError, SafetensorError):
            return False

    def _write(self, trainer: L.Trainer, pl_module: Any, name: str, peft_name: str, **facts: bool) -> None:
        folder = run_folder(trainer)
        crowd = pl_module.crowd
        config = folder / CONFIG_NAME
        recipe = load_yaml(config.read_text(encoding="utf-8")) if config.is_file() else {}
        progress = {
            "epoch": trainer.current_epoch,
            "global_step": trainer.global_step,
            "config": {"model_name": crowd.backbone.source, **recipe},
            **facts,
        }
        adapters = adapters_of(crowd, progress, pl_module.tokenizer)
        if not adapters.rslora:
            write_original(folder / name, adapters)
        if self.peft:
            write_peft(folder / peft_name, replace(adapters, tokenizer=None))
        log.info("adapters of %d agents: %s", crowd.agents.count, folder / (peft_name if adapters.rslora else name))

    def _delete_outdated(self, trainer: L.Trainer) -> None:
        """Delete folders of steps without checkpoint."""
        if not self._is_outdated:
            return
        self._is_outdated = False
        folder = run_folder(trainer)
        remaining = {parse_step(path) for path in folder.glob("*.ckpt")}
        for step in set(self._steps) - remaining:
            self._steps.remove(step)
            for prefix in (STEP, PEFT_STEP):
                delete_path(folder / f"{prefix}{step}")
