"""Starting from given weights with fresh optimizers: our checkpoint, an export, or an original's file."""

from __future__ import annotations

import importlib
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import lightning as L
import torch
from safetensors.torch import load_file
from torch import Tensor

from zoo.common.registry import package_of
from zoo.runs import checkpoints as checkpoint_files
from zoo.runs import export, frozen
from zoo.runs.folder import find_checkpoint
from zoo.runs.hub.models import resolve_path

log = logging.getLogger(__name__)

_WEIGHT_NORM = "parametrizations.weight.original"

Records = dict[str, dict[str, Any]]


def init_from(
    model: L.LightningModule, paths: Path | Sequence[Path], min_matched: float = 0.9
) -> dict[str, Counter[str]]:
    """Copy matching tensors into a model and report per component what matched.

    Args:
        model: the task; its components are the first parts of its parameter names.
        paths: checkpoints or run folders of ours, export folders, files that the system's converter reads, or models
            of a hub by name (`hf://user/name@revision`); a later one adds to, and overrides, what an earlier one has.
        min_matched: smallest share of a component's tensors that must match, for each component that the files have.

    Returns:
        Counts of matched, missing, unexpected and mismatched (other shape) tensors by component. Frozen weights count
        only where a file brings them.

    Raises:
        FileNotFoundError: when there is nothing at a path.
        ValueError: when a component matches less than `min_matched`, nothing of a path matches at all, or it was
            trained on another frozen backbone than the model's.
    """
    own = model.state_dict()
    backbones = frozen.frozen_modules({"": model})
    given: dict[str, Tensor] = {}
    for path in [paths] if isinstance(paths, Path) else paths:
        place = resolve_path(path)
        if not place.exists():
            raise FileNotFoundError(f"init_from: nothing at {path}")
        weights, recorded = read_weights(place, type(model))
        weights = _with_weight_norm(weights, own)
        places = _compare_backbones(path, recorded, backbones)
        weights = _without_sourced(path, _at_our_places(weights, places), backbones)
        if not any(key in own and own[key].shape == value.shape for key, value in weights.items()):
            raise ValueError(f"init_from {path}: no tensor matches; {_mismatch(weights, own)}")
        for key in given.keys() & weights.keys():
            beside_frozen = any(key.startswith(f"{place}.") for place in places.values())
            if beside_frozen and not torch.equal(given[key], weights[key].to(given[key])):
                raise ValueError(
                    f"init_from {path}: its {key} differs from that of an earlier path; train one from the other"
                )
        given |= weights
    expected = {key: value for key, value in own.items() if key in given or key not in frozen.frozen_keys(backbones)}
    report, matching = _match(given, expected)
    for component, counts in report.items():
        log.info("init_from %s: %s", component, ", ".join(f"{count} {what}" for what, count in sorted(counts.items())))
        present = sum(counts.values()) - counts["missing"]
        if present and counts["matched"] < min_matched * (counts["matched"] + counts["mismatched"] + counts["missing"]):
            raise ValueError(
                f"init_from {paths}: only {counts['matched']} of the {component}'s tensors match ({dict(counts)}); "
                f"at least {min_matched:.0%} must (init_from_min_matched)"
            )
    model.load_state_dict(matching, strict=False)
    return report


