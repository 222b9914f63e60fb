"""The components that a run, checkpoint or export holds: their description and weights, and nets for later stages."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from safetensors.torch import load_file, save
from torch import Tensor, nn

from zoo import __version__
from zoo.common import registry
from zoo.common.build import build
from zoo.common.foreign_files import load_json
from zoo.common.tensors import seeded_rng
from zoo.runs.checkpoints import find_checkpoint, load_checkpoint
from zoo.runs.frozen import FrozenModule
from zoo.runs.model_description import FORMAT, validate_description
from zoo.runs.run_folder import find_latest_run

WEIGHTS_NAME = "model.safetensors"  # of an export
CONFIG_NAME = "config.json"


class Components(NamedTuple):
    """What can be loaded of a run, checkpoint or export."""

    description: dict[str, Any]  # `inference`, `components`, `options`, `frozen`, `step` and `averaged`
    state: dict[str, Tensor]  # by `<component>.<name>`
    fused: list[str]  # names of the components whose norms are folded


def is_export(path: Path) -> bool:
    """Tell whether a path is an export folder of the zoo; other projects use the same file names."""
    try:
        config = load_json((path / CONFIG_NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and {"zoo", "inference"} <= config.keys() and (path / WEIGHTS_NAME).is_file()


def read_export_config(folder: Path) -> dict[str, Any]:
    """Read an export's description; ValueError where it is malformed or has an older format."""
    try:
        return validate_description(load_json((folder / CONFIG_NAME).read_text(encoding="utf-8")))
    except ValueError as error:
        raise ValueError(f"{folder / CONFIG_NAME}: {error}") from error


def read_components(path: Path, ema: bool = True) -> Components:
    """Read description and tensors of a run, checkpoint or export; with `ema` averaged weights where there are any.

    Raises:
        FileNotFoundError: there is nothing at the path.
        ValueError: the file is corrupt or does not describe its components.
    """
    if is_export(path):
        config = read_export_config(path)
        return Components(config, load_file(path / WEIGHTS_NAME), config.get("fused", []))
    file = find_checkpoint(path)
    checkpoint = load_checkpoint(file)
    if "zoo" not in checkpoint:
        raise ValueError(
            f"{file} does not describe its components: it was not written by `zoo fit`; for an original's file use "
            "`zoo convert`, from Python set task.specs and train with the callback CheckpointContents"
        )
    state = dict(checkpoint["state_dict"])
    if ema and "ema" in checkpoint:
        state.update(checkpoint["ema"]["shadow"])
    extra = {"step": checkpoint.get("global_step"), "frozen": checkpoint.get("frozen", {})}
    extra["averaged"] = ema and "ema" in checkpoint
    return Components({**checkpoint["zoo"], **extra}, state, [])


def component_state(state: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    """Select the tensors of one component, under its own names."""
    prefix = name + "."
    return {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}


def find_run_path(source: Path) -> Path | None:
    """Resolve a run, checkpoint or export to itself, a folder of runs to its latest run, anything else to None."""
    if source.suffix == ".ckpt" or (source.is_dir() and (is_export(source) or any(source.glob("*.ckpt")))):
        return source
    return find_latest_run(source)


def save_components(folder: Path, weights: dict[str, Tensor], description: Mapping[str, Any], **facts: Any) -> None:
    """Write weights and description into an existing folder, as an export holds them.

    Args:
        weights: by `<component>.<name>`, contiguous, on the CPU.
        **facts: further entries of config.json.
    """
    keys = ("inference", "task", "components", "options", "frozen")
    entries = {key: description[key] for key in keys if key in description}
    config = {"zoo": __version__, "format": FORMAT, **entries, **facts}
    (folder / WEIGHTS_NAME).write_bytes(save(weights, metadata={"format": "pt"}))
    (folder / CONFIG_NAME).write_text(json.dumps(config, indent=2), encoding="utf-8")


def load_weights(net: nn.Module, state: Mapping[str, Tensor], is_fused: bool) -> None:
    """Load the weights of a component, whose norms may be folded."""
    if is_fused:
        net.remove_weight_norm_()  # type: ignore[operator]
    net.load_state_dict(state)


def read_single_net(source: Path, base: type[nn.Module], class_name: str) -> tuple[str, Components]:
    """Find the only net of a base class in a run, checkpoint, export or the latest run of a folder: its name, and all.

    Raises:
        FileNotFoundError: there is nothing at the source.
        ValueError: it holds no such net, or several; the message names the usual class.
    """
    path = find_run_path(source) or source
    if not path.exists():
        raise FileNotFoundError(f"no run, checkpoint or export at {source}: train that stage first, or name its source")
    saved = read_components(path)
    components = saved.description["components"]
    specs = {name: spec for name, spec in components.items() if isinstance(spec, Mapping) and "class_path" in spec}
    names = [name for name, spec in specs.items() if issubclass(registry.get_class(spec["class_path"]), base)]
    if len(names) != 1:
        raise ValueError(
            f"{path}: expected one component of class {class_name} or a relative, found {len(names)} among "
            f"{list(components)}"
        )
    return names[0], saved


class FrozenNet(FrozenModule):
    """A net taken from a run, checkpoint or export, or built with random weights; without weight norm.

    Args:
        source: a run of the net's stage, a folder of such runs (the latest is taken), a checkpoint or an export; null
            for random weights. A ValueError where it holds no such net.
        revision: not used; runs have none.
        config, seed: of a net with random weights, see `describe_net`.
    """

    net_base: ClassVar[str]  # public name of the base of the nets that a source may hold
    net_class: ClassVar[str]  # public name of their usual class
    inference: ClassVar[str]  # of the stage that trains such nets
    component: ClassVar[str] = "part"  # the net's name in a copy

    def __init__(
        self,
        source: str | None = None,
        revision: str | None = None,
        config: dict[str, Any] | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(source, revision)
        base = registry.get_class(self.net_base)
        state, is_fused = {}, False
        if source is not None:
            name, saved = read_single_net(Path(source), base, self.net_class)
            self.spec, self.records = saved.description["components"][name], saved.description.get("frozen", {})
            state, is_fused = component_state(saved.state, name), name in saved.fused
        elif config is not None:
            self.spec, self.records = self.describe_net(config), {}
        else:
            raise ValueError(
                f"{type(self).__name__}: give source (a run, a checkpoint, an export) or config (of {self.net_class}, "
                "for random weights)"
            )
        with seeded_rng(seed):
            self.net: Any = build(self.spec, base)
        if state:
            load_weights(self.net, state, is_fused)
        if hasattr(self.net, "remove_weight_norm_"):
            self.net.remove_weight_norm_()
        self.requires_grad_(False)
        self.eval()

    @classmethod
    def describe_net(cls, config: Mapping[str, Any]) -> dict[str, Any]:
        """Turn a `config` into `class_path` and `init_args`: by default it has the arguments of the usual class."""
        return {"class_path": cls.net_class, "init_args": dict(config)}

    @property
    def is_local(self) -> bool:
        """Always: no hub has these weights, so runs and exports keep a copy."""
        return True

    def save_source(self, folder: Path) -> None:
        """Write weights and description in the layout of an export."""
        weights = {f"{self.component}.{key}": value.contiguous() for key, value in self.net.state_dict().items()}
        description = {"inference": self.inference, "components": {self.component: self.spec}, "frozen": self.records}
        fused = [self.component] if hasattr(self.net, "remove_weight_norm_") else []
        save_components(folder, weights, description, fused=fused)
