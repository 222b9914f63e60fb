"""Checkpoints that converters write and read: ours, made of an original's tensors, or to become an original."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from zoo.runs.checkpoints import load_checkpoint, save_checkpoint


class Ours(NamedTuple):
    """A checkpoint of ours: all of it, its `specs`, its tensors (averaged ones, where it has them: `averaged`)."""

    checkpoint: dict[str, Any]
    specs: dict[str, Any]
    state: dict[str, Tensor]
    averaged: bool


def write_converted(
    target: Path,
    specs: Mapping[str, Any],
    state: Mapping[str, Tensor],
    step: int = 0,
    epoch: int = 0,
    training: Mapping[str, Any] | None = None,
) -> None:
    """Write a checkpoint that no Trainer wrote.

    Args:
        target: file to write; its folder is made.
        specs: what it is (`zoo` in the checkpoint).
        state: tensors under the task's names.
        step: batches trained.
        epoch: that begins.
        training: further entries: `optimizer_states`, `lr_schedulers`, `loops`, averages.
    """
    checkpoint = {
        "state_dict": dict(state),
        "optimizer_states": [],
        "lr_schedulers": [],
        "epoch": epoch,
        "global_step": step,
        "pytorch-lightning_version": version("lightning"),
        "zoo": dict(specs),
        **(training or {}),
    }
    target.parent.mkdir(parents=True, exist_ok=True)
    save_checkpoint(checkpoint, target)


def read_ours(source: Path, inference: str) -> Ours:
    """Read a checkpoint of ours that is to become an original's file.

    Raises:
        ValueError: when it does not name this Inference, or describes no parts.
    """
    checkpoint = load_checkpoint(source)
    specs = checkpoint.get("zoo")
    if not specs or specs.get("inference") != inference:
        found = specs.get("inference") if specs else "no description of the zoo"
        raise ValueError(f"{source}: expected a checkpoint for {inference}, found {found}")
    if not specs.get("parts"):
        raise ValueError(f"{source}: it describes no parts")
    averaged = bool(checkpoint.get("ema"))
    state = {**checkpoint["state_dict"], **(checkpoint["ema"]["shadow"] if averaged else {})}
    return Ours(checkpoint, specs, state, averaged)


def renumbered(optimizer: Mapping[str, Any], before: Sequence[str], after: Sequence[str]) -> dict[str, Any]:
    """Renumber an optimizer's positional state for another order of the same parameters.

    Args:
        optimizer: its state dict.
        before: names of the parameters in its order.
        after: names in the order wanted.

    Returns:
        The state dict in the new order; tensors are shared.

    Raises:
        ValueError: when it has not one group of all these parameters.
    """
    groups, old = optimizer["param_groups"], optimizer["state"]
    if len(groups) != 1 or list(groups[0]["params"]) != list(range(len(before))):
        found = [len(group["params"]) for group in groups]
        raise ValueError(f"expected one optimizer group of {len(before)} parameters, found groups of {found}")
    numbers = {name: number for number, name in enumerate(before)}
    state = {new: old[numbers[name]] for new, name in enumerate(after) if numbers[name] in old}
    return {"state": state, "param_groups": [dict(groups[0])]}


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
