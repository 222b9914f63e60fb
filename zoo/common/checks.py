"""Checks of arguments, a line each: `check_at_least(1, batch_size=batch_size, workers=workers)`.

Each raises a ValueError that names the argument, what is expected and what was found.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)

MAX_SHOWN = 5  # files named in a message


def _check(values: Mapping[str, Any], is_valid: Callable[[Any], bool], expected: str) -> None:
    for name, value in values.items():
        if not is_valid(value):
            raise ValueError(f"{name} {expected}, not {value!r}")


def check_at_least(least: float, **values: Any) -> None:
    """Refuse values below `least`, and what is no number."""
    _check(values, lambda value: value >= least, f"is at least {least:g}")


def check_positive(**values: Any) -> None:
    """Refuse values that are not above 0."""
    _check(values, lambda value: value > 0, "is positive")


def check_above(bound: float, **values: Any) -> None:
    """Refuse values that are not above `bound`."""
    _check(values, lambda value: value > bound, f"is above {bound:g}")


def check_below(bound: float, **values: Any) -> None:
    """Refuse values that are not below `bound`."""
    _check(values, lambda value: value < bound, f"is below {bound:g}")


def check_between(low: float, high: float, **values: Any) -> None:
    """Refuse values outside of `low` to `high`, neither included."""
    _check(values, lambda value: low < value < high, f"lies between {low:g} and {high:g}")


def check_within(low: float, high: float, **values: Any) -> None:
    """Refuse values outside of `low` to `high`, both included."""
    _check(values, lambda value: low <= value <= high, f"is {low:g} to {high:g}")


def check_one_of(choices: Collection[Any], **values: Any) -> None:
    """Refuse values that are not among `choices`."""
    _check(values, lambda value: value in choices, f"is one of {', '.join(map(str, choices))}")


def find_data_folder(
    key: str, path: str | None, optional: bool, fallback: str = "what is made in code", hint: str = ""
) -> Path | None:
    """Check a folder of a recipe's data section by its key there; None stands for what is made in code, `fallback`.

    A missing folder is None with a warning where it is `optional`, else a FileNotFoundError that ends in a hint.
    """
    if path is None or Path(path).is_dir():
        return None if path is None else Path(path)
    if not optional:
        hint = hint or f"put one there, set ZOO_DATA, or use null for {fallback}"
        raise FileNotFoundError(f"data.init_args.{key}: no folder {path}; {hint}")
    log.warning("no folder %s (data.init_args.%s): using %s (set ZOO_DATA)", path, key, fallback)
    return None


def check_unreadable_share(
    causes: Collection[str],
    count: int,
    max_share: float,
    what: str = "audio files are bad so far",
    shown: int = MAX_SHOWN,
    option: str | None = "max_bad_share",
) -> None:
    """Refuse a data set of `count` files of which more than a share, in [0, 1], cannot be read, for these causes.

    The message calls them `what`, shows the first causes, and names the `option` that sets the share, if any.
    """
    if len(causes) > max_share * count:
        more = f"; and {len(causes) - shown} more" if len(causes) > shown else ""
        raise ValueError(
            f"{len(causes)} of {count} {what}, more than the allowed share of {max_share:g}"
            f"{f' ({option})' if option else ''}, replace or delete them: {'; '.join(list(causes)[:shown])}{more}"
        )
