"""Request files: what samples are asked for, a JSON object a line."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from zoo.common.journal import read_lines

REQUEST_KEYS = {"label", "seed", "count"}
GIVEN_KEYS = ("prompt", "image", "mask")


def label_index(label: int | str, classes: Sequence[str] | None) -> int:
    """A label's number: itself, or that of the class of this name."""
    if not isinstance(label, str):
        return label
    if classes is None:
        raise ValueError(f"label {label!r}: the classes of this run have no names; give numbers from 1")
    if label not in classes:
        raise ValueError(f"label {label!r} is none of the classes {', '.join(classes)}")
    return list(classes).index(label) + 1


def read_requests(
    path: Path, labelled: bool = True, classes: Sequence[str] | None = None, extra_keys: Sequence[str] = ()
) -> tuple[list[int] | None, list[int]]:
    """Labels (None where not needed) and seeds, one per sample, of a request file; see `Sampler`.

    Args:
        given: further keys that a line may hold.
    """
    labels: list[int] = []
    seeds: list[int] = []
    for row in request_rows(path, labelled, classes, extra_keys):
        count = row.get("count", 1)
        seeds += range(row["seed"], row["seed"] + count)
        labels += [row["label"]] * count if labelled else []
    return labels if labelled else None, seeds


def request_rows(
    path: Path, labelled: bool, classes: Sequence[str] | None, extra_keys: Sequence[str]
) -> list[dict[str, Any]]:
    """The lines of a request file, labels as numbers."""
    keys = ("label", "seed") if labelled else ("seed",)
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}, line {number}: no JSON ({error})") from error
        if isinstance(row, dict) and labelled and isinstance(row.get("label"), str):
            try:
                row["label"] = label_index(row["label"], classes)
            except ValueError as error:
                raise ValueError(f"{path}, line {number}: {error}") from error
        if not isinstance(row, dict) or any(type(row.get(key)) is not int for key in keys):
            raise ValueError(f"{path}, line {number}: expected whole numbers {' and '.join(keys)}, found {line[:80]}")
        count = row.get("count", 1)
        if not row.keys() <= {*REQUEST_KEYS, *extra_keys} or type(count) is not int or count < 1:
            more = f" and {', '.join(extra_keys)}" if extra_keys else ""
            raise ValueError(
                f"{path}, line {number}: besides {' and '.join(keys)} a line holds only count, 1 or more{more}; "
                f"found {line[:80]}"
            )
        if wrong := [key for key in extra_keys if key in row and not isinstance(row[key], str)]:
            raise ValueError(f"{path}, line {number}: {wrong[0]} is a text, found {line[:80]}")
        rows.append(row)
    if not rows:
        raise ValueError(f"{path} asks for nothing: it has no line with {' and '.join(keys)}")
    return rows
