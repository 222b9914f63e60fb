"""Converters between checkpoint folders of CI-LLM, standard PEFT folders, and our checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from zoo.ci_llm.convert.folders import Adapters, adapters_of, is_original_folder, write_original
from zoo.ci_llm.convert.names import to_ours
from zoo.ci_llm.convert.peft import is_peft_folder, write_peft
from zoo.ci_llm.convert.read import build_crowd, read, read_checkpoint, write_checkpoint
from zoo.ci_llm.convert.recipe import convert_config
from zoo.ci_llm.nets.crowd import Crowd
from zoo.runs.folder import find_checkpoint

__all__ = [
    "convert",
    "convert_config",
    "describe",
    "from_original",
    "is_original",
    "original_state",
    "to_original",
    "to_peft",
]

ORIGINAL_NAMES = ("checkpoint_step_", "final_checkpoint")


def is_original(path: Path | str) -> bool:
    """Whether a path is a checkpoint folder of CI-LLM, a PEFT folder, or a folder of those of all agents."""
    return is_original_folder(Path(path)) or is_peft_folder(Path(path))


def describe(path: Path | str) -> dict[str, Any]:
    """Say what a folder of adapters holds.

    Raises:
        FileNotFoundError: when there is no such folder, or an agent is missing.
        ValueError: when its layout is not known.
    """
    path = Path(path)
    adapters = read(path)
    facts = {
        "system": "ci_llm",
        "format": "checkpoint of CI-LLM" if is_original_folder(path) else "PEFT folders",
        "agents": len(adapters.weights),
        "rank, alpha, dropout": f"{adapters.rank}, {adapters.alpha}, {adapters.dropout}",
        "targets": ", ".join(adapters.targets),
        "blocks": "all" if adapters.blocks is None else f"{adapters.blocks[0]} to {adapters.blocks[-1]}",
        "tensors": sum(map(len, adapters.weights)),
        "values": sum(value.numel() for weights in adapters.weights for value in weights.values()),
        "backbone": adapters.base or "not named",
    }
    progress = {
        key: adapters.progress[key] for key in ("epoch", "global_step", "completed") if key in adapters.progress
    }
    return facts | progress | {"tokenizer": adapters.tokenizer is not None, "optimizer": adapters.optimizer is not None}


def from_original(path: Path | str, backbone: Path | str | None = None, allow_partial: bool = False) -> nn.Module:
    """Build the crowd of a folder of adapters.

    Args:
        path: a checkpoint folder of CI-LLM, or PEFT folders.
        backbone: the backbone's transformers folder or hub id; by default the one that the files name.
        allow_partial: pass over agents whose files are missing.

    Returns:
        A `Crowd` in evaluation mode: `crowd(input_ids, attention_mask)` gives logits (K, B, T, V).

    Raises:
        FileNotFoundError: when there is no such folder, no backbone, or an agent is missing.
        ValueError: when the layout is not known, files do not belong together, or the backbone is another one.
    """
    path = Path(path)
    return build_crowd(read(path, allow_partial), path, backbone)[0]


def original_state(path: Path | str) -> dict[str, Tensor]:
    """Adapters of all agents under our task's names (`crowd.agents.adapters.*`), stacked.

    Raises:
        FileNotFoundError: when there is no such folder, or an agent is missing.
        ValueError: when its layout is not known.
    """
    return to_ours(read(Path(path)).weights)


def to_original(module: nn.Module, path: Path | str, progress: Mapping[str, Any] | None = None) -> None:
    """Write a crowd as a checkpoint folder of CI-LLM.

    Args:
        module: a `Crowd`.
        path: the folder.
        progress: `epoch`, `global_step`, `config`, `completed`, as far as known.

    Raises:
        ValueError: when the module is no crowd, or the folder holds something else.
    """
    _write(_adapters(module, progress), Path(path), peft=False)


def to_peft(module: nn.Module, path: Path | str, progress: Mapping[str, Any] | None = None) -> None:
    """Write a crowd as PEFT folders `agent0`, `agent1`, ...; arguments as those of `to_original`."""
    _write(_adapters(module, progress), Path(path), peft=True)


def convert(
    source: Path | str | nn.Module,
    target: Path | str,
    backbone: Path | str | None = None,
    allow_partial: bool = False,
) -> dict[str, Any]:
    """Convert between the three formats.

    Args:
        source: a checkpoint folder of CI-LLM; PEFT folders; our checkpoint or run folder; or a crowd.
        target: a `.ckpt` file for our checkpoint. Or a folder: named `checkpoint_step_...` or `final_checkpoint` it
            becomes CI-LLM's, named `peft...` PEFT folders; with another name it becomes PEFT folders from CI-LLM's,
            and CI-LLM's from all else.
        backbone: the backbone's transformers folder or hub id; by default the one that the files name.
        allow_partial: pass over agents whose files are missing.

    Returns:
        What was written: source, target, agents, tensors, and notes on what was left out.

    Raises:
        FileNotFoundError: when the source, the backbone or an agent is missing.
        ValueError: when the layout is not known, files do not belong together, or the backbone is another one.
    """
    target = Path(target)
    notes: list[str] = []
    if isinstance(source, nn.Module):
        adapters, theirs = _adapters(source), False
    elif is_original(source := Path(source)):
        adapters, theirs = read(source, allow_partial), is_original_folder(source)
    else:
        adapters, notes = read_checkpoint(find_checkpoint(source), backbone)
        theirs = False
    if target.suffix == ".ckpt":
        if isinstance(source, nn.Module) or not is_original(source):
            raise ValueError(
                f"{target}: only folders of adapters become our checkpoints; a crowd is saved by `zoo fit`"
            )
        notes += write_checkpoint(adapters, source, target, backbone)
    else:
        peft = target.name.startswith("peft") or (theirs and not target.name.startswith(ORIGINAL_NAMES))
        _write(adapters, target, peft)
        if peft and adapters.optimizer is not None:
            notes.append("optimizer left out: PEFT folders hold none")
    return {
        "system": "ci_llm",
        "source": type(source).__name__ if isinstance(source, nn.Module) else str(source),
        "target": [str(target)],
        "agents": len(adapters.weights),
        "tensors": sum(map(len, adapters.weights)),
        "notes": notes,
    }


def _adapters(module: nn.Module, progress: Mapping[str, Any] | None = None) -> Adapters:
    if not isinstance(module, Crowd):
        raise ValueError(f"expected a Crowd, found {type(module).__name__}")
    return adapters_of(module, progress)


def _write(adapters: Adapters, target: Path, peft: bool) -> None:
    if target.exists() and not is_original(target) and not (target.is_dir() and not any(target.iterdir())):
        raise ValueError(f"{target} exists and holds something else; choose another folder")
    (write_peft if peft else write_original)(target, adapters)
