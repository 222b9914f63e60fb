"""Converters between our nets and the files of AudioSR and ProjectLily (modelV1 and model.py)."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from zoo.audiosr.convert.ours import OriginalModel, build_model, task_state, to_ours
from zoo.audiosr.convert.read import CONFIG_NAME, compare, describe_nets, lacks_projection, read, told
from zoo.audiosr.convert.recipe import convert_config
from zoo.audiosr.convert.write import from_ours
from zoo.audiosr.convert.write import to_original as write_original
from zoo.runs.export import is_export

log = logging.getLogger(__name__)

__all__ = ["convert", "convert_config", "describe", "from_original", "is_original", "original_state", "to_original"]

Config = Mapping[str, Any] | Path | str | None


def is_original(path: Path | str) -> bool:
    """Whether a path is a file of AudioSR or ProjectLily."""
    try:
        read(Path(path))
    except (ValueError, OSError):
        return False
    return True


def describe(path: Path | str) -> dict[str, Any]:
    """Say what a file of AudioSR or ProjectLily holds.

    Returns:
        Layout, step, and for each component its arguments and how many of its tensors match, are missing, unexpected
        or of another shape.

    Raises:
        FileNotFoundError: when there is no such file.
        ValueError: when its layout is not known, or the sizes of its nets cannot be told.
    """
    original = read(Path(path))
    nets = describe_nets(original)
    facts: dict[str, Any] = {"system": "audiosr", "format": original.layout}
    facts["image axes"] = "mel, time" if original.is_mel_first else "time, mel"
    if original.step:
        facts["step"] = original.step
    facts["configuration"] = "beside the file" if original.config else f"no {CONFIG_NAME} beside it: 32 channels a head"
    facts |= {f"{name} arguments": arguments for name, (_, arguments) in nets.items()}
    facts |= told(compare(original, nets))
    facts["averaged weights"] = "yes" if original.averaged else "no"
    if lacks_projection(original):
        facts["global encoder"] = "without its projection: to be trained anew"
    facts |= {f"left out: {what}": f"{count} tensors" for what, count in original.left_out.items()}
    return facts


def from_original(
    path: Path | str, config: Config = None, ema: bool = True, min_matched: float = 1.0, allow_partial: bool = False
) -> nn.Module:
    """Build the nets of a file of AudioSR or ProjectLily.

    Args:
        path: ProjectLily's `.pt` or AudioSR's `.bin`.
        config: the original's config.yaml or what it holds; None takes one beside the file. It says what shapes do
            not, above all the channels per attention head (32 without).
        ema: take averaged parameters where the file has them.
        min_matched: share of each component's tensors that must match, 0 to 1.
        allow_partial: take a global encoder without its projection (random then).

    Returns:
        An `OriginalModel` in evaluation mode and in the axis order of the file (AudioSR: time first; ProjectLily: mel
        first): `vae.encode(mel)` -> moments, `vae.decode(z)`, `condition_vae` where the conditioner has its own,
        `unet(x, t, full_audio=None)`, `global_encoder(mel)` -> (vector, tokens), `vocoder`; `report` says how the
        tensors matched.

    Raises:
        FileNotFoundError: when the file or the configuration is missing.
        ValueError: when the layout is not known, the configuration is another one's, a component matches too little,
            or the global encoder's projection is missing.
    """
    model = build_model(read(Path(path), config), ema, min_matched, allow_partial)
    for component, text in told(model.report).items():
        log.info("%s: %s %s", path, component, text)
    for note in model.notes:
        log.warning("%s", note)
    return model


def original_state(path: Path | str) -> dict[str, Tensor]:
    """Tensors of an original under our tasks' names (`net.*`, `autoencoder.*`, `vocoder.net.*`), time first.

    Raises:
        FileNotFoundError: when there is no such file.
        ValueError: when its layout is not known.
    """
    original = read(Path(path))
    if lacks_projection(original):
        log.warning("%s has no projection of the global encoder: random here, train it (trains: global_encoder)", path)
    return task_state(original)


def to_original(module: nn.Module, path: Path | str) -> None:
    """Write what `from_original` gave as a file again, in its layout and axis order.

    A config.yaml is written beside it where there is none. ProjectLily's `ema` holds the same weights.

    Args:
        module: an `OriginalModel`.
        path: the file.

    Raises:
        ValueError: when the module is another one.
    """
    if not isinstance(module, OriginalModel):
        raise ValueError(f"expected what from_original gave, found {type(module).__name__}; runs are for `zoo convert`")
    write_original(module, Path(path))


def convert(source: Path | str | nn.Module, target: Path | str, allow_partial: bool = False) -> dict[str, Any]:
    """Convert an original to ours, or ours to an original.

    Args:
        source: ProjectLily's `.pt` or AudioSR's `.bin`, the original's config.yaml beside it; or our run folder,
            checkpoint or export; or what `from_original` gave.
        target: for an original, a `.ckpt` file (the frozen nets go into `frozen/` beside it), or else an export folder;
            for ours, a `.pt` or `.bin` (AudioSR's, without a global encoder) file, or else a folder for
            `best_step_<n>.pt`, `step_<n>.pt` and `final_ema.pt`.
        allow_partial: see `from_original`.

    Returns:
        What was written: source, layout, target, step, the tensors of each component, and notes.

    Raises:
        FileNotFoundError: when there is no source.
        ValueError: when the layout is not known, a component is not whole, or the target format cannot hold the source.
    """
    target = Path(target)
    if isinstance(source, nn.Module):
        to_original(source, target)
        return {"system": "audiosr", "target": [str(target)]}
    source = Path(source)
    if source.is_dir() or is_export(source) or source.suffix == ".ckpt":
        return from_ours(source, target)
    return to_ours(read(source), target, allow_partial)
