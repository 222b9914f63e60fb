"""Checks of arguments, a line each: `check_at_least(1, batch_size=batch_size, workers=workers)`.

Each raises a ValueError that names the argument, what is expected and what was found.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)

MAX_SHOWN = 5  # files named in a message


def check_at_least(least: float, **values: Any) -> None:
    """Refuse values below `least`, and what is no number."""
    for name, value in values.items():
        if not value >= least:
            raise ValueError(f"{name} is at least {least:g}, not {value!r}")


def check_positive(**values: Any) -> None:
    """Refuse values that are not above 0."""
    for name, value in values.items():
        if not value > 0:
            raise ValueError(f"{name} is positive, not {value!r}")


def check_above(bound: float, **values: Any) -> None:
    """Refuse values that are not above `bound`."""
    for name, value in values.items():
        if not value > bound:
            raise ValueError(f"{name} is above {bound:g}, not {value!r}")


def check_below(bound: float, **values: Any) -> None:
    """Refuse values that are not below `bound`."""
    for name, value in values.items():
        if not value < bound:
            raise ValueError(f"{name} is below {bound:g}, not {value!r}")


def check_between(low: float, high: float, **values: Any) -> None:
    """Refuse values outside of `low` to `high`, neither included."""
    for name, value in values.items():
        if not low < value < high:
            raise ValueError(f"{name} lies between {low:g} and {high:g}, not {value!r}")


def check_within(low: float, high: float, **values: Any) -> None:
    """Refuse values outside of `low` to `high`, both included."""
    for name, value in values.items():
        if not low <= value <= high:
            raise ValueError(f"{name} is {low:g} to {high:g}, not {value!r}")


def check_one_of(choices: Collection[Any], **values: Any) -> None:
    """Refuse values that are not among `choices`."""
    for name, value in values.items():
        if value not in choices:
            raise ValueError(f"{name} is one of {', '.join(map(str, choices))}, not {value!r}")


def find_data_folder(
    key: str, path: str | None, optional: bool, fallback: str = "what is made in code", hint: str = ""
) -> Path | None:
    """Check a folder of a recipe's data section; None stands for what is made in code.

    Args:
        key: its name there.
        path: the folder; null for none.
        optional: return None, with a message, where it does not exist; else raise FileNotFoundError.
        fallback: what is used then.
        hint: what to do about it, where that is not the usual.
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
    """Refuse a data set of which more than a share, in [0, 1], of the files cannot be read.

    Args:
        causes: what is wrong with each bad file, with its name.
        count: files in all.
        what: what the message calls the bad ones.
        shown: bad files that the message names.
        option: the option that sets the share; None where there is none.
    """
    if len(causes) > max_share * count:
        more = f"; and {len(causes) - shown} more" if len(causes) > shown else ""
        raise ValueError(
            f"{len(causes)} of {count} {what}, more than the allowed share of {max_share:g}"
            f"{f' ({option})' if option else ''}, replace or delete them: {'; '.join(list(causes)[:shown])}{more}"
        )
