"""Names of adapter tensors: in the original's files, in its accelerate state, in peft's files and in ours."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from zoo.ci_llm.nets.agents import PEFT_PREFIX

log = logging.getLogger(__name__)

Weights = dict[str, Tensor]  # of one agent, by peft's names

PART = "crowd"  # name of the net in the task, and so prefix of its tensors
OURS = f"{PART}.agents.adapters."
STATE_PREFIX = "base_model."  # of the whole module in accelerate's state; the backbone's other registration is dropped
_PEFT = re.compile(rf"{re.escape(PEFT_PREFIX)}(?P<layer>.+)\.lora_(?P<side>[AB])\.weight")
_NAMED = re.compile(r"(?P<layer>.+)\.lora_(?P<side>[AB])(?P<rest>\d*)(?:\.(?P<agent>[^.]+))?\.weight")


def agent_name(number: int) -> str:
    """The original's name of an agent."""
    return f"agent{number}"


def adapter_weights(content: Mapping[str, Tensor], name: str, where: str) -> Weights:
    """The adapter of a file.

    Older releases of peft chose an adapter's tensors by a part of its name, so that the file of agent1 also holds
    those of agent10: what still has the name of another adapter is left out, with a message.

    Args:
        content: tensors of the file.
        name: of the adapter.
        where: the file, for errors.

    Raises:
        ValueError: when it holds something else, or half an adapter.
    """
    weights, others, strangers = {}, [], []
    for key, value in content.items():
        found = _NAMED.fullmatch(key)
        if _PEFT.fullmatch(key):
            weights[key] = value
        elif found and not found["rest"] and found["agent"] == name:
            weights[f"{found['layer']}.lora_{found['side']}.weight"] = value
        elif found and key.startswith(PEFT_PREFIX):
            others.append(key)
        else:
            strangers.append(key)
    if strangers or not all(map(_PEFT.fullmatch, weights)):
        bad = strangers or [key for key in weights if not _PEFT.fullmatch(key)]
        raise ValueError(f"{where}: {len(bad)} tensors are no LoRA weights of peft: {', '.join(bad[:3])}")
    if others:
        log.warning("%s: %d tensors of other adapters left out (%s)", where, len(others), others[0])
    check_pairs(weights, where)
    return weights


def check_pairs(weights: Mapping[str, Tensor], where: str) -> None:
    """See that there are weights, and that each layer has both its matrices, of one rank.

    Raises:
        ValueError: when not.
    """
    if not weights:
        raise ValueError(f"{where} holds no LoRA weights")
    for key, value in weights.items():
        partner = key.replace(".lora_A.", ".lora_B.") if ".lora_A." in key else key.replace(".lora_B.", ".lora_A.")
        if partner not in weights:
            raise ValueError(f"{where}: {key} is there, {partner} is missing; is the file complete?")
        if ".lora_A." in key and (value.ndim != 2 or value.shape[0] != weights[partner].shape[-1]):
            raise ValueError(
                f"{where}: {key} is {tuple(value.shape)} and its partner {tuple(weights[partner].shape)}; expected "
                "(r, in) and (out, r)"
            )


def rank_of(weights: Mapping[str, Tensor]) -> set[int]:
    """The ranks of an adapter's layers."""
    return {value.shape[0] for key, value in weights.items() if ".lora_A." in key}


def target_names(weights: Iterable[str]) -> list[str]:
    """Last parts of the names of the adapted layers, in the order in which they occur."""
    return list(dict.fromkeys(_matched(key)["layer"].rpartition(".")[2] for key in weights))


def blocks_of(weights: Iterable[str]) -> list[int]:
    """Numbers of the adapted blocks, rising."""
    numbers = (next((int(part) for part in key.split(".") if part.isdigit()), 0) for key in weights)
    return sorted(set(numbers))


def split_state(keys: Iterable[str]) -> dict[str, dict[str, str]]:
    """Sort the adapters in accelerate's state of the whole module by agent.

    Args:
        keys: of the state.

    Returns:
        By agent's name: peft's name of each of its tensors, and its key in the state.
    """
    agents: dict[str, dict[str, str]] = {}
    for key in keys:
        found = _NAMED.fullmatch(key.removeprefix("module."))
        if found and found["agent"] and found["layer"].startswith(STATE_PREFIX):
            layer = found["layer"].removeprefix(STATE_PREFIX)
            name = f"{PEFT_PREFIX}{layer}.lora_{found['side']}.weight"
            agents.setdefault(found["agent"], {})[name] = key
    return agents


def to_ours(agents: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Stack the adapters of all agents under our task's names: (K, r, in) and (K, out, r)."""
    return {
        f"{OURS}{_matched(key)['layer']}.lora_{_matched(key)['side']}": torch.stack([each[key] for each in agents])
        for key in agents[0]
    }


def from_ours(state: Mapping[str, Tensor]) -> list[Weights]:
    """The adapters of each agent in a state of our task, under peft's names; other tensors are passed over."""
    stacked = {
        f"{PEFT_PREFIX}{key.removeprefix(OURS)}.weight": value for key, value in state.items() if key.startswith(OURS)
    }
    count = len(next(iter(stacked.values()), ()))
    return [{key: value[agent].contiguous().clone() for key, value in stacked.items()} for agent in range(count)]


def _matched(key: str) -> re.Match[str]:
    found = _PEFT.fullmatch(key)
    if found is None:
        raise ValueError(f"{key} is no LoRA weight of peft; expected {PEFT_PREFIX}<layer>.lora_A.weight or lora_B")
    return found
