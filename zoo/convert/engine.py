"""The engine of all converters: both directions, reports, refusals; a system adds its tables, see `zoo.convert`."""

from __future__ import annotations

import zipfile
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from torch import Tensor, nn

import zoo
from zoo.common.build import build_with_weights
from zoo.common.safe_load import load_foreign_checkpoint
from zoo.convert.tensor_names import State, add_prefix, select_prefix
from zoo.runs import frozen, frozen_files
from zoo.runs.checkpoints import find_checkpoint, load_checkpoint, save_checkpoint
from zoo.runs.components import is_export
from zoo.runs.export import AUDIO_USAGE, write_export
from zoo.runs.load import build_component
from zoo.runs.model_description import FORMAT

NO_TRAINING = "weights only: train on with `zoo fit RECIPE --init_from FILE`"
EMA_NOTE = "averaged (EMA) weights"


class ZooCheckpoint(NamedTuple):
    """A checkpoint of the zoo; `state` holds averaged weights where there are any, and `averaged` tells so."""

    checkpoint: dict[str, Any]
    specs: dict[str, Any]
    state: dict[str, Tensor]
    averaged: bool


@dataclass
class OriginalFile:
    """The contents of a foreign file."""

    layout: str  # name of the project's format
    state: State = field(default_factory=dict)  # tensors under our names
    settings: dict[str, Any] = field(default_factory=dict)  # the file's own, by its keys
    training: dict[str, Any] = field(default_factory=dict)  # counts of steps and epochs, as far as present

    def component(self, name: str) -> State:
        """Return the tensors of one net, under its own names."""
        return select_prefix(self.state, f"{name}.")

    def notes_on_defaults(self, defaults: Mapping[str, Any]) -> list[str]:
        """Note which settings the file lacks and which defaults stand in for them."""
        missing = defaults.keys() - self.settings.keys()
        return [f"{key} is not in the file: {defaults[key]} assumed" for key in defaults if key in missing]


@dataclass
class ConvertedModel:
    """An original in the zoo's names: the contents of a checkpoint or an export."""

    parts: dict[str, Any]  # descriptions of the components of the Inference
    nets: dict[str, nn.Module]  # built, with their weights; frozen ones are copied next to a checkpoint
    state: State | None = None  # tensors of a checkpoint under the task's names; None takes those of `nets`
    step: int = 0  # batches trained
    epoch: int = 0  # the next one, from 0
    averaged: State = field(default_factory=dict)  # averaged (EMA) tensors under the task's names
    specs: dict[str, Any] = field(default_factory=dict)  # further (or other) entries of its description
    facts: dict[str, Any] = field(default_factory=dict)  # for the report, before the count of tensors
    notes: list[str] = field(default_factory=list)  # for the report: what was left out or assumed
    name: str | None = None  # of the source, for an export's card; None takes the file's
    usage: str = AUDIO_USAGE  # Python lines for that card

    def tensors(self) -> State:
        """Return the tensors of a checkpoint."""
        if self.state is not None:
            return self.state
        return {f"{name}.{key}": value for name, net in self.nets.items() for key, value in net.state_dict().items()}


File = TypeVar("File", bound=OriginalFile)


