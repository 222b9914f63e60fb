"""Training state of the original's `do_*` file as that of a Lightning checkpoint, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

ORIGINAL_ORDER = ("msd", "mpd")  # the original's discriminator optimizer numbers MSD's parameters first
OUR_ORDER = ("mpd", "msd")  # order of the task's `discriminators`
BUFFER_LEAVES = ("_u", "_v", "running_mean", "running_var", "num_batches_tracked")


def parameter_names(state: Mapping[str, Tensor], part: str) -> list[str]:
    """Names of a part's parameters in the order in which an optimizer numbers them (that of the state dict)."""
    return [key for key in state if key.startswith(f"{part}.") and not key.endswith(BUFFER_LEAVES)]


def discriminator_order(state: Mapping[str, Tensor]) -> tuple[str, ...]:
    """The order of the discriminators in a state dict of ours, which is the one their optimizer numbers them in."""
    return tuple(dict.fromkeys(part for part in (key.partition(".")[0] for key in state) if part in OUR_ORDER))


def renumber(
    optimizer: Mapping[str, Any], counts: Mapping[str, int], before: Sequence[str], after: Sequence[str]
) -> dict[str, Any]:
    """Renumber an optimizer's positional state for another order of the nets.

    Args:
        optimizer: its state dict, with one parameter group.
        counts: parameters of each net.
        before: order of the nets in `optimizer`.
        after: order of the nets wanted.

    Returns:
        The state dict in the new order; tensors are shared.

    Raises:
        ValueError: when the optimizer's parameters are not those of the nets.
    """
    groups = optimizer["param_groups"]
    total = sum(counts[net] for net in before)
    if len(groups) != 1 or list(groups[0]["params"]) != list(range(total)):
        found = [len(group["params"]) for group in groups]
        raise ValueError(f"expected one optimizer group of {total} parameters, found groups of {found}")
    numbers: dict[str, range] = {}
    start = 0
    for net in before:
        numbers[net] = range(start, start + counts[net])
        start += counts[net]
    order = [number for net in after for number in numbers[net]]
    state = {new: optimizer["state"][old] for new, old in enumerate(order) if old in optimizer["state"]}
    return {"state": state, "param_groups": [dict(groups[0])]}


def scheduler_state(optimizer: Mapping[str, Any], gamma: float, epoch: int) -> dict[str, Any]:
    """State of an ExponentialLR stepped once after each of `epoch` epochs.

    The original keeps none, and on resume derives it from the epoch.
    """
    groups = optimizer["param_groups"]
    return {
        "gamma": gamma,
        "base_lrs": [initial_rate(group, gamma, epoch) for group in groups],
        "last_epoch": epoch,
        "_step_count": epoch + 1,
        "_is_initial": False,
        "_get_lr_called_within_step": False,
        "_last_lr": [group["lr"] for group in groups],
    }


def initial_rate(group: Mapping[str, Any], gamma: float, epoch: int) -> float:
    """The learning rate that training began with."""
    return group["initial_lr"] if "initial_lr" in group else group["lr"] / gamma**epoch
