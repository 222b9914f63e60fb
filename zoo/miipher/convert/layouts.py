"""Files and folders of the two Miipher-2 reproductions: their names, containers and eras."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from zoo.common.foreign_files import load_json
from zoo.common.safe_load import to_plain_values
from zoo.convert.engine import OriginalFile, load_original
from zoo.convert.tensor_names import NameTable, State, add_prefix, add_tensor, is_state_dict, strip_state_wrappers
from zoo.hifigan.convert.layouts import to_zoo_names
from zoo.miipher.convert.vocoder_files import VocoderFile, detect_vocoder, vocoder_part, with_prenet
from zoo.runs.components import is_export

LAST_NORM = "final_layer_norm"
MODULES = NameTable(("ff.0.{leaf}", "norm.{leaf}"), ("ff.1.{leaf}", "down.{leaf}"), ("ff.3.{leaf}", "up.{leaf}"))
# The last era: adapters beside the backbone, whose last norms they trained.
ADAPTERS = NameTable(
    ("adapters.{n}.", "blocks.{n}.", MODULES),
    (f"extractor.model.encoder.layers.{{n}}.{LAST_NORM}.{{leaf}}", "norms.{n}.{leaf}"),
)
FIRST_ERA = ".adapter.ff."  # in names: adapters as attributes of the blocks
BACKBONE = re.compile(r"extractor\.(?:model|hubert)\.(.+)")  # called `hubert` until 2025-07-13
_LAYER = re.compile(r"encoder\.layers\.(\d+)\.(.+)")

UNIFIED_TYPE = "miipher2"
# one model of an Accelerate folder: model.safetensors, model_1.safetensors, pytorch_model.bin, …
ACCELERATE_NAME = re.compile(r"(?:model|pytorch_model)(?:_(\d+))?\.(?:safetensors|bin)")
FOLDER_STEP = re.compile(r"checkpoint_(\d+)(k?)")
TRAINING = ("step", "config")


@dataclass
class CleanerState:
    """Tensors of an original cleaner."""

    backbone: State = field(default_factory=dict)  # by transformers' names, weight norm by the parametrised ones
    adapters: State = field(default_factory=dict)  # blocks.{i}.{norm,down,up}.{weight,bias}

    @property
    def count(self) -> int:
        """Number of blocks with an adapter."""
        return len({key.split(".")[1] for key in self.adapters})

    @property
    def hidden_dim(self) -> int:
        """Width of the adapters."""
        return self.adapters["blocks.0.down.weight"].shape[0]

    def norms(self) -> State:
        """Return the trained norms `norms.{i}.{weight,bias}` of the blocks that have an adapter."""
        norms = ADAPTERS.read(add_prefix(self.backbone, "extractor.model."))[0]
        return {key: value for key, value in norms.items() if int(key.split(".")[1]) < self.count}

    def frozen(self) -> State:
        """Return the backbone's tensors up to the last block with an adapter, without the trained norms."""
        return {
            key: value
            for key, value in self.backbone.items()
            if (parse_block_index(key) or 0) < self.count and f".{LAST_NORM}." not in key
        }


@dataclass
class MiipherFile(OriginalFile):
    """Contents of a file or folder of a Miipher-2 reproduction.

    `layout` is the kind of container, `settings` section `model` of the training configuration (or those of a unified
    folder on its adapter), `training` the entries of `TRAINING` for the adapter.
    """

    files: list[Path] = field(default_factory=list)  # those that were read
    cleaner: CleanerState | None = None
    vocoder: VocoderFile | None = None

    @property
    def step(self) -> int | None:
        """Batches trained, where the file has them: the adapter's before the vocoder's."""
        step = self.training.get("step")
        if step is None and self.vocoder is not None:
            step = self.vocoder.training.get("step")
        return step if isinstance(step, int) else None


def parse_block_index(key: str) -> int | None:
    """Return the block, from 0, that a backbone tensor belongs to."""
    match = _LAYER.fullmatch(key)
    return int(match[1]) if match else None


def is_cleaner(state: Mapping[str, object]) -> bool:
    """Return whether names are those of an original cleaner with adapters."""
    names = strip_state_wrappers(state)
    return any(
        FIRST_ERA in name or (name.startswith("adapters.") and ADAPTERS.find(name, "original")) for name in names
    )


def split_cleaner(state: Mapping[str, Tensor], source: object) -> CleanerState:
    """Sort the tensors of an original cleaner, of any era, by our names; ValueError for unknown or missing ones."""
    result = CleanerState()
    for key, value in strip_state_wrappers(state).items():
        if FIRST_ERA in key:
            raise ValueError(
                f"{source}: adapters inside the blocks ({key}) are Miipher-2's first era: they follow the whole block, "
                "h + ff(h), which our adapters parallel to the feed-forward cannot represent; train anew"
            )
        if inner := BACKBONE.fullmatch(key):
            add_tensor(result.backbone, inner[1], value, key)
        elif match := ADAPTERS.find(key, "original"):
            add_tensor(result.adapters, match.name, value, key)
        else:
            raise ValueError(f"{source}: {key} belongs neither to the extractor nor to the adapters of Miipher-2")
    names = [f"{module}.{leaf}" for module in ("norm", "down", "up") for leaf in ("weight", "bias")]
    expected = {f"blocks.{block}.{name}" for block in range(result.count) for name in names}
    if missing := sorted(expected - set(result.adapters)):
        raise ValueError(f"{source}: {len(missing)} adapter tensors are missing, among them {missing[0]}")
    result.backbone = to_zoo_names(result.backbone)
    return result


