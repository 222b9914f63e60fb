"""Converters between our checkpoints and the original HiFi-GAN's `g_*` and `do_*` files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor, nn

from zoo.common.reading.foreign import load_foreign
from zoo.hifigan.convert.read import NAME, PARTS, build_generator, interpret, pair, read, trainable_state
from zoo.hifigan.convert.recipe import CONFIG_NAME, convert_config, read_config
from zoo.hifigan.convert.write import Config, from_checkpoint, settings_of, to_original, to_ours
from zoo.runs.folder import find_checkpoint

__all__ = ["convert", "convert_config", "describe", "from_original", "is_original", "original_state", "to_original"]


def is_original(path: Path | str) -> bool:
    """Whether a path is a HiFi-GAN file of another project, or a folder with a `g_*` file."""
    path = Path(path)
    try:
        file = pair(path)[0]
        if not NAME.fullmatch(file.name):
            interpret(load_foreign(file), file)
    except (ValueError, FileNotFoundError):
        return False
    return True


def describe(path: Path | str) -> dict[str, Any]:
    """Say what a HiFi-GAN file of another project holds.

    Returns:
        Layout, files, steps and epoch, parts with tensor and value counts, and the sizes of config.json if it is there.

    Raises:
        FileNotFoundError: when there is no such file.
        ValueError: when its layout is not known.
    """
    path = Path(path)
    files = pair(path)
    original = read(path)
    parts = {name: original.part(name) for name in PARTS if original.part(name)}
    facts: dict[str, Any] = {
        "system": "hifigan",
        "format": original.layout,
        "files": [file.name for file in files],
        "fused": original.is_fused,
        "parts": {
            name: {"tensors": len(state), "values": sum(tensor.numel() for tensor in state.values())}
            for name, state in parts.items()
        },
        **{key: original.training[key] for key in ("steps", "epoch") if key in original.training},
    }
    config = files[0].with_name(CONFIG_NAME)
    if config.is_file():
        facts["config"] = read_config(config)
    return facts


def from_original(path: Path | str, config: Config = None) -> nn.Module:
    """Build the generator of an original file.

    Args:
        path: a `g_*` file (or another project's checkpoint with a generator).
        config: the original's settings, or the path of its config.json; by default the one beside the file.

    Returns:
        The generator with its weights, in training mode; fused when the file's weight norm was removed.

    Raises:
        FileNotFoundError: when the file or its config is missing.
        ValueError: when settings and weights do not fit or the layout is not known.
    """
    path = Path(path)
    return build_generator(read(path), settings_of(path, config), path)


def original_state(path: Path | str) -> dict[str, Tensor]:
    """Tensors of an original file and its pair under our task's names (`generator.*`, `mpd.*`, `msd.*`).

    Weight norm that was removed is put back, so that a task can be started from them.

    Raises:
        FileNotFoundError: when there is no such file.
        ValueError: when its layout is not known.
    """
    return trainable_state(read(Path(path)).state)


def convert(source: Path | str | nn.Module, target: Path | str) -> dict[str, Any]:
    """Convert an original to ours, or ours to an original.

    Args:
        source: an original `g_*` file (with the `do_*` of the same number beside it, if present) or a folder of them;
            or our checkpoint, our run folder, or a generator.
        target: for an original, a `.ckpt` file, or else an export folder; for ours, a folder, which receives
            `g_%08d`, `do_%08d` and config.json, or a file of such a name for a lone generator.

    Returns:
        What was written: source, target(s), tensors, steps, and notes on what was left out.

    Raises:
        FileNotFoundError: when source or config is missing.
        ValueError: when the layout is not known or the target format cannot hold the source.
    """
    target = Path(target)
    if isinstance(source, nn.Module):
        file = target if NAME.fullmatch(target.name) else target / "g_00000000"
        to_original(source, file)
        return {"system": "hifigan", "target": [str(file)], "tensors": len(source.state_dict())}
    source = Path(source)
    if is_original(source):
        return to_ours(source, target)
    return from_checkpoint(find_checkpoint(source), target)
