"""Lower learning rates when a metric stops improving, on top of any schedule."""

from __future__ import annotations

import logging
import math
from typing import Any, Literal

import lightning as L

from zoo.training.callbacks.guard import scale_rates

log = logging.getLogger(__name__)


class Plateau(L.Callback):
    """Multiplies the learning rates by a factor after validations without improvement.

    torch's ReduceLROnPlateau sets the rates themselves, and any other schedule would overwrite it one step later. To
    end training instead, Lightning's EarlyStopping serves as it is, with validations by batches and over a resume:

        - class_path: lightning.pytorch.callbacks.EarlyStopping
          init_args: {monitor: val/loss, patience: 10}

    Args:
        monitor: metric key, e.g. `val/loss`.
        factor: of the rates on a plateau, in (0, 1).
        patience: validations in a row without improvement that make a plateau.
        mode: "min" or "max".
        min_delta: a change of less is no improvement, >= 0.
        floor: smallest multiplier.

    Raises:
        ValueError: when a number is out of its range; in validation, when the metric is not logged.
    """

    def __init__(
        self,
        monitor: str = "val/loss",
        factor: float = 0.5,
        patience: int = 10,
        mode: Literal["min", "max"] = "min",
        min_delta: float = 0.0,
        floor: float = 0.01,
    ) -> None:
        if not 0 < factor < 1 or not 0 < floor <= 1 or patience < 1 or min_delta < 0:
            raise ValueError("Plateau: 0 < factor < 1, 0 < floor <= 1, patience >= 1 and min_delta >= 0 are needed")
        if mode not in ("min", "max"):
            raise ValueError(f"Plateau: mode is 'min' or 'max', not {mode!r}")
        self.monitor = monitor
        self.factor = factor
        self.patience = patience
        self.sign = 1.0 if mode == "min" else -1.0
        self.min_delta = min_delta
        self.floor = floor
        self.multiplier = 1.0
        self._best = math.inf
        self._waited = 0

    @property
    def state_key(self) -> str:
        """Same key whatever the arguments, so that a resume may change them."""
        return "Plateau"

    def state_dict(self) -> dict[str, Any]:
        """Multiplier and counters."""
        return {"multiplier": self.multiplier, "best": self._best, "waited": self._waited}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore multiplier and counters."""
        self.multiplier, self._best, self._waited = (state_dict[key] for key in ("multiplier", "best", "waited"))

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Hook the multiplier into the optimizers."""
        for optimizer in trainer.optimizers:
            scale_rates(optimizer, lambda: self.multiplier)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Look at the metric."""
        if trainer.sanity_checking or trainer.state.fn != "fit":
            return
        if self.monitor not in trainer.callback_metrics:
            known = ", ".join(sorted(map(str, trainer.callback_metrics))) or "none"
            raise ValueError(f"Plateau: monitor {self.monitor!r} is not logged; logged metrics: {known}")
        score = self.sign * float(trainer.callback_metrics[self.monitor])
        if score < self._best - self.min_delta:
            self._best, self._waited = score, 0
            return
        self._waited += 1
        if self._waited >= self.patience:
            self._waited = 0
            self.multiplier = max(self.floor, self.multiplier * self.factor)
            log.warning(
                "%s did not improve in %d validations: learning rates are now times %.3g",
                self.monitor,
                self.patience,
                self.multiplier,
            )

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Log the multiplier."""
        pl_module.log("train/plateau_lr_multiplier", self.multiplier, on_step=True, on_epoch=False)
