"""Converters between our checkpoints and the files of the Miipher-2 reproductions."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from zoo.hifigan.convert.read import PARTS, trainable_state
from zoo.hifigan.nets.generator import Generator
from zoo.miipher.convert.cleaner import Attachment, build_cleaner
from zoo.miipher.convert.ours import to_ours
from zoo.miipher.convert.read import read
from zoo.miipher.convert.recipe import convert_config
from zoo.miipher.convert.vocoder import build_vocoder
from zoo.miipher.convert.write import from_ours
from zoo.miipher.convert.write import to_original as write_original
from zoo.runs.export import is_export

__all__ = [
    "convert",
    "convert_config",
    "describe",
    "from_original",
    "is_original",
    "original_state",
    "to_original",
    "vocoder_from_original",
]


def is_original(path: Path | str) -> bool:
    """Whether a path is a file or folder of a Miipher-2 reproduction."""
    try:
        read(Path(path))
    except (ValueError, FileNotFoundError):
        return False
    return True


def describe(path: Path | str) -> dict[str, Any]:
    """Say what a file or folder of a Miipher-2 reproduction holds.

    Returns:
        Container, files, step; blocks with adapters, their width and era; the vocoder's layout and parts.

    Raises:
        FileNotFoundError: when there is no such file.
        ValueError: when its layout is not known.
    """
    path = Path(path)
    original = read(path)
    facts: dict[str, Any] = {
        "system": "miipher",
        "format": original.container,
        "files": [file.name for file in original.files],
    }
    if original.step is not None:
        facts["step"] = original.step
    facts |= {key: value for key, value in original.settings.items() if isinstance(value, str | int)}
    if original.cleaner is not None:
        state = original.cleaner
        facts["adapters"] = f"{state.count} of {state.hidden_dim}"
        if state.inside:
            facts["era"] = "before 2025-06: adapters follow the whole block (not convertible)"
        facts["backbone tensors"] = len(state.backbone)
    if original.vocoder is not None:
        facts["vocoder"] = original.vocoder.layout
        facts["parts"] = [part for part in PARTS if original.vocoder.nets.part(part)]
        facts["averaged weights"] = "yes" if original.vocoder.ema else "no"
    return facts


def from_original(
    path: Path | str,
    backbone: Path | str | None = None,
    layer: int | None = None,
    attachment: Attachment = "auto",
) -> nn.Module:
    """Build the feature cleaner of an original.

    Frozen backbone tensors are the file's; where they differ from the folder's a warning says so.

    Args:
        path: an adapter checkpoint, Accelerate folder, unified folder or folder of Open-Miipher-2.
        backbone: the backbone's transformers folder or hub id; by default the one that the configuration names.
        layer: block, from 1, whose output is the feature, where configuration and adapters disagree.
        attachment: "parallel" says that adapters run beside the feed-forward where the file cannot show it.

    Returns:
        The `Cleaner` in evaluation mode, without padding: (B, T) at 16 kHz to (B, floor((T - 400) / 320) + 1, C).

    Raises:
        FileNotFoundError: when there is no such file.
        ValueError: when the layout is not known, the era cannot be represented or is ambiguous, or tensors do not fit.
    """
    return build_cleaner(read(Path(path)), backbone, False, layer, attachment).cleaner.eval()


def vocoder_from_original(
    path: Path | str, config: Mapping[str, Any] | Path | str | None = None, ema: bool = True
) -> Generator:
    """Build the generator of an original.

    Args:
        path: an SSL vocoder's `.ckpt`, an older `.pt`, an Accelerate folder or a unified folder.
        config: HiFi-GAN's settings or the path of its config.json, where neither the file nor one beside it says them.
        ema: take averaged weights where the file has them, as the original's samples did.

    Returns:
        The generator in evaluation mode: features (B, C, F) to audio (B, 1, samples).

    Raises:
        FileNotFoundError: when the file or its settings are missing.
        ValueError: when there is no generator, or settings and weights do not fit.
    """
    path = Path(path)
    original = read(path)
    if original.vocoder is None:
        raise ValueError(f"{path} holds no generator (it is an adapter: from_original reads it)")
    return build_vocoder(original.vocoder, original.files[-1], config, ema).eval()


def original_state(path: Path | str) -> dict[str, Tensor]:
    """Tensors of an original under our tasks' names (`encoder.adapters.*`, `generator.*`, `mpd.*`, `msd.*`).

    The file's frozen tensors are there as well (`encoder.backbone.*`), so that `init_from` can compare them.

    Raises:
        FileNotFoundError: when there is no such file.
        ValueError: when its layout or era is not ours.
    """
    original = read(Path(path))
    state: dict[str, Tensor] = {}
    if original.cleaner is not None:
        if original.cleaner.inside:
            raise ValueError(f"{path}: adapters that follow the whole block fit none of ours")
        adapters = {**original.cleaner.adapters, **original.cleaner.norms()}
        state |= {f"encoder.adapters.{key}": value for key, value in adapters.items()}
        state |= {f"encoder.backbone.model.{key}": value for key, value in original.cleaner.frozen().items()}
    state |= {f"encoder.adapters.{key}": value for key, value in original.open_miipher.items()}
    if original.vocoder is not None:
        state |= trainable_state(original.vocoder.nets.state)
    return state


def to_original(module: nn.Module, path: Path | str, backbone: Path | str | None = None) -> None:
    """Write a cleaner or a generator as an original's file.

    Args:
        module: a `Cleaner` with parallel adapters (`.pt`) or those of Open-Miipher-2 (`.pth`), or a `Generator` on
            features (`.ckpt`; with the older prenet `.pt`, beside which a config.json is written).
        path: the file.
        backbone: the whole backbone's folder or hub id, whose later blocks an adapter's file holds too; by default
            where the cleaner's came from.

    Raises:
        ValueError: when no file of the originals can hold the module, or the name does not fit.
    """
    write_original(module, Path(path), backbone)


def convert(source: Path | str | nn.Module, target: Path | str, backbone: Path | str | None = None) -> dict[str, Any]:
    """Convert an original to ours, or ours to an original.

    Args:
        source: an original's file or folder; or our checkpoint, run folder, export, cleaner or generator.
        target: for an original, a `.ckpt` file or else an export folder; for ours, a `.pt` (adapter, or vocoder with a
            prenet), `.pth` (Open-Miipher-2) or `.ckpt` (vocoder) file, or else a unified folder.
        backbone: the transformers folder or hub id of the backbone; by default a folder `backbone*` beside an original,
            then the one that its configuration (or our checkpoint) names.

    Returns:
        What was written: source, target(s), step, and notes on what was decided or left out.

    Raises:
        FileNotFoundError: when the source or a config is missing.
        ValueError: when the layout is not known, or the target format cannot hold the source.
    """
    target = Path(target)
    if isinstance(source, nn.Module):
        written = write_original(source, target, backbone)
        return {"system": "miipher", "target": [str(file) for file in written]}
    source = Path(source)
    may_be_ours = is_export(source) or source.suffix == ".ckpt" or any(source.glob("*.ckpt"))
    if may_be_ours and not is_original(source):
        return from_ours(source, target, backbone)
    return to_ours(source, target, backbone)
