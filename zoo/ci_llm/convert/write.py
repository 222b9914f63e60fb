"""Writers of CI-LLM's checkpoint folders and of PEFT folders; a folder appears only when it is complete."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from zoo.ci_llm.convert.read import BACKBONE, CONFIG, META, PEFT_WEIGHTS, PROGRESS, TOKENIZER, Adapters, agent_name
from zoo.common.atomic_files import replace_atomically


def write_original(folder: Path, adapters: Adapters) -> None:
    """Write a checkpoint folder of the original; an existing one is replaced.

    The meta file has two keys of ours, which the original ignores: the adapted blocks, where not all are adapted, and
    the backbone.

    Raises:
        OSError: when the disk is full or the folder is not writable; an existing folder is untouched.
        ValueError: when the agents use rsLoRA.
    """
    if adapters.rslora:
        raise ValueError(
            f"{folder}: a checkpoint folder of CI-LLM has no rsLoRA; write PEFT folders (a name that begins with peft)"
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
    with replace_atomically(folder) as temporary:
        temporary.mkdir()
        _write_json(temporary / META, meta)
        for number, weights in enumerate(adapters.weights):
            torch.save(weights, temporary / f"{agent_name(number)}_weights.pth")
        _write_companions(temporary, adapters)


def write_peft(folder: Path, adapters: Adapters) -> None:
    """Write a folder `agent{i}/` for each agent; arguments and errors as those of `write_original`.

    The metadata of its safetensors have the hash of the backbone, where known, which peft ignores.
    """
    metadata = {"format": "pt"}
    if adapters.backbone is not None:
        metadata[BACKBONE] = str(adapters.backbone["sha256"])
    has_full_names = any("." in target for target in adapters.targets)
    config = {
        "peft_type": "LORA",
        "task_type": adapters.task_type,
        "base_model_name_or_path": adapters.base,
        "revision": None,
        "r": adapters.rank,
        "lora_alpha": adapters.alpha,
        "lora_dropout": adapters.dropout,
        "target_modules": adapters.targets,
        "layers_to_transform": None if has_full_names else adapters.blocks,
        "bias": "none",
        "init_lora_weights": True,
        "use_dora": False,
        "use_rslora": adapters.rslora,
        "lora_bias": False,
        "modules_to_save": None,
        "inference_mode": True,
    }
    with replace_atomically(folder) as temporary:
        temporary.mkdir()
        for number, weights in enumerate(adapters.weights):
            agent_folder = temporary / agent_name(number)
            agent_folder.mkdir()
            tensors = {key: value.contiguous() for key, value in weights.items()}
            save_file(tensors, agent_folder / PEFT_WEIGHTS[0], metadata=metadata)
            (agent_folder / CONFIG).write_text(json.dumps(config, indent=2, sort_keys=True), encoding="utf-8")
        _write_companions(temporary, adapters)


def _write_companions(folder: Path, adapters: Adapters) -> None:
    """Write progress and tokenizer, as far as known, next to adapters."""
    if adapters.progress:
        _write_json(folder / PROGRESS, adapters.progress)
    if isinstance(adapters.tokenizer, Path):
        shutil.copytree(adapters.tokenizer, folder / TOKENIZER)
    elif adapters.tokenizer is not None:
        (folder / TOKENIZER).mkdir()
        adapters.tokenizer.save_source(folder / TOKENIZER)


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=4), encoding="utf-8")  # without a last line break, as the original