class Converter(ABC, Generic[File]):
    """Reads and writes one project's files; `content` is what `load_original` returned for a file."""

    system: ClassVar[str]
    task: ClassVar[str]  # public name, as that of the Inference
    inference: ClassVar[str]
    part: ClassVar[str]  # name of the net in the task, and so prefix of its tensors, where a file holds one net
    formats: ClassVar[str]  # for refusals: "known are ..."

    def is_original(self, path: Path | str, content: Any = None) -> bool:
        """Return whether a path is a file (or folder) of the project."""
        try:
            self.read(Path(path), content=content)
        except (ValueError, OSError):
            return False
        return True

    def describe(self, path: Path | str, content: Any = None) -> dict[str, Any]:
        """Summarise a file of the project: system, format, nets with their arguments, counts, training.

        Raises:
            FileNotFoundError: when there is no such file.
            ValueError: when its layout is not known.
        """
        path = Path(path)
        original = self.read(path, content=content)
        return {"system": self.system, "format": original.layout, **self.describe_content(original, path)}

    def original_state(self, path: Path | str) -> State:
        """Read the tensors of a file of the project under our task's names, for `init_from`; see `describe`."""
        return self._task_state(self.read(Path(path)), Path(path))

    def convert(self, source: Path | str, target: Path | str, *args: Any, **options: Any) -> dict[str, Any]:
        """Convert an original to ours, or ours to an original.

        Args:
            source: a file of the project; or our checkpoint or run folder. A net is written by `to_original`.
            target: for an original, a `.ckpt` file, or else an export folder; for ours, the file to write.
            args: options of the system, where it has any.
            options: the same by name.

        Returns:
            The report: source, target, tensors, and notes on what was left out or assumed.

        Raises:
            FileNotFoundError: when there is no source.
            ValueError: when the layout is not known or the target format cannot hold the source.
        """
        source, target = Path(source), Path(target)
        original = self._read_unless_zoo(source, *args, **options)
        if original is None:
            report = self.from_zoo(source, target, *args, **options)
        else:
            report = self.write_zoo(original, source, target, *args, **options)
        written = report.pop("target", [target])
        return {"system": self.system, "source": str(source), "target": [str(file) for file in written], **report}

    def _read_unless_zoo(self, source: Path, *args: Any, **options: Any) -> File | None:
        """Read the source of a conversion; None where it is ours."""
        try:
            return self._read_source(source, *args, **options)
        except (ValueError, OSError) as error:
            if is_zoo_source(source):
                return None
            if type(error) is ValueError and str(source) not in str(error):
                raise ValueError(f"{source}: {error}") from error
            raise

    def read(self, path: Path, *args: Any, content: Any = None, **options: Any) -> File:
        """Read a file (or folder) of the project without executing anything in it; see `describe`."""
        if not path.is_file():
            raise FileNotFoundError(f"no file at {path}")
        content = load_original(path) if content is None else content
        if not isinstance(content, Mapping):
            raise ValueError(f"{path} holds a {type(content).__name__}, not a dict of tensors; {self.formats}")
        return self.parse_content(content, path)

    def _read_source(self, source: Path, *args: Any, **options: Any) -> File:
        """Read the source of a conversion."""
        return self.read(source)

    def parse_content(self, content: Mapping[str, Any], path: Path) -> File:
        """Recognise the layout of a loaded file and rename its tensors."""
        raise NotImplementedError

    def _unknown(self, path: Path, keys: Iterable[object]) -> ValueError:
        """Return the error for a layout that is not known."""
        return ValueError(f"{path}: unknown layout with keys {', '.join(map(str, list(keys)[:5]))}; {self.formats}")

    def describe_content(self, original: File, path: Path) -> dict[str, Any]:
        """Return what `describe` adds to system and format."""
        return count_tensors(original.state)

    def _task_state(self, original: File, path: Path) -> State:
        """Return the tensors of a file under our task's names."""
        return add_prefix(original.state, f"{self.part}.")

    def _spec(self, original: File, path: Path, **options: Any) -> dict[str, Any]:
        """Describe the net of a file: `class_path` and `init_args`, with every argument written out."""
        raise NotImplementedError

    def build(self, original: File, path: Path, **options: Any) -> Any:
        """Build the net of a file with its weights, in evaluation mode; its tensors must be complete."""
        return build_with_weights(self._spec(original, path, **options), original.state, str(path)).eval()

    @abstractmethod
    def to_zoo(self, original: File, source: Path, is_checkpoint: bool, *args: Any, **options: Any) -> ConvertedModel:
        """Translate an original for a checkpoint, or else for an export, which has no training state."""

    def write_zoo(self, original: File, source: Path, target: Path, *args: Any, **options: Any) -> dict[str, Any]:
        """Write an original as a checkpoint (`.ckpt`) or an export folder; returns the report."""
        is_checkpoint = target.suffix == ".ckpt"
        model = self.to_zoo(original, source, is_checkpoint, *args, **options)
        names = {"version": zoo.__version__, "system": self.system, "task": self.task, "inference": self.inference}
        specs = {**names, "format": FORMAT, "components": model.parts, **model.specs}
        state, notes = model.tensors(), list(model.notes)
        if is_checkpoint:
            modules = frozen.frozen_modules(model.nets)
            records, left_out = frozen.frozen_records(modules), frozen.frozen_keys(modules)
            state = {key: value for key, value in state.items() if key not in left_out}
            target.parent.mkdir(parents=True, exist_ok=True)
            frozen_files.save_copies(modules, records, target.parent)
            _write_checkpoint(target, specs, state, model, records)
            copies = {path: target.parent / str(record["folder"]) for path, record in records.items()}
            notes += [*self.notes_on_copies(copies), NO_TRAINING]
        else:
            write_export(target, specs, model.nets, model.name or source.name, model.step or None, model.usage)
        return {**model.facts, "tensors": len(state), "notes": notes}

    def notes_on_copies(self, copies: Mapping[str, Path]) -> list[str]:
        """Note where the frozen nets of a checkpoint were copied, by their names; no notes by default."""
        return []

    def from_zoo(self, source: Path, target: Path, *args: Any, **options: Any) -> dict[str, Any]:
        """Write our checkpoint or run as a file of the project, with averaged weights where it has them."""
        checkpoint = read_zoo_checkpoint(find_checkpoint(source), self.inference)
        net = build_component(checkpoint.specs, self.part)
        net.load_state_dict(select_prefix(checkpoint.state, f"{self.part}."))
        notes = [EMA_NOTE] if checkpoint.averaged else []
        self.to_original(net, target, **self.extra_arguments(checkpoint, net, source, notes))
        return {"tensors": len(net.state_dict()), "notes": notes}

    def extra_arguments(
        self, checkpoint: ZooCheckpoint, net: nn.Module, source: Path, notes: list[str]
    ) -> dict[str, Any]:
        """Return further options of `to_original`, from our checkpoint; may refuse it, and add notes."""
        return {}

    def to_original(self, module: nn.Module, path: Path | str, *args: Any, **kwargs: Any) -> None:
        """Write a net as a file of the project, where its files hold one net."""
        raise NotImplementedError


