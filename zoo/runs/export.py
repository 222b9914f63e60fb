"""Exports: a folder with fused safetensors, the description of the parts and a model card; no Trainer, no pickle."""

from __future__ import annotations

import copy
import importlib.util
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn

from zoo import __version__
from zoo.common.atomic_files import replace_atomically
from zoo.common.configs import load_json
from zoo.runs import frozen
from zoo.runs.descriptions import OutdatedDescriptionError, described

ONNX_PACKAGES = ("onnx", "onnxscript", "onnxruntime")
WEIGHTS_NAME = "model.safetensors"
CONFIG_NAME = "config.json"

CALL_USAGE = """import zoo

model = zoo.load("PATH_OF_THIS_FOLDER")
result = model({})
"""
AUDIO_USAGE = """import soundfile, zoo

model = zoo.load("PATH_OF_THIS_FOLDER")
audio, sample_rate = soundfile.read("input.wav", dtype="float32")
result = model(audio.T, sample_rate)  # (T,) or (C, T); soundfile has the channels last
"""
FEATURES_USAGE = """import numpy, zoo

model = zoo.load("PATH_OF_THIS_FOLDER")
result = model.from_mel(numpy.load("features.npy"))  # (C, F) to (T,), at model.sample_rate
"""
CARD = """---
library_name: zoo
tags: [{system}]
---
# {title}

Exported by zoo {version} from `{source}`{step}.

```python
{usage}```

Weights: `{weights}` ({parameters:,} values{fused}). Parts and their arguments: `{config}`.{classes}
The licence of the weights is that of the data and checkpoints they come from; see NOTICE of the zoo for known sources.
"""


@dataclass(frozen=True)
class Graph:
    """A net to be written as ONNX.

    Args:
        net: in evaluation mode; takes tensors in the order of `inputs`, gives one or a tuple of them.
        inputs: names of its inputs, each with its axes that are free: their names, or multiples such as `8 * Dim("n")`.
        outputs: names of what it gives.
        examples: inputs, the first to trace the net by, the others of other sizes to compare it with torch.
        name: of the file, without its suffix.
    """

    net: nn.Module
    inputs: Mapping[str, Mapping[int, Any]]
    outputs: Sequence[str]
    examples: Sequence[tuple[Tensor, ...]]
    name: str = "model"


@dataclass(frozen=True)
class OnnxForm:
    """What a system is in ONNX: its graphs, and contents of files to go beside them, by names that begin with onnx_."""

    graphs: Sequence[Graph]
    beside: Mapping[str, bytes] = field(default_factory=dict)

    def write(self, folder: Path) -> dict[str, float]:
        """Write all files; see `write_graph`.

        Returns:
            The largest difference from torch, by the graph's file.
        """
        check_onnx()
        for name, content in self.beside.items():
            (folder / name).write_bytes(content)
        return {f"{each.name}.onnx": write_graph(each, folder / f"{each.name}.onnx") for each in self.graphs}


