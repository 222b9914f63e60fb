"""Start from existing weights with fresh optimizers: a checkpoint, an export, or an original's file."""

from __future__ import annotations

import importlib
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import lightning as L
import torch
from torch import Tensor

from zoo.common.foreign_files import load_json
from zoo.common.registry import package_of
from zoo.common.tensors import split_weight_norm
from zoo.runs import frozen, frozen_files
from zoo.runs.checkpoints import find_checkpoint, load_checkpoint
from zoo.runs.components import CONFIG_NAME, is_export, read_export_weights
from zoo.runs.hub.models import resolve_path
from zoo.runs.model_description import validate_records

log = logging.getLogger(__name__)

_WEIGHT_NORM = "parametrizations.weight.original"
_MAX_NAMES = 5  # in a message
# Arguments of a net that only start or speed up its training, or that the records of frozen modules cover.
_NOT_COMPARED = {
    "attention_gain", "gain", "init", "seed", "std", "dropout", "dropconnect", "dropconnect_rescale",
    "checkpointing", "gradient_checkpointing", "channels_last", "chunk", "source", "revision", "config",
}  # fmt: skip

State = dict[str, Tensor]


def init_from(
    model: L.LightningModule, paths: Path | Sequence[Path], min_matched: float = 0.9
) -> dict[str, Counter[str]]:
    """Copy matching tensors into a model; return counts of matched, missing, unexpected, mismatched ones by component.

    A warning names arguments of a component that differ from those of the checkpoint or export.

    Args:
        model: the task; its components are the first parts of its parameter names.
        paths: checkpoints, run folders, exports, files that the system's converter reads, or models of a hub by name
            (`hf://user/name@revision`); a later one adds to, and overrides, what an earlier one has.
        min_matched: smallest share of a component's tensors that must match, for each component that the files have.

    Raises:
        FileNotFoundError, ValueError: nothing at a path; too few matches, or another frozen backbone than the model's.
    """
    model_state = model.state_dict()
    backbones = frozen.frozen_modules({"": model})
    source_state: State = {}
    paths = [paths] if isinstance(paths, Path) else paths
    named = ", ".join(map(str, paths))
    for path in paths:
        source_state |= _read_source(path, model, model_state, backbones, source_state)
    optional = frozen.frozen_keys(backbones) - source_state.keys()
    report: dict[str, Counter[str]] = {}
    for key in dict.fromkeys([*model_state, *source_state]):
        if key not in optional:
            report.setdefault(key.split(".")[0], Counter())[_compare(key, model_state, source_state)] += 1
    for component, counts in report.items():
        log.info("init_from %s: %s", component, ", ".join(f"{count} {what}" for what, count in sorted(counts.items())))
        required = counts["matched"] + counts["mismatched"] + counts["missing"]
        if sum(counts.values()) > counts["missing"] and counts["matched"] < min_matched * required:
            raise ValueError(
                f"init_from {named}: only {counts['matched']} of the {component}'s tensors match ({dict(counts)}); "
                f"at least {min_matched:.0%} must (init_from_min_matched)"
            )
    matching = {key: source_state[key] for key in model_state if _compare(key, model_state, source_state) == "matched"}
    used = {id(value) for value in matching.values()}  # a file may give one tensor two names
    if unused := [key for key, value in source_state.items() if id(value) not in used]:
        names = f"{', '.join(unused[:_MAX_NAMES])}{', …' if len(unused) > _MAX_NAMES else ''}"
        log.warning("init_from %s: %d tensors are not used: %s", named, len(unused), names)
    model.load_state_dict(matching, strict=False)
    return report


def _compare(key: str, model_state: State, source_state: State) -> str:
    if key in model_state and key in source_state:
        return "matched" if model_state[key].shape == source_state[key].shape else "mismatched"
    return "missing" if key in model_state else "unexpected"


def _read_source(
    path: Path, model: L.LightningModule, model_state: State, backbones: dict[str, Any], earlier: State
) -> State:
    """Read the weights of one path under the names of a model, without those that a backbone has from its source."""
    state, records, saved = read_weights(resolve_path(path), type(model))
    state = _unfold_weight_norm(state, model_state)
    paths = _match_backbones(path, records, backbones)
    state = {_rename(key, paths): value for key, value in state.items()}
    state = _drop_pretrained(path, state, backbones)
    if not any(_compare(key, model_state, state) == "matched" for key in state):
        names = ", ".join(f"{key} {tuple(value.shape)}" for key, value in list(state.items())[:3])
        raise ValueError(f"init_from {path}: no tensor matches in name and shape; it holds {names}, …")
    for name, component in ((getattr(model, "specs", None) or {}).get("components") or {}).items():
        has_weights = any(key.startswith(f"{name}.") for key in state)
        if has_weights and (differences := _compare_arguments(saved.get(name), component)):
            log.warning("init_from %s: %s", name, ", ".join(differences))
    for key in earlier.keys() & state.keys():
        in_backbone = any(key.startswith(f"{model_path}.") for model_path in paths.values())
        if in_backbone and not torch.equal(earlier[key], state[key].to(earlier[key])):
            raise ValueError(f"init_from {path}: its {key} differs from that of an earlier path")
    return state


