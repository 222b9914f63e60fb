"""Optimizer and schedule of an original's checkpoint as those of ours, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from zoo.convert.checkpoints import loop_state, renumbered

# what every schedule keeps, theirs and ours
COMMON = ("base_lrs", "last_epoch", "_step_count", "_is_initial", "_get_lr_called_within_step", "_last_lr")


def our_training(
    training: Mapping[str, Any], config: Mapping[str, Any], theirs: Sequence[str], ours: Sequence[str]
) -> tuple[dict[str, Any], list[str]]:
    """Entries of a Lightning checkpoint for an original's training state, and what could not be taken over.

    `theirs` and `ours` are our names of the parameters as the original's optimizer numbers them, and as ours does.
    """
    step = int(training.get("step") or 0)
    entries: dict[str, Any] = {
        "optimizer_states": [],
        "lr_schedulers": [],
        "loops": loop_state(step, 0, automatic=True),
    }
    optimizer, schedule = training.get("optimizer"), training.get("lr_sched")
    if not optimizer:
        return entries, ["no optimizer: start from it with init_from"]
    try:
        entries["optimizer_states"] = [renumbered(optimizer, theirs, ours)]
    except ValueError:
        return entries, ["optimizer left out: it has not one group of all parameters; start from it with init_from"]
    if not schedule:
        return entries, ["no schedule: start from it with init_from"]
    entries["lr_schedulers"] = [_our_schedule(schedule, config)]
    return entries, []


def their_training(checkpoint: Mapping[str, Any], ours: Sequence[str], theirs: Sequence[str]) -> dict[str, Any]:
    """Optimizer and schedule of a checkpoint of ours in the original's order and words, as far as there are any."""
    optimizers, schedules = checkpoint.get("optimizer_states") or [], checkpoint.get("lr_schedulers") or []
    result: dict[str, Any] = {}
    try:
        (optimizer,) = optimizers
        result["optimizer"] = renumbered(optimizer, ours, theirs)
    except ValueError:  # not one optimizer with one group of all parameters
        return result
    if len(schedules) == 1:
        result["lr_sched"] = _their_schedule(schedules[0])
    return result


def _our_schedule(schedule: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """State of `StageCosine` or `RampedCosine`."""
    common = {key: schedule[key] for key in COMMON if key in schedule}
    if "stage_boundaries" in schedule:
        rises = (schedule["initial_warmup_steps"], schedule["stage_warmup_steps"])
        stages = [(start, end, rises[start > 0]) for start, end in schedule["stage_boundaries"]]
        return {**common, "stages": stages, "min_factor": schedule["min_lr_ratio"]}
    known = {"warmup_steps": "num_warmup_steps", "total_steps": "train_timesteps"}
    return {**common, **{ours: config[theirs] for ours, theirs in known.items() if theirs in config}}


def _their_schedule(schedule: Mapping[str, Any]) -> dict[str, Any]:
    common = {key: schedule[key] for key in COMMON if key in schedule}
    if "stages" not in schedule:
        return {**common, "lr_lambdas": [{}]}
    stages = schedule["stages"]
    return {
        "curriculum_steps": [start for start, _, _ in stages],
        "total_steps": stages[-1][1],
        "initial_warmup_steps": stages[0][2],
        "stage_warmup_steps": stages[-1][2],
        "min_lr_ratio": schedule["min_factor"],
        "stage_boundaries": [(start, end) for start, end, _ in stages],
        **common,
    }
