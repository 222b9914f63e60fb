"""Converters between checkpoint folders of CI-LLM, PEFT folders, and checkpoints of the zoo."""

from zoo.ci_llm.convert.converter import AdapterConverter
from zoo.ci_llm.convert.recipe import convert_config

__all__ = [
    "convert",
    "convert_config",
    "describe",
    "from_original",
    "is_original",
    "original_components",
    "original_state",
    "to_original",
]

_converter = AdapterConverter()
convert = _converter.convert
describe = _converter.describe
from_original = _converter.from_original
is_original = _converter.is_original
original_components = _converter.original_components
original_state = _converter.original_state
to_original = _converter.to_original
