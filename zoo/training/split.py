"""Cutting a batch of any structure into chunks along its items."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from torch import Tensor


def split_batch(batch: Any, chunks: int) -> list[Any]:
    """Cut a batch along its items.

    Args:
        batch: a tensor (B, ...), or tuples, lists, mappings and dataclasses of them. Lists of B plain values (names)
            are cut too; everything else goes into each chunk as it is.
        chunks: how many; fewer when the batch holds fewer items.

    Returns:
        Chunks of the same structure, in order, of sizes that differ by at most one.

    Raises:
        ValueError: when no tensor tells the batch size.
    """
    size = _size(batch)
    if not size:
        raise ValueError(f"accumulate: a {type(batch).__name__} without a tensor (B, ...) and B > 0 cannot be split")
    count = min(chunks, size)
    bounds = [size * i // count for i in range(count + 1)]
    return [_cut(batch, size, slice(first, last)) for first, last in pairwise(bounds)]


def _children(value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, tuple | list):
        return list(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, field.name) for field in dataclasses.fields(value)]
    return []


def _size(value: Any) -> int | None:
    if isinstance(value, Tensor):
        return len(value) if value.dim() else None
    return next((size for size in map(_size, _children(value)) if size is not None), None)


def _cut(value: Any, size: int, part: slice) -> Any:
    if isinstance(value, Tensor):
        return value[part] if value.dim() and len(value) == size else value
    children = _children(value)
    if isinstance(value, tuple | list) and len(value) == size and _size(value) is None:
        return value[part]
    pieces = [_cut(child, size, part) for child in children]
    if isinstance(value, Mapping):
        return dict(zip(value, pieces, strict=True))
    if isinstance(value, tuple | list):
        return type(value)(*pieces) if hasattr(value, "_fields") else type(value)(pieces)
    if children:
        return dataclasses.replace(value, **{f.name: p for f, p in zip(dataclasses.fields(value), pieces, strict=True)})
    return value
