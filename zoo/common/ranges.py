"""Range checks of arguments, a line each: `at_least(1, batch_size=batch_size, workers=workers)`.

Each raises a ValueError that names the argument, what is expected and what was found.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any


def at_least(least: float, **values: Any) -> None:
    """Refuse values below `least`, and what is no number."""
    for name, value in values.items():
        if not value >= least:
            raise ValueError(f"{name} is at least {least:g}, not {value!r}")


def positive(**values: Any) -> None:
    """Refuse values that are not above 0."""
    for name, value in values.items():
        if not value > 0:
            raise ValueError(f"{name} is positive, not {value!r}")


def above(bound: float, **values: Any) -> None:
    """Refuse values that are not above `bound`."""
    for name, value in values.items():
        if not value > bound:
            raise ValueError(f"{name} is above {bound:g}, not {value!r}")


def below(bound: float, **values: Any) -> None:
    """Refuse values that are not below `bound`."""
    for name, value in values.items():
        if not value < bound:
            raise ValueError(f"{name} is below {bound:g}, not {value!r}")


def between(low: float, high: float, **values: Any) -> None:
    """Refuse values outside of `low` to `high`, neither included."""
    for name, value in values.items():
        if not low < value < high:
            raise ValueError(f"{name} lies between {low:g} and {high:g}, not {value!r}")


def within(low: float, high: float, **values: Any) -> None:
    """Refuse values outside of `low` to `high`, both included."""
    for name, value in values.items():
        if not low <= value <= high:
            raise ValueError(f"{name} is {low:g} to {high:g}, not {value!r}")


def one_of(choices: Collection[Any], **values: Any) -> None:
    """Refuse values that are not among `choices`."""
    for name, value in values.items():
        if value not in choices:
            raise ValueError(f"{name} is one of {', '.join(map(str, choices))}, not {value!r}")
