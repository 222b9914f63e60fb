"""Converters between our checkpoints and the files of the Miipher-2 reproductions."""

from zoo.miipher.convert.config import convert_config
from zoo.miipher.convert.converter import MiipherConverter

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

_converter = MiipherConverter()
convert = _converter.convert
describe = _converter.describe
from_original = _converter.from_original
is_original = _converter.is_original
original_state = _converter.original_state
to_original = _converter.to_original
vocoder_from_original = _converter.vocoder_from_original