def load_original(path: Path) -> Any:
    """Read a file of another project as plain data; its tensors stay on the disk until they are used.

    Raises:
        ValueError: when the file is damaged, or asks to run code.
    """
    content = load_foreign_checkpoint(path, mmap=True)
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
        if damaged is not None:
            raise ValueError(f"{path}: damaged, the checksum of {damaged} does not match")
    return content


def is_zoo_source(source: Path) -> bool:
    """Return whether a path is a run folder or a checkpoint of ours; tensors are not read."""
    if source.is_dir():
        return is_export(source) or any(source.glob("*.ckpt"))
    try:
        content = load_foreign_checkpoint(source, mmap=True)
    except (ValueError, OSError):
        return False
    return isinstance(content, Mapping) and "zoo" in content


def count_tensors(state: Mapping[str, Tensor]) -> dict[str, int]:
    """Count tensors and their values."""
    return {"tensors": len(state), "values": sum(tensor.numel() for tensor in state.values())}


def read_zoo_checkpoint(source: Path, inference: str) -> ZooCheckpoint:
    """Read a checkpoint of ours that is to become an original's file.

    Raises:
        ValueError: when it does not describe this Inference.
    """
    checkpoint = load_checkpoint(source)
    specs = checkpoint.get("zoo") or {}
    if specs.get("inference") != inference or not specs.get("components"):
        raise ValueError(f"{source}: expected a checkpoint for {inference}, found {specs.get('inference')}")
    shadow = checkpoint.get("ema", {}).get("shadow", {})
    return ZooCheckpoint(checkpoint, specs, {**checkpoint["state_dict"], **shadow}, bool(shadow))


def _write_checkpoint(
    target: Path, specs: dict[str, Any], state: State, model: ConvertedModel, records: Mapping[str, Any]
) -> None:
    """Write a checkpoint of weights, without optimizers; `records` are those of its frozen nets."""
    checkpoint: dict[str, Any] = {
        "state_dict": state,
        "optimizer_states": [],
        "lr_schedulers": [],
        "epoch": model.epoch,
        "global_step": model.step,
        "pytorch-lightning_version": version("lightning"),
        "zoo": specs,
    }
    if records:
        checkpoint["frozen"] = records
    if model.averaged:
        checkpoint["ema"] = {"shadow": model.averaged, "updates": max(model.step, 1)}
    save_checkpoint(checkpoint, target)
