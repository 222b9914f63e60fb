"""The original's checkpoint folders (`checkpoint_step_{n}/`, `final_checkpoint/`), written and read."""

from __future__ import annotations

import json
import logging
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from zoo.ci_llm.convert.names import Weights, adapter_weights, agent_name, blocks_of, check_pairs, rank_of, split_state
from zoo.ci_llm.data.tokenizers import Tokenizer
from zoo.ci_llm.nets.backbone import Backbone
from zoo.ci_llm.nets.crowd import Crowd
from zoo.common.atomic import replacing
from zoo.common.reading.foreign import load_foreign
from zoo.common.reading.text import load_json

log = logging.getLogger(__name__)

META = "ci_llm_meta_config.json"
PROGRESS = "training_progress.json"
TOKENIZER = "tokenizer"
STATE = "model.safetensors"
OPTIMIZER = "optimizer.bin"
BACKBONE = "backbone"  # our addition to the meta file
_WEIGHTS = re.compile(r"agent(\d+)_weights\.pth")


@dataclass
class Adapters:
    """Adapters of some agents, with what their files say of them.

    Attributes:
        weights: of each agent, by peft's names.
        rank: of all.
        alpha: of all; the scale is alpha / rank.
        dropout: of their inputs in training.
        targets: last parts of the names of the adapted layers.
        task_type: peft's.
        mode: the original's `parallel_mode`, which nobody reads.
        base: name of the backbone, where known.
        backbone: `sha256`, `dtype` and `quantization` of the one that they were trained on, where known.
        progress: content of `training_progress.json`, where there is one.
        tokenizer: folder of its files, or the tokenizer itself.
        optimizer: the original's optimizer state, or the file of it, where there is one.
    """

    weights: list[Weights]
    rank: int
    alpha: int
    dropout: float
    targets: list[str]
    task_type: str = "CAUSAL_LM"
    mode: str = "sequential"
    base: str | None = None
    backbone: dict[str, str] | None = None
    progress: dict[str, Any] = field(default_factory=dict)
    tokenizer: Path | Tokenizer | None = None
    optimizer: Path | dict[str, Any] | None = None

    @property
    def blocks(self) -> list[int] | None:
        """Numbers of the adapted blocks; None when the lowest is among them, so that all are."""
        numbers = blocks_of(self.weights[0])
        return numbers if numbers[0] > 0 else None


def adapters_of(
    crowd: Crowd, progress: Mapping[str, Any] | None = None, tokenizer: Path | Tokenizer | None = None
) -> Adapters:
    """The adapters of a crowd, to be written.

    Args:
        crowd: what holds them.
        progress: for `training_progress.json`: epoch, global_step, config, and `completed` at the end.
        tokenizer: to be saved beside them.
    """
    agents = crowd.agents
    weights = [{k: v.cpu().clone() for k, v in agents.adapter(number).items()} for number in range(agents.count)]
    return Adapters(
        weights, agents.rank, agents.alpha, agents.dropout, list(agents.targets), base=crowd.backbone.source,
        backbone=backbone_facts(crowd.backbone), progress=dict(progress or {}), tokenizer=tokenizer,
    )  # fmt: skip


def backbone_facts(backbone: Backbone) -> dict[str, str]:
    """What a folder of adapters says of their backbone: its hash, and the form of the weights that it is of."""
    dtype = str(backbone.model.dtype).removeprefix("torch.")
    return {"sha256": backbone.fingerprint(), "dtype": dtype, "quantization": backbone.quantization}


def is_original_folder(path: Path) -> bool:
    """Whether a path is a checkpoint folder of the original."""
    return (path / META).is_file()


def write_original(folder: Path, adapters: Adapters) -> None:
    """Write a checkpoint folder of the original; it appears only when it is whole.

    Two keys of the meta file are ours and nothing to the original: the adapted blocks, where not all are adapted, and
    the backbone.

    Args:
        folder: replaced when it exists.
        adapters: what it is to hold.

    Raises:
        OSError: when the disk is full or the folder is not writable; what was there is untouched.
    """
    with replacing(folder) as aside:
        aside.mkdir()
        _write_json(aside / META, _meta(adapters))
        for number, weights in enumerate(adapters.weights):
            torch.save(weights, aside / f"{agent_name(number)}_weights.pth")
        if isinstance(adapters.optimizer, dict):
            torch.save(adapters.optimizer, aside / OPTIMIZER)
        write_beside(aside, adapters)


def write_beside(folder: Path, adapters: Adapters) -> None:
    """Write progress and tokenizer, as far as known, into a folder of adapters."""
    if adapters.progress:
        _write_json(folder / PROGRESS, adapters.progress)
    if isinstance(adapters.tokenizer, Path):
        shutil.copytree(adapters.tokenizer, folder / TOKENIZER)
    elif adapters.tokenizer is not None:
        adapters.tokenizer.save(folder / TOKENIZER)


def read_beside(folder: Path) -> dict[str, Any]:
    """Progress and tokenizer of a folder of adapters, as arguments of `Adapters`."""
    progress = read_json(folder / PROGRESS) if (folder / PROGRESS).is_file() else {}
    return {"progress": progress, "tokenizer": folder / TOKENIZER if (folder / TOKENIZER).is_dir() else None}


