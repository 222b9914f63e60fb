"""The converter between checkpoint folders of CI-LLM, PEFT folders, and checkpoints of the zoo."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from zoo.ci_llm.convert.checkpoints import (
    COMPONENT,
    INFERENCE,
    adapters_of,
    build_crowd,
    read_checkpoint,
    to_zoo,
    to_zoo_state,
)
from zoo.ci_llm.convert.read import (
    FORMATS,
    ORIGINAL_LAYOUT,
    Adapters,
    is_original_folder,
    is_peft_folder,
    other_files,
    read,
)
from zoo.ci_llm.convert.write import write_original, write_peft
from zoo.ci_llm.nets.crowd import Crowd
from zoo.convert.engine import ConvertedModel, Converter
from zoo.convert.tensor_names import State
from zoo.runs.checkpoints import find_checkpoint

ORIGINAL_NAMES = ("checkpoint_step_", "final_checkpoint")


class AdapterConverter(Converter[Adapters]):
    """Checkpoint folders of CI-LLM, PEFT folders and folders of those of all agents."""

    system, task, inference = "ci_llm", "zoo.ci_llm.CrowdTask", INFERENCE
    formats = FORMATS

    def is_original(self, path: Path | str, content: Any = None) -> bool:
        """Whether a path is a checkpoint folder of CI-LLM, a PEFT folder, or a folder of those of all agents."""
        return is_original_folder(Path(path)) or is_peft_folder(Path(path))

    def from_original(self, path: Path | str, backbone: Path | str | None = None) -> nn.Module:
        """Build the crowd of a folder of adapters, in evaluation mode; options and errors are those of `convert`."""
        path = Path(path)
        return build_crowd(self.read(path), path, backbone)[0]

    def convert(self, source: Path | str, target: Path | str, backbone: Path | str | None = None) -> dict[str, Any]:
        """Convert between the three formats.

        Args:
            source: a checkpoint folder of CI-LLM; PEFT folders; or our checkpoint or run folder.
            target: a `.ckpt` file for our checkpoint. Or a folder: named `checkpoint_step_...` or `final_checkpoint` it
                becomes CI-LLM's, named `peft...` PEFT folders; with another name it becomes PEFT folders from
                CI-LLM's, and CI-LLM's from all else.
            backbone: the backbone's transformers folder or hub id; by default the one that the files name.

        Returns:
            The report: source, target, agents, tensors, and notes on what was left out.

        Raises:
            FileNotFoundError: when the source, the backbone or an agent is missing.
            ValueError: when the layout is unknown, files do not belong together, or the backbone is another one.
        """
        return super().convert(source, target, backbone=backbone)

    def to_original(self, module: nn.Module, path: Path | str, progress: Mapping[str, Any] | None = None) -> None:
        """Write a `Crowd` as a checkpoint folder of CI-LLM.

        Args:
            progress: `epoch`, `global_step`, `config`, `completed`, as far as known.
        """
        if not isinstance(module, Crowd):
            raise ValueError(f"expected a Crowd, found {type(module).__name__}")
        self._write(adapters_of(module, progress), Path(path), as_peft=False)

    def original_components(self, path: Path | str) -> dict[str, Any]:
        """Describe what scales the adapters of a folder, for `init_from` to compare."""
        adapters = self.read(Path(path))
        agents = {"alpha": adapters.alpha, "rslora": adapters.rslora}
        return {COMPONENT: {"init_args": {"agents": {"init_args": agents}}}}

    def read(self, path: Path, *args: Any, content: Any = None, **options: Any) -> Adapters:
        """Read a folder of adapters, see `zoo.ci_llm.convert.read.read`; it is no file, so there is no `content`."""
        return read(path)

    def describe_content(self, original: Adapters, path: Path) -> dict[str, Any]:
        """Summarise a folder; see `Converter.describe_content`."""
        progress = original.progress
        return {
            "agents": len(original.weights),
            "rank, alpha, dropout": f"{original.rank}, {original.alpha}, {original.dropout}",
            "targets": ", ".join(original.targets),
            "blocks": "all" if original.blocks is None else f"{original.blocks[0]} to {original.blocks[-1]}",
            "tensors": original.tensor_count,
            "values": sum(value.numel() for weights in original.weights for value in weights.values()),
            "backbone": original.base or "not named",
            **{key: progress[key] for key in ("epoch", "global_step", "completed") if key in progress},
            "tokenizer": original.tokenizer is not None,
        }

    def _task_state(self, original: Adapters, path: Path) -> State:
        return to_zoo_state(original.weights)

    def _read_source(self, source: Path, backbone: Any = None) -> Adapters:
        return self.read(source)

    def to_zoo(self, original: Adapters, source: Path, is_checkpoint: bool, **options: Any) -> ConvertedModel:
        """Build the content of a checkpoint; see `Converter.to_zoo`."""
        return to_zoo(original, source, options["backbone"])

    def write_zoo(self, original: Adapters, source: Path, target: Path, **options: Any) -> dict[str, Any]:
        """Write a checkpoint, or the other kind of folder."""
        if target.suffix != ".ckpt":
            return self._to_folder(original, target, original.layout == ORIGINAL_LAYOUT, [])
        return {**super().write_zoo(original, source, target, **options), "tensors": original.tensor_count}

    def from_zoo(self, source: Path, target: Path, **options: Any) -> dict[str, Any]:
        """Write our checkpoint or run as a folder."""
        adapters, notes = read_checkpoint(find_checkpoint(source), options["backbone"])
        return self._to_folder(adapters, target, False, notes)

    def _to_folder(self, adapters: Adapters, target: Path, from_original: bool, notes: list[str]) -> dict[str, Any]:
        if target.suffix == ".ckpt":
            raise ValueError(
                f"{target}: only folders of adapters become checkpoints of the zoo; `zoo fit` saves a crowd"
            )
        as_peft = target.name.startswith("peft") or (from_original and not target.name.startswith(ORIGINAL_NAMES))
        self._write(adapters, target, as_peft)
        counts = {"agents": len(adapters.weights), "tensors": adapters.tensor_count}
        return {"target": [str(target)], **counts, "notes": notes}

    def _write(self, adapters: Adapters, target: Path, as_peft: bool) -> None:
        if target.exists() and not self.is_original(target) and not (target.is_dir() and not any(target.iterdir())):
            raise ValueError(f"{target} exists and holds something else; choose another folder")
        if target.exists() and (others := other_files(target)):
            raise ValueError(f"{target} would be replaced, and holds {others[0]}; choose another folder")
        (write_peft if as_peft else write_original)(target, adapters)
