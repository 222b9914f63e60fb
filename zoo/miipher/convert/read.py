"""Reading files of the Miipher-2 reproductions: which container, which era, which nets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from zoo.common.reading.foreign import load_foreign, plain
from zoo.common.reading.text import load_json
from zoo.miipher.convert.names import CleanerState, State, is_cleaner, open_miipher_state, split_cleaner, unwrapped
from zoo.miipher.convert.vocoder import Vocoder, kind_of, vocoder_of, vocoder_of_parts
from zoo.runs.export import is_export

UNIFIED_TYPE = "miipher2"
OPEN_MIIPHER_NAMES = ("feature_cleaner.pth", "model.pth")
# one model of an Accelerate folder: model.safetensors, model_1.safetensors, pytorch_model.bin, …
ACCELERATE_NAME = re.compile(r"(?:model|pytorch_model)(?:_(\d+))?\.(?:safetensors|bin)")
FOLDER_STEP = re.compile(r"checkpoint_(\d+)(k?)")


@dataclass
class Original:
    """What a file or folder of a Miipher-2 reproduction holds.

    Attributes:
        container: what kind of file or folder.
        files: those that were read.
        cleaner: adapters and the backbone that they were trained on.
        open_miipher: the adapters of Open-Miipher-2, by our names.
        vocoder: the generator and its discriminators.
        settings: section `model` of the training configuration, or what a unified folder says of its adapter.
        training: `step`, `optimizer_state_dict`, `scheduler_state_dict`, `config` of the adapter, as far as present.
    """

    container: str
    files: list[Path]
    cleaner: CleanerState | None = None
    open_miipher: State = field(default_factory=dict)
    vocoder: Vocoder | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)

    @property
    def step(self) -> int | None:
        """Batches trained, as far as the file says: the adapter's before the vocoder's."""
        found = self.training.get("step")
        if found is None and self.vocoder is not None:
            found = self.vocoder.step
        return found if isinstance(found, int) else None


def read(path: Path) -> Original:
    """Read a file or folder.

    Args:
        path: `checkpoint_<n>k.pt`, `adapter_final.pt`, a vocoder's `.pt` or `.ckpt`, an Accelerate folder, a unified
            folder (config.json with model_type miipher2), or a folder of Open-Miipher-2.

    Raises:
        FileNotFoundError: when it, or a file that it names, is not there.
        ValueError: when its layout is not known.
        UnsafeFileError: (a ValueError) when it asks to run code.
    """
    if not path.exists():
        raise FileNotFoundError(f"no file or folder at {path}")
    if path.is_file():
        return _file(path)
    if is_unified(path):
        return _unified(path, _config(path))
    models = {file for file in path.iterdir() if ACCELERATE_NAME.fullmatch(file.name)}
    if models and not is_export(path) and "model_type" not in _config(path):  # which a transformers folder has
        return _accelerate(path, models)
    for name in OPEN_MIIPHER_NAMES:
        if (path / name).is_file():
            return _file(path / name)
    raise ValueError(
        f"{path}: no folder of Miipher-2; known are Accelerate's (model.safetensors or pytorch_model.bin), a unified "
        f"one (config.json with model_type {UNIFIED_TYPE}) and Open-Miipher-2's ({' or '.join(OPEN_MIIPHER_NAMES)})"
    )


def _file(path: Path) -> Original:
    content = plain(load_foreign(path))
    if not isinstance(content, Mapping):
        raise ValueError(f"{path} holds a {type(content).__name__}, not a dict of tensors")
    state = content.get("model_state_dict")
    if isinstance(state, Mapping) and _is_state(state) and is_cleaner(state):
        config = content.get("config") or {}
        training = {key: content[key] for key in _TRAINING if key in content}
        model = config.get("model") if isinstance(config, Mapping) else None
        return Original("checkpoint", [path], split_cleaner(state, path), settings=dict(model or {}), training=training)
    if _is_state(content) and is_cleaner(content):
        return Original("state dict", [path], split_cleaner(content, path))
    if _is_state(content.get("adapter_layers")) and _is_state(content.get("adapter_norms")):
        state = open_miipher_state(content["adapter_layers"], content["adapter_norms"])
        learnable = any(key.endswith(".scale") for key in content["adapter_layers"])
        return Original("open-miipher-2", [path], open_miipher=state, settings={"learnable_scale": learnable})
    vocoder = vocoder_of(content, path)
    if vocoder is not None:
        return Original("vocoder", [path], vocoder=vocoder)
    raise ValueError(
        f"{path}: unknown layout with keys {', '.join(str(key) for key in list(content)[:5])}; known are Miipher-2's "
        "adapter and vocoder checkpoints, the SSL vocoder's and Open-Miipher-2's feature cleaner"
    )


_TRAINING = ("step", "optimizer_state_dict", "scheduler_state_dict", "config")


def _accelerate(folder: Path, files: set[Path]) -> Original:
    """The models of an Accelerate folder, told apart by their tensors: their order differs between the scripts."""
    cleaner: CleanerState | None = None
    parts: dict[str, State] = {}
    used = []
    for file in sorted(files, key=_number):
        content = load_foreign(file)
        if not _is_state(content):
            raise ValueError(f"{file} holds no state dict; found {type(content).__name__}")
        state = unwrapped(content)
        if is_cleaner(state):
            cleaner = split_cleaner(state, file)
        elif (kind := kind_of(state)) is not None:
            parts[kind] = state
        elif not any(key.startswith(("hubert.", "model.")) for key in state):  # the frozen extractor of the targets
            raise ValueError(f"{file}: unknown model with tensors {', '.join(list(state)[:3])}")
        used.append(file)
    if cleaner is None and "generator" not in parts:
        raise ValueError(f"{folder}: neither adapters nor a generator among {', '.join(file.name for file in used)}")
    vocoder = vocoder_of_parts(parts, folder) if "generator" in parts else None
    result = Original("accelerate", used, cleaner, vocoder=vocoder)
    step = _folder_step(folder, adapter=vocoder is None)
    if step is not None and vocoder is None:
        result.training["step"] = step
    elif vocoder is not None:
        vocoder.step = step
    return result


def _number(file: Path) -> int:
    match = ACCELERATE_NAME.fullmatch(file.name)
    return int((match and match[1]) or 0)


def _folder_step(folder: Path, adapter: bool) -> int | None:
    """Batches trained, from step.txt or the folder's name.

    Adapter runs wrote the step itself before the k, vocoder runs the thousands.
    """
    written = folder / "step.txt"
    text = written.read_text(encoding="utf-8").strip() if written.is_file() else ""
    if text.isdecimal():
        return int(text)
    match = FOLDER_STEP.fullmatch(folder.name)
    if match is None:
        return None
    return int(match[1]) * (1000 if match[2] and not adapter else 1)


def _config(folder: Path) -> dict[str, Any]:
    file = folder / "config.json"
    if not file.is_file():
        return {}
    try:
        config = load_json(file.read_text(encoding="utf-8"))
    except ValueError:
        return {}
    return config if isinstance(config, dict) else {}


def is_unified(folder: Path) -> bool:
    """Whether a path is a unified folder."""
    return _config(folder).get("model_type") == UNIFIED_TYPE


def _unified(folder: Path, config: dict[str, Any]) -> Original:
    components = config.get("components") or {}
    found = {}
    for name in ("adapter", "vocoder"):
        if name not in components:
            continue
        file = str(components[name].get("checkpoint_file", ""))
        if not file or Path(file).name != file:
            raise ValueError(f"{folder}/config.json: {name}.checkpoint_file names a file beside it, found {file!r}")
        if not (folder / file).is_file():
            raise FileNotFoundError(f"{folder}/config.json names {file}, which is not in the folder")
        found[name] = _file(folder / file)
    adapter, vocoder = found.get("adapter"), found.get("vocoder")
    if adapter is None and vocoder is None:
        raise ValueError(f"{folder}/config.json names neither an adapter nor a vocoder")
    result = adapter or Original("", [])
    said = components.get("adapter") or {}
    stated = {"hubert_model_name": said.get("base_model"), "hubert_layer": said.get("hubert_layer")}
    result.settings = {key: value for key, value in stated.items() if value is not None} | result.settings
    if vocoder is not None:
        result.vocoder = vocoder.vocoder
        result.files = [*result.files, *vocoder.files]
        if result.vocoder is not None and "output_sampling_rate" in config:
            result.vocoder.settings.setdefault("sampling_rate", config["output_sampling_rate"])
    result.container = "unified"
    return result


def _is_state(value: Any) -> bool:
    return isinstance(value, Mapping) and bool(value) and all(isinstance(tensor, Tensor) for tensor in value.values())
