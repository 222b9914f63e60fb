"""Converters between our nets and the flow matching files of the assignment lineage (`fm.save`, Accelerate)."""

from zoo.flow.convert.recipe import convert_config
from zoo.flow.convert.rules import FlowConverter

__all__ = ["convert", "convert_config", "describe", "from_original", "is_original", "original_state", "to_original"]

_converter = FlowConverter()
convert = _converter.convert
describe = _converter.describe
from_original = _converter.from_original
is_original = _converter.is_original
original_state = _converter.original_state
to_original = _converter.to_original
