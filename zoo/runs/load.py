"""`zoo.load`: from a run, a checkpoint or an export to an object to call on arrays; no Trainer, no config needed.

And to a net of it that a later stage uses.
"""

from __future__ import annotations

import copy
import inspect
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from zoo import __version__
from zoo.common import registry
from zoo.common.build import build
from zoo.common.tensors import seeded_rng
from zoo.runs import export, frozen
from zoo.runs.checkpoints import load_checkpoint
from zoo.runs.descriptions import check_whole
from zoo.runs.folder import find_checkpoint, newest_run
from zoo.runs.hub.models import resolve_path
from zoo.runs.inference.base import Inference


def load(
    path: str | os.PathLike[str],
    device: str | torch.device = "cpu",
    ema: bool = True,
    allow_import: Sequence[str] = (),
    **options: Any,
) -> Inference:
    """Load a trained system for use.

    Args:
        path: a run folder (its newest sound checkpoint), a checkpoint file, an export folder, or `hf://user/name` with
            or without `@revision`: a model that was pushed to a hub.
        device: where to compute.
        ema: use the averaged weights where the checkpoint holds them.
        allow_import: packages of your own whose registered parts this process may build from now on.
        options: values of the Inference's constructor instead of the recipe's, such as a chunk length (an
            object may be given as its `class_path` and `init_args`); what it was trained with (its parts) stays.

    Returns:
        An object in evaluation mode: audio systems are called as `model(array, sample_rate)`.

    Raises:
        FileNotFoundError: when there is nothing to load.
        OSError: when a hub does not give it.
        ValueError: when it is torn, does not describe its parts, was trained on another frozen backbone than its
            source now gives, or an option is unknown.
    """
    registry.allow_packages(allow_import)
    path = resolve_path(path)
    return build_inference(path, *read_parts(path, ema), device, **options)


def build_inference(
    path: Path,
    specs: dict[str, Any],
    state: dict[str, Tensor],
    fused: Sequence[str],
    device: str | torch.device = "cpu",
    **options: Any,
) -> Inference:
    """Build what `read_parts` has read of a path; see `load`."""
    cls = registry.get_class(specs["inference"], Inference)
    slots = registry.constructor_annotations(cls)
    known = set(inspect.signature(cls).parameters) - set(specs["parts"])
    if unknown := options.keys() - known:
        said = f"its options: {', '.join(sorted(known))}" if known else "it has none"
        raise ValueError(f"{cls.__name__} has no option {', '.join(sorted(unknown))}; {said}")
    check_whole(specs, options)
    parts = build_parts(specs, path.parent if path.is_file() else path)
    for name, part in parts.items():
        if not isinstance(part, nn.Module):
            continue
        if name in fused:
            part.remove_weight_norm_()  # type: ignore[operator]
        part.load_state_dict(export.parts_state(state, name))
    chosen = {**specs.get("options", {}), **options}
    built = {name: build(value, slots.get(name, Any)) for name, value in chosen.items()}
    return cls(**parts, **built).to(device).eval()


def build_part(specs: Mapping[str, Any], name: str) -> Any:
    """Build one part that a description names, without its weights.

    Args:
        specs: `inference` and `parts`.

    Returns:
        Module or plain value.

    Raises:
        ValueError: when it does not fit its place in the Inference.
    """
    slots = registry.constructor_annotations(registry.get_class(specs["inference"], Inference))
    part = build(specs["parts"][name], slots.get(name, Any))
    if isinstance(part, str) and registry.accepts_only_components(slots.get(name, str)):
        raise ValueError(f"{name} is {part!r:.60}, expected a part: class_path and init_args")
    return part