def check_onnx() -> None:
    """Refuse to export without the packages for it.

    Raises:
        ImportError: naming what is missing and the extra that brings it.
    """
    missing = [name for name in ONNX_PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise ImportError(f"ONNX export needs {', '.join(missing)}: pip install zoo[export]")


def write_graph(graph: Graph, path: Path) -> float:
    """Write a net as an ONNX file, which appears only when it has been compared with torch.

    Returns:
        Largest absolute difference between torch and onnxruntime over all examples.

    Raises:
        ImportError: as `check_onnx`.
    """
    check_onnx()
    import onnxruntime

    free = tuple({axis: _dim(size) for axis, size in axes.items()} for axes in graph.inputs.values())
    with replace_atomically(path) as temporary:
        torch.onnx.export(
            graph.net,
            graph.examples[0],
            temporary,
            dynamo=True,
            input_names=list(graph.inputs),
            output_names=list(graph.outputs),
            dynamic_shapes=free,
            external_data=False,
            verbose=False,
        )
        session = onnxruntime.InferenceSession(temporary, providers=["CPUExecutionProvider"])
        return max(_difference(graph, session, example) for example in graph.examples)


def _dim(size: Any) -> Any:
    return torch.export.Dim(size) if isinstance(size, str) else size


def _difference(graph: Graph, session: Any, example: tuple[Tensor, ...]) -> float:
    with torch.inference_mode():
        wanted = graph.net(*example)
    given = {name: value.numpy() for name, value in zip(graph.inputs, example, strict=True)}
    found = session.run(list(graph.outputs), given)
    pairs = zip(found, wanted if isinstance(wanted, tuple) else (wanted,), strict=True)
    return max(float((torch.from_numpy(ours) - theirs).abs().max()) for ours, theirs in pairs)


def fuse(parts: dict[str, nn.Module]) -> list[str]:
    """Fold weight norm and the like of every part that can, in place; returns their names."""
    fused = [name for name, part in parts.items() if hasattr(part, "remove_weight_norm_")]
    for name in fused:
        parts[name].remove_weight_norm_()  # type: ignore[operator]
    return fused


def write_export(
    folder: Path,
    specs: dict[str, Any],
    parts: dict[str, nn.Module],
    source: str,
    step: int | None = None,
    usage: str = AUDIO_USAGE,
    onnx: OnnxForm | None = None,
) -> dict[str, float]:
    """Write an export; the folder appears only when it is complete.

    Weights of frozen modules that the hub has are left out, those of local ones go into `frozen/`.

    Args:
        folder: must not exist, or be an earlier export (replaced).
        specs: `inference` (dotted class), `parts` (name -> class_path and init_args) and, where there are any,
            `options` (name -> value), as in our checkpoints.
        parts: the built parts; those that can be are fused in place, those that `specs` does not name left out.
        source: where the weights come from, for the card.
        step: batches trained, for the card.
        usage: Python lines, for the card.
        onnx: to go into the folder as well.

    Returns:
        What `onnx` differs from torch, by file.

    Raises:
        ValueError: when the folder holds something else than an export.
        ImportError: when packages for ONNX are missing.
    """
    if folder.exists() and not is_export(folder):
        raise ValueError(f"{folder} exists and is not an export; choose another folder")
    parts = {name: part for name, part in parts.items() if name in specs["parts"]}
    fused = fuse(parts)
    modules = frozen.frozen_modules(parts)
    described, recorded = self_contained(specs["parts"], frozen.records(modules))
    left_out = frozen.frozen_keys(modules)
    weights: dict[str, Tensor] = {
        f"{name}.{key}": value.detach().cpu().contiguous()
        for name, part in parts.items()
        for key, value in part.state_dict().items()
        if f"{name}.{key}" not in left_out
    }
    if len({value.data_ptr() for value in weights.values()}) < len(weights):  # tied ones: safetensors takes no aliases
        weights = {name: value.clone() for name, value in weights.items()}
    config = {
        "zoo": __version__,
        "inference": specs["inference"],
        "task": specs.get("task"),
        "parts": described,
        "options": specs.get("options", {}),
        "frozen": recorded,
        "fused": fused,
        "source": source,
        "step": step,
    }
    package, _, name = specs["inference"].rpartition(".")
    system = package.rpartition(".")[2]
    classes = config["options"].get("classes")
    card = CARD.format(
        system=system,
        title=f"{system}: {name}",
        usage=usage,
        version=__version__,
        source=source,
        step=f" after {step} batches" if step else "",
        weights=WEIGHTS_NAME,
        config=CONFIG_NAME,
        classes=f"\nClasses, from 1: {', '.join(classes)}." if classes else "",
        parameters=sum(tensor.numel() for tensor in weights.values()),
        fused=f", weight norm folded in {', '.join(fused)}" if fused else "",
    )
    with replace_atomically(folder) as aside:
        aside.mkdir()
        frozen.save_copies(modules, recorded, aside)
        (aside / WEIGHTS_NAME).write_bytes(save(weights, metadata={"format": "pt"}))
        (aside / CONFIG_NAME).write_text(json.dumps(config, indent=2), encoding="utf-8")
        (aside / "README.md").write_text(card, encoding="utf-8")
        return onnx.write(aside) if onnx else {}


def self_contained(parts: dict[str, Any], recorded: dict[str, dict[str, Any]]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Let descriptions and records name the copies in the export, not the folders of this machine."""
    parts, recorded = copy.deepcopy(parts), copy.deepcopy(recorded)
    for path, record in recorded.items():
        arguments = frozen.find_arguments(parts, path)
        if record["folder"] is not None and arguments is not None:
            for description in (arguments, record):
                description |= {"source": record["folder"], "revision": None}
            if "config" in arguments:
                arguments["config"] = None
    return parts, recorded


def export_config(folder: Path) -> dict[str, Any]:
    """Read an export's description, its parts under their public names."""
    return described(load_json((folder / CONFIG_NAME).read_text(encoding="utf-8")))


def is_export(path: Path) -> bool:
    """Whether a path is an export folder of ours (others, too, call their files config.json and model.safetensors)."""
    if not ((path / CONFIG_NAME).is_file() and (path / WEIGHTS_NAME).is_file()):
        return False
    try:
        config = export_config(path)
    except OutdatedDescriptionError:
        return True
    except ValueError:
        return False
    return isinstance(config, dict) and {"zoo", "inference", "parts"} <= set(config)


def parts_state(state: dict[str, Tensor], name: str) -> dict[str, Tensor]:
    """The tensors of one part, under the part's own names."""
    prefix = name + "."
    return {key[len(prefix) :]: value for key, value in state.items() if key.startswith(prefix)}
