"""What a run is about, on rank zero, before its first step: the numbers that explain most surprises later."""

from __future__ import annotations

import logging
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback

from zoo.common.registry import public_name
from zoo.training.hardware import describe_device

log = logging.getLogger(__name__)


class Banner(Callback):
    """Logs devices, precision, effective batch and parameter counts when a fit starts."""

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Gather every rank's device name and log the facts once."""
        here = describe_device(trainer.strategy.root_device)
        places: list[Any] = [here]
        if trainer.world_size > 1:
            import torch.distributed as dist

            places = [None] * trainer.world_size
            dist.all_gather_object(places, here)
        if trainer.is_global_zero:
            for key, value in facts(trainer, pl_module, places).items():
                log.info("%-16s %s", key, value)


def facts(trainer: L.Trainer, module: L.LightningModule, places: list[str]) -> dict[str, str]:
    """Describe a run.

    Args:
        trainer: with its strategy and datamodule connected.
        module: the task.
        places: device name of each rank.

    Returns:
        Text by name, in the order in which it is shown.
    """
    world = trainer.world_size
    described = {
        "system": public_name(type(module)),
        "strategy": type(trainer.strategy).__name__,
        "processes": f"{world} on {trainer.num_nodes} node{'s' if trainer.num_nodes > 1 else ''}",
        "precision": str(trainer.precision),
        **{f"rank {rank}": place for rank, place in enumerate(places)},
    }
    batch = getattr(getattr(trainer, "datamodule", None), "batch_size", None)
    if isinstance(batch, int):
        described["effective batch"] = _effective_batch(batch, world, trainer.accumulate_grad_batches)
    accumulate = getattr(module, "accumulate", 1)
    if isinstance(accumulate, int) and accumulate > 1:
        # A GAN task splits its batch, so this saves memory and does not enlarge the batch.
        described["micro-batches"] = f"{accumulate} of each batch"
    trainable = sum(p.numel() for p in module.parameters() if p.requires_grad)
    frozen = sum(p.numel() for p in module.parameters() if not p.requires_grad)
    described["parameters"] = f"{trainable:,} trainable, {frozen:,} frozen"
    described["run folder"] = str(trainer.default_root_dir)
    return described


def _effective_batch(batch: int, world: int, accumulation: int) -> str:
    parts = [f"{batch} per process", f"{world} processes" if world > 1 else "1 process"]
    parts += [f"{accumulation} accumulated batches"] if accumulation > 1 else []
    return f"{batch * world * accumulation} = {' x '.join(parts)}"
