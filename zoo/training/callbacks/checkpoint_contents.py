"""The contents of a run's checkpoints: descriptions of the modules, and records instead of frozen weights."""

from __future__ import annotations

import copy
import logging
from typing import Any

import lightning as L

from zoo.runs import frozen, frozen_files
from zoo.runs.frozen import FrozenModule
from zoo.runs.run_folder import run_folder
from zoo.training.callbacks.checkpoint import is_fast_dev_run
from zoo.training.hyperparameters import apply_hyperparameters, split_optimizers

log = logging.getLogger(__name__)


class CheckpointContents(L.Callback):
    """Makes checkpoints usable without their run folder, and lets a resume take hyper-parameters from its own config.

    A checkpoint holds `task.specs` under `zoo`, and a record of each frozen module instead of its weights. Weights that
    no hub has are copied into the run folder.
    """

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Put frozen modules in eval mode, hash and copy them before precision changes their weights."""
        for path, module in frozen.frozen_modules({"": pl_module}).items():
            if not module.is_frozen:
                continue
            module.train(stage == "fit")  # a subclass sets up its modes; frozen weights stay in eval mode
            omitted = module.frozen_state().keys()
            trained = [name for name, weight in module.named_parameters() if name in omitted and weight.requires_grad]
            if trained:
                raise ValueError(
                    f"{path}.{trained[0]} is trained, and frozen_state() of {type(module).__name__} names it: "
                    "its changes would not be saved"
                )
        if any(getattr(callback, "save_weights_only", False) for callback in trainer.checkpoint_callbacks):
            raise ValueError("save_weights_only: such a checkpoint cannot be loaded; `zoo export` writes weights alone")
        if stage == "fit" and trainer.checkpoint_callbacks and not is_fast_dev_run(trainer):
            save_frozen_modules(trainer, frozen.frozen_modules({"": pl_module}), unless_resuming=True)

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Add the descriptions of the modules; replace frozen weights by records."""
        checkpoint["scheduler_classes"] = [type(each.scheduler).__name__ for each in trainer.lr_scheduler_configs]
        if (specs := getattr(pl_module, "specs", None)) is not None:
            checkpoint["zoo"] = specs
        modules = frozen.frozen_modules({"": pl_module})
        if records := save_frozen_modules(trainer, modules):
            omitted = frozen.frozen_keys(modules)
            state = checkpoint["state_dict"]
            checkpoint["state_dict"] = {key: value for key, value in state.items() if key not in omitted}
            checkpoint["frozen"] = records

    def on_load_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Refuse a checkpoint of other modules; give one to resume the config's hyper-parameters."""
        check_checkpoint(pl_module, checkpoint, resumes=trainer.state.fn == "fit")
        if trainer.state.fn != "fit":
            return
        optimizers, schedulers = split_optimizers(pl_module.configure_optimizers())
        names = getattr(pl_module, "optimizer_names", ())
        changes = apply_hyperparameters(checkpoint, optimizers, schedulers, names)
        if changes is not None and trainer.is_global_zero:
            log.warning("resumed with %s: this is no longer the run that was interrupted", changes)
        save_frozen_modules(trainer, frozen.frozen_modules({"": pl_module}))  # the run may continue in another folder


def save_frozen_modules(
    trainer: L.Trainer, modules: dict[str, FrozenModule], unless_resuming: bool = False
) -> dict[str, Any]:
    """Copy local frozen modules into the run folder, or only where it has no checkpoints; return their records."""
    records = frozen.frozen_records(modules)
    if records:
        folder = run_folder(trainer)
        if trainer.is_global_zero and not (unless_resuming and next(folder.glob("*.ckpt"), None)):
            frozen_files.save_copies(modules, records, folder)
    return records


def check_checkpoint(task: Any, checkpoint: dict[str, Any], resumes: bool) -> None:
    """Refuse a checkpoint of other modules (another mel, another net), or one that cannot be resumed, with ValueError.

    Memory options and sources of frozen modules are not compared; their hashes are.
    """
    if resumes and not checkpoint.get("optimizer_states"):
        raise ValueError("the checkpoint holds weights without optimizers: begin with them by --init_from")
    modules = frozen.frozen_modules({"": task})
    if "zoo" in checkpoint and getattr(task, "specs", None) is not None:
        specs = [copy.deepcopy(each["components"]) for each in (checkpoint["zoo"], task.specs)]
        for spec in specs:
            for path in (path for path, module in modules.items() if module.is_frozen):
                for key in ("source", "revision", "config", "gradient_checkpointing"):
                    (frozen_files.find_init_args(spec, path) or {}).pop(key, None)
        saved, current = specs
        for name in task.inference_modules:
            if name in saved and saved[name] != current[name]:
                raise ValueError(
                    f"the checkpoint's {name} differs from the config's: "
                    f"{find_first_difference(saved[name], current[name])}; "
                    "use the run's own config.yaml, or init_from: to start anew from its weights"
                )
    frozen_files.verify_frozen_weights(modules, checkpoint.get("frozen", {}), "the checkpoint")


def find_first_difference(saved: Any, current: Any, path: str = "") -> str:
    """Describe the first key in which two descriptions differ, with both values."""
    if isinstance(saved, dict) and isinstance(current, dict):
        for key in dict.fromkeys([*saved, *current]):
            if saved.get(key) != current.get(key):
                return find_first_difference(saved.get(key), current.get(key), f"{path}.{key}" if path else key)
    return f"{path} is {saved!r} in the checkpoint and {current!r} in the config"
