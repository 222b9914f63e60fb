"""Write exports: a folder with fused safetensors, the description of the components and a model card; no pickle."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from zoo import __version__
from zoo.common.atomic_files import replace_atomically
from zoo.common.registry import allowed_packages
from zoo.runs import frozen, frozen_files
from zoo.runs.components import CONFIG_NAME, WEIGHTS_NAME, is_export, save_components
from zoo.runs.onnx_export import ONNX_NAME, OnnxGraph, write_onnx

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
# {system}: {name}

Exported by zoo {version} from `{source}`{step}.

```python
{usage}```

Weights: `{weights}` ({values:,} values{fused}). Components and their arguments: `{config}`.{classes}{packages}
The licence of the weights is that of the data and checkpoints they come from; see NOTICE of the zoo for known sources.
"""


def write_export(
    folder: Path,
    description: dict[str, Any],
    components: dict[str, nn.Module],
    source: str,
    step: int | None = None,
    usage: str = AUDIO_USAGE,
    onnx: OnnxGraph | None = None,
) -> float | None:
    """Write an export; the folder appears only when it is complete.

    Weights of frozen modules that the hub has are left out, those of local ones go into `frozen/`.

    Args:
        folder: must not exist, or be an earlier export (replaced); a ValueError otherwise.
        description: of the components, as in checkpoints.
        components: built; their norms are folded in place. Those that `description` does not name are left out.
        source, step, usage: for the card: where the weights come from, batches trained, Python lines.
        onnx: graph to write into the folder as well, as model.onnx; its largest difference from torch is returned.
    """
    if folder.exists() and not is_export(folder):
        raise ValueError(f"{folder} exists and is not an export; choose another folder")
    components = {name: each for name, each in components.items() if name in description["components"]}
    fused = [name for name, each in components.items() if hasattr(each, "remove_weight_norm_")]
    for name in fused:
        components[name].remove_weight_norm_()  # type: ignore[operator]
    modules = frozen.frozen_modules(components)
    specs, records = make_portable(description["components"], frozen.frozen_records(modules))
    weights = collect_weights(components, frozen.frozen_keys(modules))
    description = {**description, "components": specs, "frozen": records}
    values = sum(tensor.numel() for tensor in weights.values())
    card = format_card(description, usage, fused=fused, source=source, step=step, values=values)
    with replace_atomically(folder) as temporary:
        temporary.mkdir()
        frozen_files.save_copies(modules, records, temporary)
        save_components(temporary, weights, description, fused=fused, source=source, step=step)
        (temporary / "README.md").write_text(card, encoding="utf-8")
        return write_onnx(onnx, temporary / ONNX_NAME) if onnx else None


def collect_weights(components: dict[str, nn.Module], excluded: set[str]) -> dict[str, Tensor]:
    """Collect tensors by `<component>.<name>` on the CPU; tied ones are cloned, as safetensors takes no aliases."""
    weights: dict[str, Tensor] = {
        f"{name}.{key}": value.detach().cpu().contiguous()
        for name, component in components.items()
        for key, value in component.state_dict().items()
        if f"{name}.{key}" not in excluded
    }
    if len({value.data_ptr() for value in weights.values()}) < len(weights):
        weights = {name: value.clone() for name, value in weights.items()}
    return weights


def format_card(
    description: dict[str, Any], usage: str, fused: list[str], source: str, step: int | None, values: int
) -> str:
    """Write the model card of an export; `values` is the number of its weights."""
    package, _, name = description["inference"].rpartition(".")
    classes = description.get("options", {}).get("classes")
    packages = [each for each in allowed_packages() if f'"{each}.' in json.dumps(description)]
    return CARD.format(
        system=package.rpartition(".")[2],
        name=name,
        usage=usage,
        version=__version__,
        source=source,
        step=f" after {step} steps" if step else "",
        weights=WEIGHTS_NAME,
        config=CONFIG_NAME,
        classes=f"\nClasses, from 1: {', '.join(classes)}." if classes else "",
        packages=f"\nLoading it needs `allow_import={packages}`." if packages else "",
        values=values,
        fused=f", weight norm folded in {', '.join(fused)}" if fused else "",
    )


def make_portable(specs: dict[str, Any], records: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Copy descriptions and records, and let them name the copies in the export, not the folders of this machine."""
    specs, records = copy.deepcopy(specs), copy.deepcopy(records)
    for path, record in records.items():
        init_args = frozen_files.find_init_args(specs, path)
        if record["folder"] is not None and init_args is not None:
            for entry in (init_args, record):
                entry |= {"source": record["folder"], "revision": None}
            if "config" in init_args:
                init_args["config"] = None
    return specs, records