def build_parts(specs: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Build the parts that a description names; frozen modules have their weights, the others not yet.

    Args:
        specs: `parts`, and `frozen` where there are such modules.
        folder: the run or export with their copies.

    Returns:
        Modules and plain values by name.

    Raises:
        ValueError: when a frozen module's weights are not those of training.
    """
    described, recorded = copy.deepcopy(specs["parts"]), specs.get("frozen", {})
    used = frozen.use_copies(described, recorded, folder)
    parts = {name: build_part({**specs, "parts": described}, name) for name in described}
    modules = frozen.frozen_modules({name: part for name, part in parts.items() if isinstance(part, nn.Module)})
    frozen.note_sources(modules, specs["parts"], used)
    frozen.check(modules, recorded, str(folder))
    return parts


def read_parts(path: Path, ema: bool = True) -> tuple[dict[str, Any], dict[str, Tensor], list[str]]:
    """Read the description and the tensors of what can be loaded.

    Returns:
        (specs with `inference`, `parts`, `options` and `frozen`, state by full names, names of the fused parts).
    """
    if export.is_export(path):
        config = export.export_config(path)
        return config, load_file(path / export.WEIGHTS_NAME), config["fused"]
    file = find_checkpoint(path)
    checkpoint = load_checkpoint(file)
    if "zoo" not in checkpoint:
        raise ValueError(
            f"{file} does not describe its parts: it was not written by `zoo fit`; "
            "for an original's file use `zoo convert`, from Python set task.specs before training"
        )
    state = dict(checkpoint["state_dict"])
    if ema and "ema" in checkpoint:
        state.update(checkpoint["ema"]["shadow"])
    specs = {**checkpoint["zoo"], "step": checkpoint.get("global_step"), "frozen": checkpoint.get("frozen", {})}
    return specs, state, []


class NetOfRun(NamedTuple):
    """A net as a run, checkpoint or export holds it, with averaged weights where that has them.

    Attributes:
        spec: `class_path` and `init_args`.
        state: its tensors.
        fused: whether its norms are folded.
        recorded: the frozen parts beside it, see `zoo.runs.frozen`.
    """

    spec: dict[str, Any]
    state: dict[str, Tensor]
    fused: bool
    recorded: dict[str, Any]


def run_of(source: Path) -> Path | None:
    """The run, checkpoint or export that a path means, of a folder of runs the newest; None where it is none."""
    if source.suffix == ".ckpt" or (source.is_dir() and (export.is_export(source) or any(source.glob("*.ckpt")))):
        return source
    return newest_run(source) if source.is_dir() else None


def read_net(source: Path, base: type[nn.Module], called: str) -> NetOfRun:
    """Read the only net of a base class in a run, checkpoint or export, or in the newest run of a folder of them.

    Args:
        called: what such a net is, for the error.

    Raises:
        FileNotFoundError: when there is nothing at the source.
        ValueError: when it holds none or several.
    """
    path = run_of(source) or source
    if not path.exists():
        raise FileNotFoundError(f"no run, checkpoint or export at {source}: train that stage first, or name its source")
    specs, state, fused = read_parts(path)
    parts = specs["parts"]
    built = {name: spec for name, spec in parts.items() if isinstance(spec, Mapping) and "class_path" in spec}
    names = [name for name, spec in built.items() if issubclass(registry.get_class(spec["class_path"]), base)]
    if len(names) != 1:
        raise ValueError(
            f"{path}: expected one part of class {called} or its like, found {len(names)} among {list(parts)}"
        )
    (name,) = names
    return NetOfRun(dict(parts[name]), export.parts_state(state, name), name in fused, dict(specs.get("frozen", {})))


class FrozenNet(frozen.FrozenModule):
    """A net taken from a run, a checkpoint or an export, or built with random weights; without weight norm.

    Args:
        source: a run of the net's stage, a folder of such runs (the newest is taken), a checkpoint or an export; null
            for random weights.
        revision: not used; our runs have none.
        config: the net where there is no source, see `described`.
        seed: of random weights.

    Raises:
        FileNotFoundError: when there is nothing at the source.
        ValueError: when the source holds no such net, or neither source nor config is given.
    """

    net_base: ClassVar[type[nn.Module]]  # of the nets that a source may hold
    net_class: ClassVar[type[nn.Module]]  # of those that it usually holds
    inference: ClassVar[str]  # of the stage that trains such nets
    part: ClassVar[str] = "part"  # the net's name in a copy

    def __init__(
        self,
        source: str | None = None,
        revision: str | None = None,
        config: dict[str, Any] | None = None,
        seed: int = 0,
    ) -> None:
        called = registry.public_name(self.net_class)
        super().__init__(source, revision)
        if source is None and config is None:
            raise ValueError(
                f"{type(self).__name__}: give source (a run, a checkpoint, an export) or config (of {called}, for "
                "random weights)"
            )
        if source is not None:
            found = read_net(Path(source), self.net_base, called)
        else:
            found = NetOfRun(self.described(config or {}), {}, False, {})
        self.spec, self.recorded = found.spec, found.recorded
        with seeded_rng(seed):
            net: nn.Module = build(self.spec, self.net_base)
        fuse = getattr(net, "remove_weight_norm_", None)
        if fuse is not None and found.fused:
            fuse()
        if found.state:
            net.load_state_dict(found.state)
        if fuse is not None and not found.fused:
            fuse()
        self.is_fused = fuse is not None
        self.net: Any = net
        self.requires_grad_(False)
        self.eval()

    @classmethod
    def described(cls, config: Mapping[str, Any]) -> dict[str, Any]:
        """The description, of plain values, that a `config` means: arguments of the usual class."""
        return {"class_path": registry.public_name(cls.net_class), "init_args": dict(config)}

    @property
    def is_local(self) -> bool:
        """Always: no hub has these weights, so runs and exports keep a copy."""
        return True

    def save_source(self, folder: Path) -> None:
        """Write weights and description in the layout of an export."""
        weights = {f"{self.part}.{key}": value.contiguous() for key, value in self.net.state_dict().items()}
        save_file(weights, folder / export.WEIGHTS_NAME)
        config: dict[str, Any] = {
            "zoo": __version__,
            "inference": self.inference,
            "parts": {self.part: self.spec},
            "fused": [self.part] if self.is_fused else [],
        }
        if self.recorded:
            config["frozen"] = self.recorded
        (folder / export.CONFIG_NAME).write_text(json.dumps(config, indent=2), encoding="utf-8")
