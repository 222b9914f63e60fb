"""Request files of `zoo predict`: which samples are wanted, by label and seed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

REQUEST_KEYS = {"label", "seed", "count"}


def number_of(label: int | str, classes: Sequence[str] | None) -> int:
    """A label's number: itself, or that of the class of this name."""
    if not isinstance(label, str):
        return label
    if classes is None:
        raise ValueError(f"label {label!r}: the classes of this run have no names; give numbers from 1")
    if label not in classes:
        raise ValueError(f"label {label!r} is none of the classes {', '.join(classes)}")
    return list(classes).index(label) + 1


def read_requests(
    path: Path, labelled: bool = True, classes: Sequence[str] | None = None
) -> tuple[list[int] | None, list[int]]:
    """Read a request file.

    Args:
        path: one JSON object per line, with `seed`, for a net with classes `label`, and `count` for that many
            neighbouring seeds; empty lines do not count.
        labelled: whether labels are needed.
        classes: names that a label may be given by.

    Returns:
        Labels (None where not needed) and seeds, one per sample.

    Raises:
        ValueError: when a line is something else, or there is none.
    """
    keys = ("label", "seed") if labelled else ("seed",)
    labels: list[int] = []
    seeds: list[int] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}, line {number}: no JSON ({error})") from error
        if isinstance(row, dict) and labelled and isinstance(row.get("label"), str):
            try:
                row["label"] = number_of(row["label"], classes)
            except ValueError as error:
                raise ValueError(f"{path}, line {number}: {error}") from error
        if not isinstance(row, dict) or any(type(row.get(key)) is not int for key in keys):
            raise ValueError(f"{path}, line {number}: expected whole numbers {' and '.join(keys)}, found {line[:80]}")
        count = row.get("count", 1)
        if not row.keys() <= REQUEST_KEYS or type(count) is not int or count < 1:
            raise ValueError(
                f"{path}, line {number}: besides {' and '.join(keys)} a line holds only count, 1 or more; "
                f"found {line[:80]}"
            )
        seeds += range(row["seed"], row["seed"] + count)
        labels += [row["label"]] * count if labelled else []
    if not seeds:
        raise ValueError(f"{path} asks for nothing: it has no line with {' and '.join(keys)}")
    return labels if labelled else None, seeds
