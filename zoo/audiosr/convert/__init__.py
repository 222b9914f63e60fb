"""Converters between our nets and the files of AudioSR and ProjectLily (modelV1 and model.py)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from zoo.audiosr.convert.config import convert_config
from zoo.audiosr.convert.from_original import build_components, task_state, to_zoo_model
from zoo.audiosr.convert.layouts import CONFIG_NAME, FORMATS, AudioSRFile, State, companion_config, parse_content
from zoo.audiosr.convert.net_sizes import describe_nets
from zoo.audiosr.convert.to_original import INFERENCE, from_zoo
from zoo.convert.engine import ConvertedModel, Converter
from zoo.runs.components import is_export

__all__ = ["convert", "convert_config", "describe", "from_original", "is_original", "original_state"]


class AudioSRConverter(Converter[AudioSRFile]):
    """ProjectLily's `.pt` and AudioSR's `.bin`, with the original's config.yaml next to them."""

    system, task, inference = "audiosr", "zoo.audiosr.DiffusionTask", INFERENCE
    formats = FORMATS

    def from_original(self, path: Path | str, ema: bool = True, allow_partial: bool = False) -> dict[str, nn.Module]:
        """Build the components of `zoo.audiosr.Restorer` of a file by name, time first, in evaluation mode.

        Args:
            path: ProjectLily's `.pt` or AudioSR's `.bin`. The original's config.yaml next to it has what shapes do not
                show, above all the channels per attention head (32 without).
            ema: take averaged parameters where the file has them.
            allow_partial: take a global encoder without its projection, which is random then.
        """
        return build_components(self.read(Path(path)), ema, allow_partial)

    def convert(self, source: Path | str, target: Path | str, allow_partial: bool = False) -> dict[str, Any]:
        """Convert an original to ours, or ours to an original; see `Converter.convert`.

        Args:
            source: ProjectLily's `.pt` or AudioSR's `.bin`, its config.yaml next to it; or a run, checkpoint or export.
            target: for an original, a `.ckpt` file (frozen nets go into `frozen/` next to it), or else an export
                folder; for ours, a `.pt` or `.bin` (AudioSR's, without a global encoder) file, or else a folder for
                `best_step_<n>.pt`, `step_<n>.pt` and `final_ema.pt`.
            allow_partial: see `from_original`.
        """
        return super().convert(source, target, allow_partial=allow_partial)

    def parse_content(self, content: Mapping[str, Any], path: Path) -> AudioSRFile:
        """Parse a loaded file; see `Converter.parse_content`."""
        return parse_content(content, path, companion_config(path))

    def describe_content(self, original: AudioSRFile, path: Path) -> dict[str, Any]:
        """Summarise a file; see `Converter.describe_content`."""
        config = "next to the file" if original.settings else f"no {CONFIG_NAME} next to it: 32 channels a head"
        projection = {"global encoder": "without its projection: train it"} if original.lacks_projection else {}
        nets = {
            name: {**spec["init_args"], "tensors": len(original.parts[name])}
            for name, spec in describe_nets(original).items()
        }
        return {
            "image axes": "mel, time" if original.is_mel_first else "time, mel",
            **({"step": original.step} if original.step else {}),
            "configuration": config,
            **nets,
            "averaged weights": "yes" if original.averaged else "no",
            **projection,
            **({"conditioner": "another autoencoder than the first stage's"} if original.has_other_conditioner else {}),
            **{f"left out: {kind}": f"{count} tensors" for kind, count in original.left_out.items()},
        }

    def _task_state(self, original: AudioSRFile, path: Path) -> State:
        return task_state(original)

    def _read_unless_zoo(self, source: Path, *args: Any, **options: Any) -> AudioSRFile | None:
        is_zoo = source.is_dir() or is_export(source) or source.suffix == ".ckpt"
        return None if is_zoo else self._read_source(source, *args, **options)

    def to_zoo(self, original: AudioSRFile, source: Path, is_checkpoint: bool, **options: Any) -> ConvertedModel:
        """Build the contents of a checkpoint or an export; see `Converter.to_zoo`."""
        return to_zoo_model(original, is_checkpoint, **options)

    def notes_on_copies(self, copies: Mapping[str, Path]) -> list[str]:
        return [f"for training, {name}.init_args.source: {copy}" for name, copy in copies.items()]

    def from_zoo(self, source: Path, target: Path, **options: Any) -> dict[str, Any]:
        return from_zoo(source, target)


_converter = AudioSRConverter()
convert = _converter.convert
describe = _converter.describe
from_original = _converter.from_original
is_original = _converter.is_original
original_state = _converter.original_state
