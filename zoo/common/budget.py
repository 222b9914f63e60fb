"""What reading a file of a stranger may cost: memory, steps, depth."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch

from zoo.common.errors import UnsafeFileError
from zoo.common.foreign_values import Stub

# What a file may become: so many bytes in memory for each of its own, and a constant.
BYTES_PER_BYTE = 3
BYTES_FREE = 2**27
MAX_STEPS = 8_000_000  # opcodes, some ten seconds
MAX_DEPTH = 200  # of containers and records in one another; those who read the result do so by recursion
# Parts of a tuple that is a key (64 bytes of text count as one): hashing goes through all, however they are shared.
MAX_KEY = 1000


class Budget:
    """What reading one file may still cost; shared by all pickles of it, nested ones included.

    Args:
        size: bytes of the file.
    """

    def __init__(self, size: int) -> None:
        self.allowed = BYTES_PER_BYTE * size + BYTES_FREE
        self.built = 0
        self.viewed = 0
        self.steps = 0

    def build(self, count: int, steps: int = 0) -> None:
        """Pay for bytes of memory and for steps before they are taken.

        Raises:
            UnsafeFileError: there is no more left.
        """
        self.built += count
        self.steps += steps
        if self.built > self.allowed:
            raise UnsafeFileError(f"it unpacks to more than {self.allowed} bytes (a bomb?)")
        if self.steps > MAX_STEPS:
            raise UnsafeFileError(f"its pickle takes more than {MAX_STEPS} steps; save tensors or arrays instead")

    def view(self, tensor: torch.Tensor) -> None:
        """Pay for what a tensor is when written out: views of one storage take no memory until someone copies them.

        Raises:
            UnsafeFileError: there is no more left.
        """
        self.viewed += tensor.numel() * tensor.element_size()
        if self.viewed > self.allowed:
            raise UnsafeFileError(f"its tensors repeat their values up to more than {self.allowed} bytes (a bomb?)")


def check_keys(keys: Iterable[Any], budget: Budget) -> None:
    """Refuse keys whose hash would take long; it is computed anew each time, through all that a tuple shares."""
    for key in keys:
        if isinstance(key, str | bytes | Stub) or key is None:
            continue
        pending, count = [key], 0
        while pending:
            part = pending.pop()
            count += 1 + _size_in_key(part)
            if count + len(pending) > MAX_KEY:
                raise UnsafeFileError("a key of a table has too many parts (a bomb?)")
            if isinstance(part, tuple | frozenset):
                pending += part
        budget.build(0, steps=count)


def _size_in_key(part: Any) -> int:
    """Bytes of text, and of numbers that hash by all their digits, in units of 64."""
    if isinstance(part, str | bytes):
        return len(part) // 64
    if isinstance(part, int):
        return part.bit_length() // 512
    return part.nbytes // 64 if isinstance(part, np.generic) else 0


def children(value: Any) -> Iterable[Any]:
    """What a container or record holds; nothing for other values."""
    if isinstance(value, Mapping):
        return value.values()
    if isinstance(value, list | tuple | set | frozenset):
        return value
    return (value.state, *value.args, *value.elements, *value.entries.values()) if isinstance(value, Stub) else ()


def check_depth(value: Any) -> None:
    """Refuse containers nested deeper than those can go that read them by recursion.

    Raises:
        UnsafeFileError: they are.
    """
    seen: set[int] = set()
    path = [iter((value,))]
    while path:
        for entry in path[-1]:
            if isinstance(entry, Mapping | list | tuple | set | frozenset | Stub) and id(entry) not in seen:
                seen.add(id(entry))
                path.append(iter(children(entry)))
                break
        else:
            path.pop()
        if len(path) > MAX_DEPTH:
            raise UnsafeFileError(f"its containers nest deeper than {MAX_DEPTH} (a bomb?)")
