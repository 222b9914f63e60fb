"""The original's optimizer state as ours, and back: parameters are told by their names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from zoo.ci_llm.backbone import Backbone
from zoo.ci_llm.convert_names import OURS

Owner = tuple[str, int]  # our name of a stacked parameter, and the agent


def original_order(backbone: Backbone, layers: Sequence[str], count: int) -> list[Owner | None]:
    """What the original's optimizer numbers: all weights of the backbone, and behind a layer's own those of its agents.

    Args:
        backbone: that the agents adapt.
        layers: full names of the adapted layers.
        count: of the agents.

    Returns:
        One entry per number; None for a weight of the backbone.
    """
    names = [name for name, _ in backbone.model.named_parameters()]
    last = {layer: max(i for i, name in enumerate(names) if name.rpartition(".")[0] == layer) for layer in layers}
    behind = {number: layer for layer, number in last.items()}
    order: list[Owner | None] = []
    for number in range(len(names)):
        order.append(None)
        if number in behind:
            order += [(f"{OURS}{behind[number]}.lora_{side}", agent) for side in "AB" for agent in range(count)]
    return order


def our_optimizer(
    optimizer: Mapping[str, Any], order: Sequence[Owner | None], names: Sequence[str], count: int
) -> tuple[dict[str, Any] | None, list[str]]:
    """Stack the states of the agents; agents without one (the original trained the last alone) begin with zeros.

    Args:
        optimizer: the original's.
        order: see `original_order`.
        names: our parameters in our optimizer's order.
        count: of the agents.

    Returns:
        Our optimizer's state, or None where there is nothing to take over; and notes.
    """
    groups, old = optimizer.get("param_groups", []), optimizer.get("state", {})
    if len(groups) != 1 or list(groups[0]["params"]) != list(range(len(order))):
        return None, ["optimizer left out: it is not one group of all weights of this backbone and its agents"]
    known: dict[str, dict[int, Any]] = {}
    for number, owner in enumerate(order):
        if owner is not None and number in old:
            known.setdefault(owner[0], {})[owner[1]] = old[number]
    if set(known) != set(names):
        return None, ["optimizer left out: it has no state yet, or not of every adapted layer"]
    absent = [agent for agent in range(count) if not all(agent in states for states in known.values())]
    notes = [f"optimizer: agents {', '.join(map(str, absent))} have no state and begin with zeros"] if absent else []
    state = {number: _stacked(known[name], count) for number, name in enumerate(names)}
    return {"state": state, "param_groups": [{**groups[0], "params": list(range(len(names)))}]}, notes


def their_optimizer(
    optimizer: Mapping[str, Any], order: Sequence[Owner | None], names: Sequence[str]
) -> dict[str, Any] | None:
    """Give each agent its part of our state; None where it is not one group of all our parameters."""
    groups, ours = optimizer["param_groups"], optimizer["state"]
    if len(groups) != 1 or list(groups[0]["params"]) != list(range(len(names))):
        return None
    numbers = {name: number for number, name in enumerate(names)}
    state = {
        number: {
            key: value[owner[1]].clone() if torch.is_tensor(value) and value.ndim else value
            for key, value in ours[numbers[owner[0]]].items()
        }
        for number, owner in enumerate(order)
        if owner is not None and numbers[owner[0]] in ours
    }
    return {"state": state, "param_groups": [{**groups[0], "params": list(range(len(order)))}]}


def _stacked(states: Mapping[int, Mapping[str, Any]], count: int) -> dict[str, Any]:
    """One state of all agents; counts of steps are the largest."""
    some = next(iter(states.values()))
    result: dict[str, Any] = {}
    for key, value in some.items():
        if torch.is_tensor(value) and value.ndim:
            empty = torch.zeros_like(value)
            result[key] = torch.stack([states[agent][key] if agent in states else empty for agent in range(count)])
        else:
            result[key] = max(state[key] for state in states.values())
    return result
