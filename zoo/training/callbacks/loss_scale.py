"""How the loss is scaled in float16."""

from __future__ import annotations

import logging

import lightning as L

from zoo.common.checks import check_above, check_at_least, check_between, check_positive

log = logging.getLogger(__name__)


class LossScale(L.Callback):
    """Sets how the loss is scaled in float16, where small gradients would vanish otherwise.

    A resumed run continues with its own scale. `train/amp_scale` shows it; it falls by itself while gradients overflow.
    In precisions that need no scale (the CPU takes bf16 in place of fp16) nothing is set.

    Args:
        init_scale: of the first step, > 0.
        growth_factor: of the scale after `growth_interval` steps without overflow, > 1.
        backoff_factor: of the scale after an overflow, in (0, 1).
        growth_interval: steps.

    Raises:
        ValueError: when a number is out of its range.
    """

    def __init__(
        self,
        init_scale: float = 65536.0,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
    ) -> None:
        check_positive(init_scale=init_scale)
        check_above(1, growth_factor=growth_factor)
        check_between(0, 1, backoff_factor=backoff_factor)
        check_at_least(1, growth_interval=growth_interval)
        self.state = {
            "scale": init_scale,
            "growth_factor": growth_factor,
            "backoff_factor": backoff_factor,
            "growth_interval": growth_interval,
        }

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Set the scaler, before a GAN copies it for its discriminators and a checkpoint restores it."""
        if stage != "fit":
            return
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        if scaler is None or not scaler.is_enabled():
            log.info("LossScale: precision %s scales no loss", trainer.precision)
            return
        scaler.load_state_dict(scaler.state_dict() | self.state)
