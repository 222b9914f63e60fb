"""Conversion of policies from and to checkpoints of CompressedAD: AD, CAD, and the earlier encoder ("v1")."""

from zoo.compressed_ad.convert.converter import PolicyConverter
from zoo.compressed_ad.convert.recipe import convert_config

__all__ = ["convert", "convert_config", "describe", "from_original", "is_original", "original_state", "to_original"]

_converter = PolicyConverter()
convert = _converter.convert
describe = _converter.describe
from_original = _converter.from_original
is_original = _converter.is_original
original_state = _converter.original_state
to_original = _converter.to_original
