"""Converters between our checkpoints and the files of HiFi-GAN, its descendants, BigVGAN and Vocos."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from zoo.convert.engine import Converter
from zoo.hifigan.convert.config import convert_config
from zoo.hifigan.convert.converter import HifiganConverter
from zoo.hifigan.convert.vocos import VocosConverter, has_settings
from zoo.hifigan.nets.vocos import Vocos

__all__ = ["convert", "convert_config", "describe", "from_original", "is_original", "original_state", "to_original"]

_hifigan, _vocos = HifiganConverter(), VocosConverter()
from_original = _hifigan.from_original


def is_original(path: Path | str, content: Any = None) -> bool:
    """Return whether a path is a vocoder's file (or folder) of another project; see `Converter.is_original`."""
    return _vocos.is_original(path, content) or _hifigan.is_original(path, content)


def describe(path: Path | str, content: Any = None) -> dict[str, Any]:
    """Summarise a file of another project; see `Converter.describe`."""
    return _select(path).describe(path, content)


def original_state(path: Path | str) -> dict[str, Any]:
    """Read the tensors of another project's file under our task's names; see `Converter.original_state`."""
    return _select(path).original_state(path)


def convert(source: Path | str, target: Path | str) -> dict[str, Any]:
    """Convert an original to ours, or ours to an original; see `Converter.convert`."""
    return _select(source).convert(source, target)


def to_original(module: nn.Module, path: Path | str, **options: Any) -> None:
    """Write a generator as a file of its project; see `Converter.to_original`."""
    _select(module).to_original(module, path, **options)


def _select(source: Path | str | nn.Module) -> Converter[Any]:
    """Select the converter of a foreign file or of a net; HiFi-GAN's takes our checkpoints, and refuses the rest."""
    is_vocos = isinstance(source, Vocos) if isinstance(source, nn.Module) else has_settings(Path(source))
    return _vocos if is_vocos else _hifigan
