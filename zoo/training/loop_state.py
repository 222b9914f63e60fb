"""The loop counters of a checkpoint that no Trainer wrote: for converters of originals' training states."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def loop_state(batches: int, epoch: int, automatic: bool = False) -> dict[str, Any]:
    """Lightning's progress of a task at the start of an epoch.

    Originals save in the middle of an epoch and resume at its beginning; so does a converted checkpoint.

    Args:
        batches: trained in all.
        epoch: that begins, from 0.
        automatic: the task is one with automatic optimization, whose steps Lightning counts elsewhere.

    Returns:
        What Lightning keeps in a checkpoint under "loops".
    """

    def progress(total: int, current: int, keys: Iterable[str]) -> dict[str, Any]:
        return {"total": dict.fromkeys(keys, total), "current": dict.fromkeys(keys, current)}

    stages = ("ready", "completed", "started", "processed")
    steps = ("ready", "completed")
    by_lightning, by_task = (batches, 0) if automatic else (0, batches)
    optimizer = {
        "step": progress(by_lightning, by_lightning, steps),
        "zero_grad": progress(0, 0, ("ready", "completed", "started")),
    }
    fit = {
        "state_dict": {},
        "epoch_loop.state_dict": {"_batches_that_stepped": batches},
        "epoch_loop.batch_progress": {**progress(batches, 0, stages), "is_last_batch": False},
        "epoch_loop.scheduler_progress": progress(0, 0, steps),
        "epoch_loop.automatic_optimization.state_dict": {},
        "epoch_loop.automatic_optimization.optim_progress": {"optimizer": optimizer},
        "epoch_loop.manual_optimization.state_dict": {},
        "epoch_loop.manual_optimization.optim_step_progress": progress(by_task, 0, steps),
        "epoch_loop.val_loop.state_dict": {},
        "epoch_loop.val_loop.batch_progress": {**progress(0, 0, stages), "is_last_batch": False},
        "epoch_progress": progress(epoch, epoch, stages),
    }
    evaluation = {"state_dict": {}, "batch_progress": {**progress(0, 0, stages), "is_last_batch": False}}
    return {"fit_loop": fit, "validate_loop": evaluation, "test_loop": evaluation, "predict_loop": evaluation}
