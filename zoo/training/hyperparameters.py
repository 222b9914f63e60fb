"""Hyper-parameters that a resumed run takes from its own configuration instead of the checkpoint."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

# options of how a step is computed, not of its result: those of the checkpoint stay
KERNEL_OPTIONS = {"capturable", "differentiable", "foreach", "fused"}
# options that schedules add to a group
SCHEDULE_OPTIONS = {"initial_lr", "max_lr", "min_lr", "base_momentum", "max_momentum"}
# keys of a schedule's state that are no hyper-parameters
POSITION_KEYS = {
    "T_cur", "T_i", "_get_lr_called_within_step", "_is_initial", "_last_lr", "_step_count", "base_lrs", "last_epoch",
}  # fmt: skip


def apply_hyperparameters(
    checkpoint: dict[str, Any],
    optimizers: Sequence[Optimizer],
    schedulers: Sequence[LRScheduler],
    names: Sequence[str] = (),
) -> str | None:
    """Put the hyper-parameters of a resumed run's configuration into its checkpoint.

    Moments of optimizers and positions of schedules stay. Rates, weight decay, betas and the like, and shape and length
    of the schedules, become those of the given objects, which have made no step. Returns the differences in one line,
    None without any. Another class, other weights or another number of schedules are a ValueError.
    """
    saved_groups = [state["param_groups"] for state in checkpoint["optimizer_states"]]
    saved_schedules = checkpoint["lr_schedulers"]
    mismatch = _find_mismatch(saved_groups, len(saved_schedules), optimizers, len(schedulers))
    if mismatch is not None:
        raise ValueError(f"the checkpoint holds {mismatch}: resume with its config.yaml, or start anew by --init_from")
    classes = [type(scheduler).__name__ for scheduler in schedulers]
    saved = _collect(saved_groups, saved_schedules, checkpoint.get("scheduler_classes", classes), names)

    def current() -> dict[str, Any]:
        groups = [optimizer.state_dict()["param_groups"] for optimizer in optimizers]
        return _collect(groups, [scheduler.state_dict() for scheduler in schedulers], classes, names)

    if current() == saved:
        return None
    for scheduler, state in zip(schedulers, saved_schedules, strict=True):
        advance(scheduler, state["last_epoch"])
    changes = {key: value for key, value in current().items() if key not in saved or saved[key] != value}
    if not changes:  # a schedule of the momentum was at its beginning
        return None
    for groups, optimizer in zip(saved_groups, optimizers, strict=True):
        for group, new in zip(groups, optimizer.state_dict()["param_groups"], strict=True):
            group.update({key: value for key, value in new.items() if key not in {*KERNEL_OPTIONS, "params"}})
    checkpoint["lr_schedulers"] = [scheduler.state_dict() for scheduler in schedulers]
    return ", ".join(f"{key} {_format(value)} (was {_format(saved.get(key))})" for key, value in changes.items())


def split_optimizers(configured: Any) -> tuple[list[Optimizer], list[LRScheduler]]:
    """Split the result of `configure_optimizers` (an optimizer, a dictionary, or a list of each kind)."""
    if isinstance(configured, Optimizer):
        return [configured], []
    if isinstance(configured, Mapping):
        configured = [configured["optimizer"]], [configured["lr_scheduler"]] if "lr_scheduler" in configured else []
    optimizers, schedules = configured
    return optimizers, [each["scheduler"] if isinstance(each, Mapping) else each for each in schedules]


def advance(scheduler: LRScheduler, steps: int) -> None:
    """Move a new schedule, and its optimizer's rates, to where they are after so many steps."""
    with warnings.catch_warnings(action="ignore"):  # torch expects a step of the optimizer before each
        for _ in range(steps):
            scheduler.step()


def _find_mismatch(
    saved: Sequence[list[dict[str, Any]]], saved_schedules: int, optimizers: Sequence[Optimizer], schedules: int
) -> str | None:
    """Describe why states of optimizers, given by their groups, cannot be loaded; None where they can."""
    if len(saved) != len(optimizers) or saved_schedules != schedules:
        return f"{len(saved)} optimizers and {saved_schedules} schedules; the config has {len(optimizers)}, {schedules}"
    for groups, optimizer in zip(saved, optimizers, strict=True):
        current = optimizer.state_dict()["param_groups"]
        options, new_options = (each[0].keys() - SCHEDULE_OPTIONS for each in (groups, current))
        # Adam and AdamW have the same options
        decoupled = [each[0].get("decoupled_weight_decay") for each in (groups, current)]
        if options != new_options or decoupled[0] != decoupled[1]:
            return f"an optimizer that is no {type(optimizer).__name__}: its options are {', '.join(sorted(options))}"
        sizes, new_sizes = ([len(group["params"]) for group in each] for each in (groups, current))
        if sizes != new_sizes:
            return f"an optimizer of {sizes} weights a group; the config's has {new_sizes}"
    return None


def _collect(
    optimizers: Sequence[list[dict[str, Any]]],
    schedules: Sequence[dict[str, Any]],
    classes: Sequence[str],
    names: Sequence[str],
) -> dict[str, Any]:
    """Return every hyper-parameter by a name for messages; `lr` is the base rate where there is a schedule."""
    several = len(optimizers) > 1
    prefixes = [f"{name} " if several else "" for name in (*names, *range(len(names), len(optimizers)))]
    values: dict[str, Any] = {}
    for prefix, groups in zip(prefixes, optimizers, strict=False):
        for index, group in enumerate(groups):
            where = prefix + (f"group {index} " if len(groups) > 1 else "")
            options = {key: value for key, value in group.items() if key not in {*KERNEL_OPTIONS, "params"}}
            options["lr"] = options.pop("initial_lr", options["lr"])
            values |= {where + key: value for key, value in options.items()}
    for prefix, state, name in zip(prefixes, schedules, classes, strict=False):
        values[f"{prefix}scheduler"] = name
        values |= {prefix + key: value for key, value in state.items() if key not in POSITION_KEYS}
    return values


def _format(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
