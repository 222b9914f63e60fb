"""Building our cleaner from an original's adapters: which era, which blocks, whose backbone tensors."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

from zoo.common.build import build, check_state_dict
from zoo.common.registry import public_name
from zoo.convert.network_description import component
from zoo.miipher.convert.layouts import LAST_NORM, CleanerState, MiipherFile, parse_block_index
from zoo.miipher.nets.adapters import ParallelAdapters
from zoo.miipher.nets.backbone import Backbone
from zoo.miipher.nets.cleaner import Cleaner
from zoo.runs.pretrained_files import load_config

Attachment = Literal["auto", "parallel"]

UNUSED = "masked_spec_embed"  # only masked training reads it; transformers leaves it out where masking is off

log = logging.getLogger(__name__)


class Built(NamedTuple):
    """A cleaner with the original's weights, the description that builds it, and notes on decisions and differences."""

    cleaner: Cleaner
    spec: dict[str, Any]
    notes: list[str]


def build_cleaner(
    original: MiipherFile,
    source: str | Path | None,
    pad: bool,
    layer: int | None = None,
    attachment: Attachment = "auto",
) -> Built:
    """Build the cleaner of an original, see `MiipherConverter.from_original`; `source` is the backbone's."""
    path = original.files[0]
    name = str(source if source is not None else original.settings.get("hubert_model_name") or "")
    if not name:
        raise ValueError(f"{path} does not say its backbone: give the transformers folder (or hub id) as backbone=")
    if original.cleaner is None:
        raise ValueError(f"{path} holds no adapters (it is a vocoder: vocoder_from_original reads it)")
    state = original.cleaner
    count, era = _block_count(state, original.settings, layer, path)
    backbone = {"source": name, "layer": count, "family": _family(name, state), "pad": pad}
    spec = component_spec(
        Cleaner,
        backbone=component_spec(Backbone, **backbone),
        adapters=component_spec(ParallelAdapters, hidden_dim=state.hidden_dim),
    )
    cleaner: Cleaner = build(spec, Cleaner)
    notes = [f"layers counted {era}: the feature is the output of block {count}"]
    notes += _take_backbone(cleaner.backbone, state, path)
    _check_attachment(cleaner.backbone, state, era, attachment, path)
    adapters = {**state.adapters, **state.norms()}
    check_state_dict(cleaner.adapters, adapters, str(path), "the adapters")
    cleaner.adapters.load_state_dict(adapters)
    for note in notes[1:]:
        log.warning("%s: %s", path, note)
    return Built(cleaner, spec, notes)


def _block_count(
    state: CleanerState, settings: Mapping[str, Any], layer: int | None, source: Path
) -> tuple[int, Literal["from 1", "from 0", "by the adapters alone"]]:
    """The block, from 1, whose output is the feature, and how the configuration's `hubert_layer` is counted."""
    count, stated = state.count, settings.get("hubert_layer")
    if layer is not None and layer != count:
        raise ValueError(
            f"{source}: layer is {layer}, but {count} blocks have adapters; the feature is block {count}'s"
        )
    if stated == count:
        return count, "from 1"
    if stated == count - 1:
        return count, "from 0"
    if stated is not None and layer is None:
        raise ValueError(
            f"{source}: hubert_layer is {stated} and {count} blocks have adapters; counted from 1 there should be "
            f"{stated}, from 0 (before 2025-06-27) {stated + 1}. If the feature is block {count}'s, read it in Python: "
            f"zoo.miipher.convert.from_original(path, layer={count})"
        )
    return count, "by the adapters alone"


def _check_attachment(backbone: Backbone, state: CleanerState, era: str, attachment: Attachment, source: Path) -> None:
    """Refuse adapters that may follow the whole block: that era trained no norms, the later one does."""
    if era == "from 1" or attachment == "parallel":
        return
    state_dict = backbone.model.state_dict()
    norms = {key: value for key, value in state.backbone.items() if key in state_dict and f".{LAST_NORM}." in key}
    if all(torch.equal(value.float(), state_dict[key].float()) for key, value in norms.items()):
        raise ValueError(
            f"{source}: the blocks' {LAST_NORM} are the backbone's own, so the adapters may be of the era before "
            "2025-06-19, when they followed the whole block, h + ff(h), which ours cannot represent. If they run "
            'beside the feed-forward, read it in Python: zoo.miipher.convert.from_original(path, attachment="parallel")'
        )


def _family(source: str, state: CleanerState) -> str:
    """WavLM without its relative positions was loaded with the HuBERT class."""
    kind = load_config(source).model_type
    relative = any(".gru_rel_pos" in key for key in state.backbone)
    return "wavlm_as_hubert" if kind == "wavlm" and state.backbone and not relative else "auto"


def _take_backbone(backbone: Backbone, state: CleanerState, source: Path) -> list[str]:
    """Give the backbone the file's frozen tensors, without the trained norms; note those that differ."""
    current = backbone.model.state_dict()
    stable = isinstance(backbone.model.encoder.layer_norm, torch.nn.Identity)

    def is_unused(key: str) -> bool:
        block = parse_block_index(key)
        is_later = block is not None and block >= state.count
        return key == UNUSED or is_later or (stable and key.startswith("encoder.layer_norm."))

    expected = {key: value for key, value in state.backbone.items() if key in current or not is_unused(key)}
    if UNUSED in current:
        expected.setdefault(UNUSED, current[UNUSED])
    check_state_dict(backbone.model, expected, str(source), "the backbone")
    frozen = {key: value for key, value in state.frozen().items() if key in current}
    differing = [key for key, value in frozen.items() if not torch.equal(value.to(current[key]), current[key])]
    backbone.load_state_dict({f"model.{key}": value for key, value in frozen.items()}, strict=False)
    if not differing:
        return []
    return [f"{len(differing)} frozen tensors differ from the backbone's and are the file's, among them {differing[0]}"]


def component_spec(cls: type, **arguments: Any) -> dict[str, Any]:
    """Describe a class by `class_path` and `init_args`, with every argument that has a default."""
    parameters = inspect.signature(cls).parameters.values()
    defaults = {entry.name: entry.default for entry in parameters if entry.default is not entry.empty}
    return component(public_name(cls), **{**defaults, **arguments})
