"""Converters between our checkpoints and the original HiFi-GAN's `g_*` and `do_*` files."""

from zoo.hifigan.convert.converter import HifiganConverter
from zoo.hifigan.convert.recipe import convert_config

__all__ = ["convert", "convert_config", "describe", "from_original", "is_original", "original_state", "to_original"]

_converter = HifiganConverter()
convert = _converter.convert
describe = _converter.describe
from_original = _converter.from_original
is_original = _converter.is_original
original_state = _converter.original_state
to_original = _converter.to_original
