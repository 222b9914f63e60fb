"""The adapter's optimizer and schedule in an original's checkpoint as those of ours, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zoo.hifigan.convert_training import renumber
from zoo.training.loop_state import loop_state

# the original's optimizer numbers the extractor's trained norms first, ours the adapters
THEIR_ORDER, OUR_ORDER = ("norms", "blocks"), ("blocks", "norms")
WARMUP = "constant_with_warmup"


def our_training(training: Mapping[str, Any], count: int) -> tuple[dict[str, Any], list[str]]:
    """Entries of a Lightning checkpoint for an original's training state.

    Args:
        training: `optimizer_state_dict`, `scheduler_state_dict`, `step`, `config` as far as present.
        count: blocks with adapters.

    Returns:
        (`optimizer_states`, `lr_schedulers`, `loops`, what could not be taken over).
    """
    entries: dict[str, Any] = {"optimizer_states": [], "lr_schedulers": []}
    notes = []
    step = int(training.get("step") or 0)
    optimizer = training.get("optimizer_state_dict")
    if optimizer and optimizer.get("param_groups"):
        entries["optimizer_states"] = [renumber(optimizer, _counts(count), THEIR_ORDER, OUR_ORDER)]
    else:
        notes.append("no optimizer: start from it with init_from")
    schedule = dict(training.get("scheduler_state_dict") or {})
    if schedule and entries["optimizer_states"]:
        functions = schedule.pop("lr_lambdas", None)
        settings = ((training.get("config") or {}).get("optim") or {}).get("scheduler") or {}
        if functions is None or settings.get("name") == WARMUP:
            entries["lr_schedulers"] = [schedule if functions is None else {**_warmup(settings), **schedule}]
        else:
            notes.append("schedule left out: its configuration does not name a warm-up")
    entries["loops"] = loop_state(step, 0, automatic=True)
    return entries, notes


def their_training(checkpoint: Mapping[str, Any], count: int) -> dict[str, Any]:
    """Optimizer and schedule of a checkpoint of ours in the original's order; empty where there are none."""
    optimizers, schedules = checkpoint.get("optimizer_states") or [], checkpoint.get("lr_schedulers") or []
    result: dict[str, Any] = {"optimizer_state_dict": {}, "scheduler_state_dict": {}}
    if len(optimizers) == 1:
        result["optimizer_state_dict"] = renumber(optimizers[0], _counts(count), OUR_ORDER, THEIR_ORDER)
    if len(schedules) == 1:
        schedule = dict(schedules[0])
        if schedule.pop("warmup_steps", None) is not None:
            schedule["lr_lambdas"] = [{}]
        result["scheduler_state_dict"] = schedule
    return result


def _counts(count: int) -> dict[str, int]:
    return {"norms": 2 * count, "blocks": 6 * count}


def _warmup(settings: Mapping[str, Any]) -> dict[str, int]:
    return {"warmup_steps": int(settings.get("warmup_steps", 0))}
