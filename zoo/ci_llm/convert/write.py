"""Checkpoint folders of CI-LLM and PEFT folders, written: they appear only when they are whole."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from zoo.ci_llm.convert.read import (
    BACKBONE,
    CONFIG,
    META,
    PEFT_WEIGHTS,
    PROGRESS,
    TOKENIZER,
    Adapters,
    agent_name,
)  # fmt: skip
from zoo.ci_llm.nets.agents import Agents
from zoo.common.atomic_files import replace_atomically


def write_original(folder: Path, adapters: Adapters) -> None:
    """Write a checkpoint folder of the original.

    Two keys of the meta file are ours and nothing to the original: the adapted blocks, where not all are adapted, and
    the backbone. A folder that exists is replaced.

    Raises:
        OSError: when the disk is full or the folder is not writable; what was there is untouched.
        ValueError: when the agents are of a kind that the original does not know.
    """
    if not adapters.alike:
        raise ValueError(
            f"{folder}: a checkpoint folder of CI-LLM has one rank and alpha for all agents, no patterns, no rsLoRA "
            "and no DoRA; write PEFT folders (a name that begins with peft)"
        )
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
    if adapters.backbone is not None:
        meta[BACKBONE] = adapters.backbone
    with replace_atomically(folder) as aside:
        aside.mkdir()
        _write_json(aside / META, meta)
        for number, weights in enumerate(adapters.weights):
            torch.save(weights, aside / f"{agent_name(number)}_weights.pth")
        _write_beside(aside, adapters)


def write_peft(folder: Path, adapters: Adapters) -> None:
    """Write a folder `agent{i}/` for each agent; arguments and errors as those of `write_original`."""
    form = Agents(**adapters.form())
    spelled = any("." in target for target in adapters.targets)
    config = {
        "peft_type": "LORA",
        "task_type": adapters.task_type,
        "base_model_name_or_path": adapters.base,
        "revision": None,
        "lora_dropout": adapters.dropout,
        "target_modules": adapters.targets,
        "layers_to_transform": None if spelled else adapters.blocks,
        "bias": "none",
        "init_lora_weights": True,
        "use_dora": adapters.dora,
        "use_rslora": adapters.rslora,
        "lora_bias": False,
        "modules_to_save": None,
        "inference_mode": True,
    }
    with replace_atomically(folder) as aside:
        aside.mkdir()
        for number, weights in enumerate(adapters.weights):
            place = aside / agent_name(number)
            place.mkdir()
            tensors = {key: value.contiguous() for key, value in weights.items()}
            save_file(tensors, place / PEFT_WEIGHTS[0], metadata={"format": "pt"})
            said = {**config, **form.peft_form(number)}
            (place / CONFIG).write_text(json.dumps(said, indent=2, sort_keys=True), encoding="utf-8")
        _write_beside(aside, adapters)


def _write_beside(folder: Path, adapters: Adapters) -> None:
    """Write progress and tokenizer, as far as known, into a folder of adapters."""
    if adapters.progress:
        _write_json(folder / PROGRESS, adapters.progress)
    if isinstance(adapters.tokenizer, Path):
        shutil.copytree(adapters.tokenizer, folder / TOKENIZER)
    elif adapters.tokenizer is not None:
        adapters.tokenizer.save(folder / TOKENIZER)


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=4), encoding="utf-8")  # without a last line break, as the original