def _compare_arguments(saved: Any, current: Any) -> list[str]:
    """List the arguments of a component and of its parts that both descriptions have, with other values."""
    saved, current = (each.get("init_args") if isinstance(each, dict) else None for each in (saved, current))
    if not isinstance(saved, dict) or not isinstance(current, dict):
        return []
    differences = []
    for key, value in current.items():
        if key not in saved or key in _NOT_COMPARED:
            continue
        if isinstance(value, dict):
            differences += [f"{key}.{each}" for each in _compare_arguments(saved[key], value)]
        elif value != saved[key]:
            differences.append(f"{key} {value} ({saved[key]!r:.60} in the file)")
    return differences


def _unfold_weight_norm(state: State, model_state: State) -> State:
    """Split weights that an export has folded into length and direction where the model trains these."""
    result = dict(state)
    for length, expected in model_state.items():
        if not length.endswith(f"{_WEIGHT_NORM}0"):
            continue
        weight, direction = (length.removesuffix(f"{_WEIGHT_NORM}0") + end for end in ("weight", f"{_WEIGHT_NORM}1"))
        folded = state.get(weight)
        if folded is not None and direction in model_state and folded.shape == model_state[direction].shape:
            axes = [axis for axis, size in enumerate(expected.shape) if size == 1]
            result |= dict(zip((length, direction), split_weight_norm(result.pop(weight), axes), strict=True))
    return result


def _match_backbones(path: Path, records: frozen_files.Records, backbones: dict[str, Any]) -> dict[str, str]:
    """Refuse weights that were trained on another backbone; return each backbone's path in the model by its path there.

    A backbone may have another path in this task, `encoder` instead of `encoder.backbone`. Two match when they have the
    same last name, or when each side has only one.
    """
    names = [name for name, module in backbones.items() if module.is_frozen]
    paths = {}
    for source_path, record in records.items():
        matches = [name for name in names if name.rpartition(".")[2] == source_path.rpartition(".")[2]]
        if len(names) == len(records) == 1:
            matches = names
        for name in matches:
            frozen_files.verify_frozen_weights(backbones, {name: record}, f"init_from {path}")
        if len(matches) == 1:
            paths[source_path] = matches[0]
    return paths


def _rename(key: str, paths: Mapping[str, str]) -> str:
    """Put what was trained within a frozen module (LoRA's weights) below that module's path in the model."""
    source_path = next((each for each in paths if key.startswith(f"{each}.")), "")
    return paths.get(source_path, "") + key.removeprefix(source_path)


def _drop_pretrained(path: Path, state: State, backbones: dict[str, Any]) -> State:
    """Leave out what a backbone has from its source already; one that was built here may take other weights."""
    pretrained: State = {}
    for name, module in backbones.items():
        if module.source is not None:
            pretrained |= {f"{name}.{key}": value for key, value in module.frozen_state().items()}
    for key in state.keys() & pretrained.keys():
        if not torch.equal(state[key], pretrained[key].to(state[key])):
            raise ValueError(
                f"init_from {path}: its {key} differs from that of the frozen backbone's source; name the source that "
                "belongs to these weights"
            )
    return {key: value for key, value in state.items() if key not in pretrained}


def read_weights(path: Path, task: type) -> tuple[State, frozen_files.Records, dict[str, Any]]:
    """Read the tensors of a file under the names that a task uses, records of frozen modules, and its components.

    The components are described by name, as far as the file says; an export of an older format describes none.
    """
    if not path.exists():
        raise FileNotFoundError(f"init_from: nothing at {path}")
    if is_export(path):
        config = load_json((path / CONFIG_NAME).read_text(encoding="utf-8"))
        components = config.get("components")
        records = validate_records(config.get("frozen", {}))
        return read_export_weights(path), records, components if isinstance(components, dict) else {}
    if path.suffix == ".ckpt" or (path.is_dir() and any(path.glob("*.ckpt"))):
        try:
            checkpoint = load_checkpoint(find_checkpoint(path))
        except ValueError:
            if not _converter(task).is_original(path):  # whose files may have the same suffix
                raise
        else:
            of_lightning = "pytorch-lightning_version" in checkpoint
            if "state_dict" in checkpoint and (of_lightning or not _converter(task).is_original(path)):
                components = checkpoint.get("zoo", {}).get("components", {})
                return checkpoint["state_dict"], checkpoint.get("frozen", {}), components
    converter = _converter(task)
    if path.is_dir() and not converter.is_original(path):
        raise FileNotFoundError(f"init_from: {path} is neither a run, nor an export, nor an original's folder")
    components = converter.original_components(path) if hasattr(converter, "original_components") else {}
    return converter.original_state(path), {}, components


def _converter(task: type) -> Any:
    """Import the converter of the system that a task belongs to."""
    return importlib.import_module(f"{package_of(task)}.convert")
