"""Descriptions of nets as tables whose leaves read a foreign file: sizes from shapes, the rest from its settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from zoo.convert.settings import to_number

Leaf = Callable[[Any], Any]  # of an `OriginalFile`, or what has its `state` and `settings`


def component(class_path: str, **arguments: Any) -> dict[str, Any]:
    """Describe a component: `class_path` and `init_args`, whose values may be leaves."""
    return {"class_path": class_path, "init_args": arguments}


def size_of_axis(name: str, axis: int = 0) -> Leaf:
    """Read an axis of a tensor."""
    return lambda source: source.state[name].shape[axis]


def count_blocks(prefix: str) -> Leaf:
    """Count the numbers (or names) that stand behind a prefix."""
    return lambda source: len(
        {key.removeprefix(prefix).partition(".")[0] for key in source.state if key.startswith(prefix)}
    )


def sizes_of_axis(template: str, axis: int = 0) -> Leaf:
    """Read an axis of each of the tensors whose names count up from 0, as `ups.{}.weight`."""
    counted = count_blocks(template.partition("{}")[0])
    return lambda source: [source.state[template.format(number)].shape[axis] for number in range(counted(source))]


def has_tensor(name: str) -> Leaf:
    """Tell whether there is a tensor."""
    return lambda source: name in source.state


def setting(key: str, default: Any, kind: type[int] | type[float] | None = None) -> Leaf:
    """Take a setting, or the default where the file has none; `kind` checks that it is such a number."""

    def read(source: Any) -> Any:
        value = source.settings.get(key, default)
        return value if kind is None else to_number(value, kind, key)

    return read


def fill_description(table: Any, source: Any, path: object) -> Any:
    """Describe the net of a foreign file.

    Args:
        table: mapping of values, leaves and further mappings; a leaf may return a table.
        source: the file's tensors and settings, which leaves read.
        path: named in errors.

    Raises:
        ValueError: when a tensor is missing or has a wrong shape.
    """

    def fill(entry: Any) -> Any:
        if isinstance(entry, Mapping):
            return {key: fill(value) for key, value in entry.items()}
        return fill(entry(source)) if callable(entry) else entry

    try:
        return fill(table)
    except (KeyError, IndexError, ValueError, ZeroDivisionError) as error:
        raise ValueError(f"{path}: the sizes of its net cannot be told from its tensors ({error})") from error
