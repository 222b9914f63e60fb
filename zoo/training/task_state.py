"""The contents of a task's checkpoint: descriptions of its modules, and records instead of frozen weights."""

from __future__ import annotations

import copy
import logging
from typing import Any, ClassVar

import lightning as L

from zoo.runs import frozen
from zoo.runs.run_folder import run_folder
from zoo.training.hyperparameters import apply_hyperparameters, split_optimizers

log = logging.getLogger(__name__)


class CheckpointedTask(L.LightningModule):
    """Writes checkpoints that are usable without their run folder, and refuses those of other modules.

    Attributes:
        specs: how the modules were built, set by the command line.
    """

    inference_modules: ClassVar[tuple[str, ...]]
    optimizer_names: ClassVar[tuple[str, ...]] = ()
    """Names of several optimizers, for logs and messages."""

    def __init__(self) -> None:
        super().__init__()
        self.specs: dict[str, Any] | None = None

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the descriptions of the modules; replace frozen weights by records."""
        configs = self.trainer.lr_scheduler_configs
        checkpoint["scheduler_classes"] = [type(config.scheduler).__name__ for config in configs]
        if self.specs is not None:
            checkpoint["zoo"] = self.specs
        records = self.save_frozen_modules()
        if records:
            omitted = frozen.frozen_keys(frozen.frozen_modules({"": self}))
            state = checkpoint["state_dict"]
            checkpoint["state_dict"] = {key: value for key, value in state.items() if key not in omitted}
            checkpoint["frozen"] = records

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuse a checkpoint of other modules (another mel, another net), or one that cannot be resumed."""
        is_fit = self.trainer.state.fn == "fit"
        if is_fit and not checkpoint.get("optimizer_states"):
            raise ValueError("the checkpoint holds weights without optimizers: begin with them by --init_from")
        if is_fit:
            self._apply_hyperparameters(checkpoint)
        modules = frozen.frozen_modules({"": self})
        self._check_module_specs(checkpoint.get("zoo"), [path for path, module in modules.items() if module.is_frozen])
        frozen.verify_frozen_weights(modules, checkpoint.get("frozen", {}), "the checkpoint")
        if is_fit:
            self.save_frozen_modules()  # the run may continue in another folder

    def save_frozen_modules(self, unless_resuming: bool = False) -> dict[str, Any]:
        """Copy local frozen modules into the run folder, or only where it has no checkpoints; return their records."""
        modules = frozen.frozen_modules({"": self})
        records = frozen.frozen_records(modules)
        if records:
            folder = run_folder(self.trainer)
            if self.trainer.is_global_zero and not (unless_resuming and next(folder.glob("*.ckpt"), None)):
                frozen.save_copies(modules, records, folder)
        return records

    def _apply_hyperparameters(self, checkpoint: dict[str, Any]) -> None:
        optimizers, schedulers = split_optimizers(self.configure_optimizers())
        changes = apply_hyperparameters(checkpoint, optimizers, schedulers, self.optimizer_names)
        if changes is not None and self.trainer.is_global_zero:
            log.warning("resumed with %s: this is no longer the run that was interrupted", changes)

    def _check_module_specs(self, saved: dict[str, Any] | None, frozen_paths: list[str]) -> None:
        """Compare descriptions without memory options and sources of frozen modules, whose hashes are compared."""
        if saved is None or self.specs is None:
            return
        saved_spec, current_spec = copy.deepcopy(saved["components"]), copy.deepcopy(self.specs["components"])
        for spec in (saved_spec, current_spec):
            for path in frozen_paths:
                for key in ("source", "revision", "config", "gradient_checkpointing"):
                    (frozen.find_init_args(spec, path) or {}).pop(key, None)
        for name in self.inference_modules:
            saved_module = saved_spec.get(name)
            if name in saved_spec and saved_module != current_spec[name]:
                difference = find_first_difference(saved_module, current_spec[name])
                raise ValueError(
                    f"the checkpoint's {name} differs from the config's: {difference}; "
                    "use the run's own config.yaml, or init_from: to start anew from its weights"
                )


def find_first_difference(saved: Any, current: Any, path: str = "") -> str:
    """Describe the first key in which two descriptions differ, with both values."""
    if isinstance(saved, dict) and isinstance(current, dict):
        for key in dict.fromkeys([*saved, *current]):
            if saved.get(key) != current.get(key):
                return find_first_difference(saved.get(key), current.get(key), f"{path}.{key}" if path else key)
    return f"{path} is {saved!r} in the checkpoint and {current!r} in the config"