def read_original(path: Path, content: Any = None) -> MiipherFile:
    """Read a file, an Accelerate folder, or a unified folder (config.json with model_type miipher2).

    ValueError when its layout is not known, or it asks to run code. `content` is that of a file loaded already.
    """
    if not path.exists():
        raise FileNotFoundError(f"no file or folder at {path}")
    if path.is_file():
        return _file(path, content)
    if is_unified(path):
        return _unified(path, _config(path))
    models = [file for file in path.iterdir() if ACCELERATE_NAME.fullmatch(file.name)]
    if models and not is_export(path) and "model_type" not in _config(path):  # which a transformers folder has
        return _accelerate(path, models)
    raise ValueError(
        f"{path}: no folder of Miipher-2; known are Accelerate's (model.safetensors or pytorch_model.bin) and a "
        f"unified one (config.json with model_type {UNIFIED_TYPE})"
    )


def _file(path: Path, content: Any = None) -> MiipherFile:
    content = to_plain_values(load_original(path) if content is None else content)
    if not isinstance(content, Mapping):
        raise ValueError(f"{path} holds a {type(content).__name__}, not a dict of tensors")
    state = content.get("model_state_dict")
    if is_state_dict(state) and is_cleaner(state):
        config = content.get("config") or {}
        training = {key: content[key] for key in TRAINING if key in content}
        model = dict(config.get("model") or {}) if isinstance(config, Mapping) else {}
        cleaner = split_cleaner(state, path)
        return MiipherFile("checkpoint", settings=model, training=training, files=[path], cleaner=cleaner)
    if is_state_dict(content) and is_cleaner(content):
        return MiipherFile("state dict", files=[path], cleaner=split_cleaner(content, path))
    vocoder = detect_vocoder(content, path)
    if vocoder is not None:
        return MiipherFile("vocoder", files=[path], vocoder=vocoder)
    raise ValueError(
        f"{path}: unknown layout with keys {', '.join(str(key) for key in list(content)[:5])}; known are Miipher-2's "
        "adapter and vocoder checkpoints and the SSL vocoder's"
    )


def _accelerate(folder: Path, files: list[Path]) -> MiipherFile:
    """Read the models of an Accelerate folder by their tensors: their order differs between the scripts."""
    cleaner: CleanerState | None = None
    parts: dict[str, State] = {}
    used = sorted(files, key=lambda file: int(ACCELERATE_NAME.fullmatch(file.name)[1] or 0))  # type: ignore[index]
    for file in used:
        content = load_original(file)
        if not is_state_dict(content):
            raise ValueError(f"{file} holds no state dict; found {type(content).__name__}")
        state = strip_state_wrappers(content)
        if is_cleaner(state):
            cleaner = split_cleaner(state, file)
        elif (kind := vocoder_part(state)) is not None:
            parts[kind] = state
        elif not any(key.startswith(("hubert.", "model.")) for key in state):  # the frozen extractor of the targets
            raise ValueError(f"{file}: unknown model with tensors {', '.join(list(state)[:3])}")
    if cleaner is None and "generator" not in parts:
        raise ValueError(f"{folder}: neither adapters nor a generator among {', '.join(file.name for file in used)}")
    vocoder = with_prenet("accelerate", parts, parts, folder) if "generator" in parts else None
    result = MiipherFile("accelerate", files=used, cleaner=cleaner, vocoder=vocoder)
    step = _folder_step(folder, adapter=vocoder is None)
    if step is not None:
        (result if vocoder is None else vocoder).training["step"] = step
    return result


def _folder_step(folder: Path, adapter: bool) -> int | None:
    """Return the batches trained, from step.txt or the folder's name.

    Adapter runs wrote the step itself before the k, vocoder runs the thousands.
    """
    written = folder / "step.txt"
    text = written.read_text(encoding="utf-8").strip() if written.is_file() else ""
    if text.isdecimal():
        return int(text)
    match = FOLDER_STEP.fullmatch(folder.name)
    return int(match[1]) * (1000 if match[2] and not adapter else 1) if match else None


def _config(folder: Path) -> dict[str, Any]:
    try:
        config = load_json((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return config if isinstance(config, dict) else {}


def is_unified(folder: Path) -> bool:
    """Return whether a path is a unified folder."""
    return _config(folder).get("model_type") == UNIFIED_TYPE


def _unified(folder: Path, config: dict[str, Any]) -> MiipherFile:
    components = config.get("components") or {}
    originals = {}
    for name in ("adapter", "vocoder"):
        if name not in components:
            continue
        file = str(components[name].get("checkpoint_file", ""))
        if not file or Path(file).name != file:
            raise ValueError(f"{folder}/config.json: {name}.checkpoint_file names a file beside it, found {file!r}")
        if not (folder / file).is_file():
            raise FileNotFoundError(f"{folder}/config.json names {file}, which is not in the folder")
        originals[name] = _file(folder / file)
    if not originals:
        raise ValueError(f"{folder}/config.json names neither an adapter nor a vocoder")
    result = originals.get("adapter") or MiipherFile("")
    adapter = components.get("adapter") or {}
    stated = {"hubert_model_name": adapter.get("base_model"), "hubert_layer": adapter.get("hubert_layer")}
    result.settings = {key: value for key, value in stated.items() if value is not None} | result.settings
    if "vocoder" in originals:
        result.vocoder = originals["vocoder"].vocoder
        result.files = [*result.files, *originals["vocoder"].files]
        if result.vocoder is not None and "output_sampling_rate" in config:
            result.vocoder.settings.setdefault("sampling_rate", config["output_sampling_rate"])
    result.layout = "unified"
    return result
