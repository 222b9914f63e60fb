"""Converters between our nets and the files of AudioSR and ProjectLily (modelV1 and model.py)."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from zoo.audiosr.convert.ours import INFERENCE, OriginalModel, as_ours, build_model, task_state
from zoo.audiosr.convert.read import CONFIG_NAME, FORMATS, AudioSRFile, State, compare, config_of, in_words, interpret
from zoo.audiosr.convert.recipe import convert_config
from zoo.audiosr.convert.write import from_ours, write_model
from zoo.convert.engine import ConvertedModel, Converter
from zoo.runs.components import is_export

log = logging.getLogger(__name__)

__all__ = ["convert", "convert_config", "describe", "from_original", "is_original", "original_state", "to_original"]

Config = Mapping[str, Any] | Path | str | None


class AudioSRConverter(Converter[AudioSRFile]):
    """ProjectLily's `.pt` and AudioSR's `.bin`, the original's config.yaml beside them."""

    system, task, inference = "audiosr", "zoo.audiosr.DiffusionTask", INFERENCE
    formats = FORMATS

    def from_original(
        self,
        path: Path | str,
        config: Config = None,
        ema: bool = True,
        min_matched: float = 1.0,
        allow_partial: bool = False,
    ) -> OriginalModel:
        """Build the nets of a file of AudioSR or ProjectLily.

        Args:
            path: ProjectLily's `.pt` or AudioSR's `.bin`.
            config: the original's config.yaml or what it holds; None takes one beside the file. It says what shapes do
                not, above all the channels per attention head (32 without).
            ema: take averaged parameters where the file has them.
            min_matched: share of each component's tensors that must match, 0 to 1.
            allow_partial: take a global encoder without its projection (random then).

        Returns:
            Nets in evaluation mode and in the axis order of the file (AudioSR: time first; ProjectLily: mel first):
            `vae.encode(mel)` -> moments, `vae.decode(z)`, `condition_vae` where the conditioner has its own,
            `unet(x, t, full_audio=None)`, `global_encoder(mel)` -> (vector, tokens), `vocoder`; `report` says how the
            tensors matched.

        Raises:
            FileNotFoundError: when the file or the configuration is missing.
            ValueError: when the layout is not known, the configuration is another one's, a component matches too
                little, or the global encoder's projection is missing.
        """
        model = build_model(self.read(Path(path), config=config), ema, min_matched, allow_partial)
        for component, text in in_words(model.report).items():
            log.info("%s: %s %s", path, component, text)
        for note in model.notes:
            log.warning("%s", note)
        return model

    def convert(
        self, source: Path | str | nn.Module, target: Path | str, allow_partial: bool = False
    ) -> dict[str, Any]:
        """Convert an original to ours, or ours to an original.

        Args:
            source: ProjectLily's `.pt` or AudioSR's `.bin`, the original's config.yaml beside it; or our run folder,
                checkpoint or export; or what `from_original` gave.
            target: for an original, a `.ckpt` file (the frozen nets go into `frozen/` beside it), or else an export
                folder; for ours, a `.pt` or `.bin` (AudioSR's, without a global encoder) file, or else a folder for
                `best_step_<n>.pt`, `step_<n>.pt` and `final_ema.pt`.
            allow_partial: see `from_original`.

        Returns:
            What was written: source, target, layout, step, the tensors of each component, and notes.

        Raises:
            FileNotFoundError: when there is no source.
            ValueError: when the layout is not known, a component is not whole, or the target format cannot hold the
                source.
        """
        return super().convert(source, target, allow_partial=allow_partial)

    def to_original(self, module: nn.Module, path: Path | str) -> None:
        """Write what `from_original` gave as a file again, in its layout and axis order.

        A config.yaml is written beside it where there is none. ProjectLily's `ema` holds the same weights.

        Args:
            module: an `OriginalModel`.

        Raises:
            ValueError: when the module is another one.
        """
        if not isinstance(module, OriginalModel):
            found = type(module).__name__
            raise ValueError(f"expected what from_original gave, found {found}; runs are for `zoo convert`")
        write_model(module, Path(path))

    def parse_content(self, content: Mapping[str, Any], path: Path, config: Config = None) -> AudioSRFile:
        """Recognise the layout of a loaded file; see `Converter.parse_content`."""
        return interpret(content, path, config_of(path, config))

    def describe_content(self, original: AudioSRFile, path: Path) -> dict[str, Any]:
        """Summarise a file; see `Converter.describe_content`."""
        specs = original.specs()
        beside = "beside the file" if original.settings else f"no {CONFIG_NAME} beside it: 32 channels a head"
        projection = {"global encoder": "without its projection: to be trained anew"}
        return {
            "image axes": "mel, time" if original.is_mel_first else "time, mel",
            **({"step": original.step} if original.step else {}),
            "configuration": beside,
            **{f"{name} arguments": spec["init_args"] for name, spec in specs.items()},
            **in_words(compare(original, specs)),
            "averaged weights": "yes" if original.averaged else "no",
            **(projection if original.lacks_projection else {}),
            **{f"left out: {what}": f"{count} tensors" for what, count in original.left_out.items()},
        }

    def _task_state(self, original: AudioSRFile, path: Path) -> State:
        return task_state(original)

    def _read_unless_zoo(self, source: Path, *args: Any, **options: Any) -> AudioSRFile | None:
        is_ours = source.is_dir() or is_export(source) or source.suffix == ".ckpt"
        return None if is_ours else self._read_source(source, *args, **options)

    def to_zoo(self, original: AudioSRFile, source: Path, is_checkpoint: bool, **options: Any) -> ConvertedModel:
        """Build what a checkpoint or an export holds; see `Converter.to_zoo`."""
        return as_ours(original, is_checkpoint, **options)

    def notes_on_copies(self, copies: Mapping[str, Path]) -> list[str]:
        return [f"for training, {name}.init_args.source: {copy}" for name, copy in copies.items()]

    def from_zoo(self, source: Path, target: Path, **options: Any) -> dict[str, Any]:
        return from_ours(source, target)

    def _from_module(self, module: nn.Module, target: Path, **options: Any) -> dict[str, Any]:
        return super()._from_module(module, target)


_converter = AudioSRConverter()
convert = _converter.convert
describe = _converter.describe
from_original = _converter.from_original
is_original = _converter.is_original
original_state = _converter.original_state
to_original = _converter.to_original
