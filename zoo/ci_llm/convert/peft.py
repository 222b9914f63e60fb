"""Standard PEFT folders (`agent{i}/`), written and read."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from zoo.ci_llm.convert.folders import Adapters, check_alike, read_beside, read_json, write_beside
from zoo.ci_llm.convert.names import adapter_weights, agent_name, target_names
from zoo.ci_llm.nets.agents import LINEAR_LAYERS
from zoo.common.atomic import replacing
from zoo.common.reading.foreign import load_foreign

CONFIG = "adapter_config.json"
WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
_FOLDER = re.compile(r"agent(\d+)")
# What changes the function that A and B stand for, and which our agents do not compute.
REFUSED = (
    "use_dora", "use_rslora", "modules_to_save", "lora_bias", "rank_pattern", "alpha_pattern", "use_qalora",
    "use_bdlora", "trainable_token_indices", "target_parameters", "layer_replication", "alora_invocation_tokens",
    "arrow_config",
)  # fmt: skip
EQUAL = ("r", "lora_alpha", "target_modules", "lora_dropout")


def is_peft_folder(path: Path) -> bool:
    """Whether a path is a folder of LoRA adapters of language models: one, or one for each agent."""
    try:
        folders = _folders(path)
        return bool(folders) and read_json(folders[0] / CONFIG).get("task_type") in (None, "CAUSAL_LM")
    except (OSError, ValueError):
        return False


def write_peft(folder: Path, adapters: Adapters) -> None:
    """Write a folder `agent{i}/` for each agent; the whole appears only when it is complete.

    Args:
        folder: of these folders; replaced when it exists.
        adapters: what they are to hold.

    Raises:
        OSError: when the disk is full or the folder is not writable; what was there is untouched.
    """
    with replacing(folder) as aside:
        aside.mkdir()
        for number, weights in enumerate(adapters.weights):
            place = aside / agent_name(number)
            place.mkdir()
            save_file({k: v.contiguous() for k, v in weights.items()}, place / WEIGHTS[0], metadata={"format": "pt"})
            text = json.dumps(_config(adapters), indent=2, sort_keys=True)
            (place / CONFIG).write_text(text, encoding="utf-8")
        write_beside(aside, adapters)


def read_peft(folder: Path, allow_partial: bool = False) -> Adapters:
    """Read PEFT folders.

    Args:
        folder: with a folder `agent{i}` for each agent; or a single adapter.
        allow_partial: pass over agents that are missing; those that are there are counted anew, from 0.

    Raises:
        FileNotFoundError: when there is no adapter, or an agent is missing.
        ValueError: when an adapter is of a kind that is not supported, or the agents differ in rank, alpha, dropout or
            targets.
    """
    folders = _folders(folder)
    if not folders:
        raise FileNotFoundError(f"{folder} has neither {CONFIG} nor folders agent0, agent1, ... with one")
    if folders[0] != folder and not allow_partial:
        there = {path.name for path in folders}
        missing = [agent_name(n) for n in range(_number(folders[-1]) + 1) if agent_name(n) not in there]
        if missing:
            raise FileNotFoundError(f"{folder}: {', '.join(missing)} is missing; allow_partial takes the others")
    configs, weights = [], []
    for path in folders:
        content = _read_weights(path)
        weights.append(adapter_weights(content, path.name, str(path)))
        configs.append(_checked(read_json(path / CONFIG), path, target_names(weights[-1])))
    for path, config in zip(folders, configs, strict=True):
        for key in EQUAL:
            if config[key] != configs[0][key]:
                raise ValueError(
                    f"{path / CONFIG}: {key} is {config[key]}, {folders[0].name} has {configs[0][key]}; the agents of "
                    "a crowd have the same"
                )
    first = configs[0]
    check_alike(weights, first["r"], folder)
    return Adapters(
        weights, first["r"], first["lora_alpha"], first["lora_dropout"], first["target_modules"],
        base=first.get("base_model_name_or_path"), **read_beside(folder),
    )  # fmt: skip


def _folders(path: Path) -> list[Path]:
    """The folders of adapters, in the order of their numbers."""
    if (path / CONFIG).is_file():
        return [path]
    if not path.is_dir():
        return []
    found = [each for each in path.iterdir() if _FOLDER.fullmatch(each.name) and (each / CONFIG).is_file()]
    return sorted(found, key=_number)


def _number(folder: Path) -> int:
    return int(folder.name.removeprefix("agent"))


def _read_weights(folder: Path) -> dict[str, Any]:
    for name in WEIGHTS:
        if (folder / name).is_file():
            return load_foreign(folder / name)
    raise FileNotFoundError(f"{folder} has {CONFIG}, but no {WEIGHTS[0]}")


def _checked(config: dict[str, Any], folder: Path, targets: list[str]) -> dict[str, Any]:
    """A configuration that ours can be, its targets spelled out in one order."""
    where = folder / CONFIG
    if config.get("peft_type") != "LORA":
        raise ValueError(f"{where}: peft_type is {config.get('peft_type')!r}, only LORA is supported")
    refused = [key for key in REFUSED if config.get(key)]
    if config.get("bias", "none") != "none":
        refused.append("bias")
    if refused:
        said = ", ".join(f"{key}: {config[key]}" for key in refused)
        raise ValueError(f"{where}: {said} is not supported; train or merge the adapter without it")
    absent = [key for key in ("r", "lora_alpha") if not isinstance(config.get(key), int | float)]
    if absent:
        raise ValueError(f"{where}: {', '.join(absent)} is missing or no number")
    order = {name: place for place, name in enumerate(LINEAR_LAYERS)}  # peft keeps a set
    targets = sorted(targets, key=lambda name: order.get(name, len(order)))
    return {**config, "target_modules": targets, "lora_dropout": config.get("lora_dropout", 0.0)}


def _config(adapters: Adapters) -> dict[str, Any]:
    return {
        "peft_type": "LORA",
        "task_type": adapters.task_type,
        "base_model_name_or_path": adapters.base,
        "revision": None,
        "r": adapters.rank,
        "lora_alpha": adapters.alpha,
        "lora_dropout": adapters.dropout,
        "target_modules": adapters.targets,
        "layers_to_transform": adapters.blocks,
        "bias": "none",
        "init_lora_weights": True,
        "use_dora": False,
        "use_rslora": False,
        "lora_bias": False,
        "modules_to_save": None,
        "inference_mode": True,
    }
