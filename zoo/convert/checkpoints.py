"""Checkpoints that converters write and read: ours, made of an original's tensors, or to become an original."""

from __future__ import annotations

from collections.abc import Mapping
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
        training: further entries: averages, records of frozen nets.
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