def _with_weight_norm(weights: dict[str, Tensor], own: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same with the weights that an export has folded as length and direction where the model trains these."""
    result = dict(weights)
    for length, kept in own.items():
        if not length.endswith(f"{_WEIGHT_NORM}0"):
            continue
        weight, direction = (length.removesuffix(f"{_WEIGHT_NORM}0") + end for end in ("weight", f"{_WEIGHT_NORM}1"))
        folded = weights.get(weight)
        if folded is not None and direction in own and folded.shape == own[direction].shape:
            axes = [axis for axis, size in enumerate(kept.shape) if size == 1]
            result |= {length: torch.linalg.vector_norm(folded, dim=axes, keepdim=True), direction: result.pop(weight)}
    return result


def _mismatch(weights: dict[str, Tensor], own: dict[str, Tensor]) -> str:
    for key in weights.keys() & own.keys():
        return f"{key} is {tuple(weights[key].shape)} there and {tuple(own[key].shape)} here"
    return f"it holds {', '.join(list(weights)[:3])}, …"


def _match(given: dict[str, Tensor], own: dict[str, Tensor]) -> tuple[dict[str, Counter[str]], dict[str, Tensor]]:
    report: dict[str, Counter[str]] = {}
    matching: dict[str, Tensor] = {}
    for key in dict.fromkeys([*own, *given]):
        if key not in given:
            outcome = "missing"
        elif key not in own:
            outcome = "unexpected"
        elif own[key].shape != given[key].shape:
            outcome = "mismatched"
        else:
            outcome = "matched"
            matching[key] = given[key]
        report.setdefault(key.split(".")[0], Counter())[outcome] += 1
    return report, matching


def _compare_backbones(path: Path, recorded: Records, backbones: dict[str, frozen.FrozenModule]) -> dict[str, str]:
    """Refuse weights that were trained on another backbone.

    A backbone may stand at another place in this task: alone as `encoder`, or as `encoder.backbone`. Those of the same
    last name belong together, those of which one path leads to the other, and the only one there and the only one here.

    Returns:
        The place of each here by its place there.
    """
    ours = {name: module for name, module in backbones.items() if module.is_frozen}
    places = {}
    for there, record in recorded.items():
        same = [name for name in ours if name.rpartition(".")[2] == there.rpartition(".")[2]]
        same = same or [name for name in ours if f"{name}.".startswith(f"{there}.") or there.startswith(f"{name}.")]
        if not same and len(ours) == len(recorded) == 1:
            same = list(ours)
        for name in same:
            frozen.compare(ours[name], record, f"init_from {path} belongs to {there}", name)
        if len(same) == 1:
            places[there] = same[0]
    return places


def _at_our_places(weights: dict[str, Tensor], places: Mapping[str, str]) -> dict[str, Tensor]:
    """The same, with what was trained within a frozen module (`layer_weights`) where that module stands here."""
    moved = {}
    for key, value in weights.items():
        there = next((place for place in places if key.startswith(f"{place}.")), None)
        moved[key if there is None else places[there] + key.removeprefix(there)] = value
    return moved


def _without_sourced(
    path: Path, weights: dict[str, Tensor], backbones: dict[str, frozen.FrozenModule]
) -> dict[str, Tensor]:
    """Leave out what a backbone has from its source already; one that was built here may be given other weights."""
    sourced: dict[str, Tensor] = {}
    for place, module in backbones.items():
        if module.source is not None:
            sourced |= {f"{place}.{key}": value for key, value in module.frozen_state().items()}
    for key in weights.keys() & sourced.keys():
        if not torch.equal(weights[key], sourced[key].to(weights[key])):
            raise ValueError(
                f"init_from {path}: its {key} differs from that of the frozen backbone's source; name the source that "
                "belongs to these weights"
            )
    return {key: value for key, value in weights.items() if key not in sourced}


def read_weights(path: Path, task: type) -> tuple[dict[str, Tensor], Records]:
    """The tensors of a file under the names that a task uses, and the records of frozen modules."""
    if export.is_export(path):
        return load_file(path / export.WEIGHTS_NAME), export.export_config(path).get("frozen", {})
    if path.suffix == ".ckpt" or (path.is_dir() and any(path.glob("*.ckpt"))):
        try:
            checkpoint = checkpoint_files.load_checkpoint(find_checkpoint(path))
        except ValueError:
            if not _converter(task).is_original(path):  # whose files may have our suffix
                raise
        else:
            if "state_dict" in checkpoint:
                return checkpoint["state_dict"], checkpoint.get("frozen", {})
    converter = _converter(task)
    if path.is_dir() and not converter.is_original(path):
        raise FileNotFoundError(f"init_from: {path} is neither a run, nor an export, nor an original's folder")
    return converter.original_state(path), {}


def _converter(task: type) -> Any:
    """The converter of the system that a task belongs to."""
    return importlib.import_module(f"{package_of(task)}.convert")
