"""Name tables between our cleaners and vocoders and the files of the two Miipher-2 reproductions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from zoo.hifigan.convert.read import to_our_keys

State = dict[str, Tensor]

# modules of one adapter: theirs, ours
ADAPTER_MODULES = (("ff.0", "norm"), ("ff.1", "down"), ("ff.3", "up"))
# the backbone inside the original's cleaner; called `hubert` until 2025-07-13
BACKBONE_NAMES = ("model", "hubert")
LAST_NORM = "final_layer_norm"
# what wraps a whole model in files of several processes or compiled ones
WRAPPERS = ("module.", "_orig_mod.")

_ADAPTER = re.compile(r"adapters\.(\d+)\.(ff\.[013])\.(weight|bias)")
_INNER = re.compile(r"encoder\.layers\.(\d+)\.adapter\.(ff\.[013])\.(weight|bias)")
_BACKBONE = re.compile(rf"extractor\.(?:{'|'.join(BACKBONE_NAMES)})\.(.+)")
_LAYER = re.compile(r"encoder\.layers\.(\d+)\.(.+)")


@dataclass
class CleanerState:
    """Tensors of an original cleaner.

    Attributes:
        backbone: by transformers' names, weight norm by the parametrised ones.
        adapters: `blocks.{i}.{norm,down,up}.{weight,bias}`.
        inside: whether the adapters were attributes of the blocks (the first era).
    """

    backbone: State = field(default_factory=dict)
    adapters: State = field(default_factory=dict)
    inside: bool = False

    @property
    def count(self) -> int:
        """How many blocks have an adapter."""
        return len({key.split(".")[1] for key in self.adapters})

    @property
    def hidden_dim(self) -> int:
        """Width of the adapters."""
        return self.adapters["blocks.0.down.weight"].shape[0]

    def norms(self) -> State:
        """The trained norms `norms.{i}.{weight,bias}` of the blocks that have an adapter."""
        found = {}
        for key, value in self.backbone.items():
            match = _LAYER.fullmatch(key)
            if match and int(match[1]) < self.count and match[2].startswith(LAST_NORM):
                found[f"norms.{match[1]}.{match[2].rpartition('.')[2]}"] = value
        return found

    def frozen(self) -> State:
        """The backbone's tensors up to the last block with an adapter, without the trained norms."""
        return {
            key: value
            for key, value in self.backbone.items()
            if (block_of(key) or 0) < self.count and f".{LAST_NORM}." not in key
        }


def is_cleaner(state: Mapping[str, object]) -> bool:
    """Whether names are those of an original cleaner with adapters."""
    return any(_ADAPTER.fullmatch(key) or ".adapter.ff." in key for key in unwrapped(state))


def unwrapped(state: Mapping[str, Tensor] | Mapping[str, object]) -> dict[str, Tensor]:
    """Strip the prefixes that data parallelism and compilation put before every name."""
    names = {key: str(key) for key in state}
    for wrapper in WRAPPERS:
        if names and all(name.startswith(wrapper) for name in names.values()):
            names = {key: name.removeprefix(wrapper) for key, name in names.items()}
    return {name: state[key] for key, name in names.items()}  # type: ignore[misc]


def split_cleaner(state: Mapping[str, Tensor], source: object) -> CleanerState:
    """Sort the tensors of an original cleaner by our names.

    Args:
        state: its state dict, of any era.
        source: named in errors.

    Raises:
        ValueError: when a name is unknown or the adapters are not numbered from 0 without gaps.
    """
    modules = dict(ADAPTER_MODULES)
    result = CleanerState()
    for key, value in unwrapped(state).items():
        inner = _BACKBONE.fullmatch(key)
        name = inner[1] if inner else key
        match = _INNER.fullmatch(name) if inner else _ADAPTER.fullmatch(name)
        if match:
            result.adapters[f"blocks.{match[1]}.{modules[match[2]]}.{match[3]}"] = value
            result.inside = result.inside or bool(inner)
        elif inner:
            result.backbone[name] = value
        else:
            raise ValueError(f"{source}: {key} belongs neither to the extractor nor to the adapters of Miipher-2")
    wanted = {
        f"blocks.{i}.{module}.{leaf}"
        for i in range(result.count)
        for module in modules.values()
        for leaf in ("weight", "bias")
    }
    if missing := sorted(wanted - set(result.adapters)):
        raise ValueError(f"{source}: {len(missing)} adapter tensors are missing, among them {missing[0]}")
    result.backbone = to_our_keys(result.backbone)
    return result


def join_cleaner(backbone: Mapping[str, Tensor], adapters: Mapping[str, Tensor]) -> State:
    """The state dict of an original cleaner, as its last era names it.

    Args:
        backbone: the whole backbone by transformers' names.
        adapters: ours, `blocks.*` and `norms.*`; the norms take the place of the backbone's.

    Returns:
        `extractor.model.*` and `adapters.*`.
    """
    state = {f"extractor.model.{key}": value for key, value in backbone.items()}
    theirs = {ours: name for name, ours in ADAPTER_MODULES}
    for key, value in adapters.items():
        kind, number, rest = key.split(".", 2)
        if kind == "norms":
            state[f"extractor.model.encoder.layers.{number}.{LAST_NORM}.{rest}"] = value
        else:
            module, leaf = rest.split(".")
            state[f"adapters.{number}.{theirs[module]}.{leaf}"] = value
    return state


def block_of(key: str) -> int | None:
    """The block, from 0, that a backbone tensor belongs to."""
    match = _LAYER.fullmatch(key)
    return int(match[1]) if match else None


def open_miipher_state(adapter_layers: Mapping[str, Tensor], adapter_norms: Mapping[str, Tensor]) -> State:
    """Tensors of Open-Miipher-2's feature cleaner under the names of `OpenMiipherAdapters`.

    A file without learnable scales has scale 1.
    """
    state = {f"adapter_norms.{key}": value for key, value in adapter_norms.items()}
    for key, value in adapter_layers.items():
        number, _, rest = key.partition(".")
        if rest == "scale":
            state[f"scales.{number}"] = value.reshape(())
        else:
            state[f"adapter_layers.{key}"] = value
    for number in {key.partition(".")[0] for key in adapter_layers}:
        state.setdefault(f"scales.{number}", torch.ones(()))
    return state


def to_open_miipher(state: Mapping[str, Tensor], learnable_scale: bool) -> dict[str, State]:
    """The file of Open-Miipher-2 for the state of `OpenMiipherAdapters`; the inverse of `open_miipher_state`."""
    result: dict[str, State] = {"adapter_layers": {}, "adapter_norms": {}}
    for key, value in state.items():
        kind, _, rest = key.partition(".")
        if kind == "scales" and learnable_scale:
            result["adapter_layers"][f"{rest}.scale"] = value.reshape(1)
        elif kind in result:
            result[kind][rest] = value
    return result