def read_original(folder: Path, allow_partial: bool = False) -> Adapters:
    """Read a checkpoint folder of the original.

    Agents whose files are missing are taken out of accelerate's state, where the folder has that.

    Args:
        folder: with `ci_llm_meta_config.json`.
        allow_partial: pass over agents that are missing; those that are there are counted anew, from 0.

    Raises:
        FileNotFoundError: when there is no meta file, or an agent is missing.
        ValueError: when a file is damaged, or the files do not belong together.
    """
    if not is_original_folder(folder):
        raise FileNotFoundError(f"{folder} has no {META}; name a checkpoint_step_<n> or final_checkpoint folder")
    meta = read_json(folder / META)
    number = (int, float)
    kinds = {"r": int, "lora_alpha": number, "lora_dropout": number, "target_modules": list, "K_agents": int}
    wrong = [key for key, kind in kinds.items() if not isinstance(meta.get(key), kind)]  # type: ignore[arg-type]
    if wrong or meta["K_agents"] < 1:
        raise ValueError(f"{folder / META}: {', '.join(wrong) or 'K_agents'} is missing or cannot be so")
    weights = _read_agents(folder, meta["K_agents"], allow_partial)
    check_alike(weights, meta["r"], folder)
    progress = read_beside(folder)
    config = progress["progress"].get("config")
    return Adapters(
        weights, meta["r"], meta["lora_alpha"], meta["lora_dropout"], meta["target_modules"],
        task_type=str(meta.get("task_type", "CAUSAL_LM")), mode=str(meta.get("parallel_mode", "sequential")),
        base=config.get("model_name") if isinstance(config, dict) else None, backbone=meta.get(BACKBONE),
        optimizer=folder / OPTIMIZER if (folder / OPTIMIZER).is_file() else None, **progress,
    )  # fmt: skip


def check_alike(weights: Sequence[Weights], rank: int, where: Path) -> None:
    """See that all agents adapt the same layers with the rank that the configuration says.

    Raises:
        ValueError: when not.
    """
    for number, each in enumerate(weights):
        if rank_of(each) != {rank}:
            raise ValueError(f"{where}: agent {number} has rank {sorted(rank_of(each))}, the configuration says {rank}")
        odd = each.keys() ^ weights[0].keys()
        if odd:
            raise ValueError(f"{where}: agents 0 and {number} adapt different layers: {sorted(odd)[0]} is in one only")
        for key, value in each.items():
            if value.shape != weights[0][key].shape:
                raise ValueError(
                    f"{where}: {key} is {tuple(value.shape)} in agent {number}, but "
                    f"{tuple(weights[0][key].shape)} in agent 0"
                )


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        FileNotFoundError: when there is no such file.
        ValueError: when it holds something else.
    """
    try:
        content = load_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FileNotFoundError(f"no file {path}") from None
    except ValueError as error:
        raise ValueError(f"{path} is not JSON ({error})") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold an object, found {type(content).__name__}")
    return content


def _meta(adapters: Adapters) -> dict[str, Any]:
    meta: dict[str, Any] = {
        "r": adapters.rank,
        "lora_alpha": adapters.alpha,
        "lora_dropout": adapters.dropout,
        "target_modules": adapters.targets,
        "bias": "none",
        "task_type": adapters.task_type,
        "K_agents": len(adapters.weights),
        "parallel_mode": adapters.mode,
    }
    if adapters.blocks is not None:
        meta["layers_to_transform"] = adapters.blocks
    return meta | ({} if adapters.backbone is None else {BACKBONE: adapters.backbone})


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=4), encoding="utf-8")  # without a last line break, as the original


def _read_agents(folder: Path, count: int, allow_partial: bool) -> list[Weights]:
    numbers = {int(found[1]): path for path in folder.iterdir() if (found := _WEIGHTS.fullmatch(path.name))}
    beyond = sorted(number for number in numbers if number >= count)
    if beyond:
        raise ValueError(
            f"{folder}: {META} says K_agents {count}, but there is {numbers[beyond[0]].name}; the files of two "
            "checkpoints are mixed, or K_agents is wrong"
        )
    missing = [number for number in range(count) if number not in numbers]
    rescued = _from_state(folder / STATE, missing)
    lost = [number for number in missing if number not in rescued]
    if lost and not (allow_partial and len(lost) < count):
        names = ", ".join(f"{agent_name(number)}_weights.pth" for number in lost)
        raise FileNotFoundError(
            f"{folder}: {META} says K_agents {count}, but {names} is missing"
            + (f", and {STATE} does not hold it either" if (folder / STATE).is_file() else "")
            + ("" if len(lost) == count else "; allow_partial takes the agents that are there")
        )
    if lost:
        log.warning("%s: agents %s are missing; the others are counted anew", folder, ", ".join(map(str, lost)))
    result = []
    for number in range(count):
        if number in numbers:
            content = load_foreign(numbers[number])
            if not isinstance(content, Mapping) or not all(torch.is_tensor(value) for value in content.values()):
                raise ValueError(f"{numbers[number]} holds no tensors by name")
            result.append(adapter_weights(content, agent_name(number), str(numbers[number])))
        elif number in rescued:
            result.append(rescued[number])
    return result


def _from_state(path: Path, numbers: Sequence[int]) -> dict[int, Weights]:
    """Adapters of some agents out of accelerate's state; the backbone's tensors are not read."""
    if not numbers or not path.is_file():
        return {}
    try:
        with safe_open(path, framework="pt") as file:
            agents = split_state(file.keys())
            found = {
                number: {name: file.get_tensor(key) for name, key in agents[agent_name(number)].items()}
                for number in numbers
                if agent_name(number) in agents
            }
    except SafetensorError as error:
        raise ValueError(f"{path}: not a readable safetensors file ({error}); is it complete?") from error
    for number, weights in found.items():
        check_pairs(weights, f"{path} ({agent_name(number)})")
    if found:
        log.warning("%s: agent files are missing, their weights come from %s", path.parent, path.name)
    return found
