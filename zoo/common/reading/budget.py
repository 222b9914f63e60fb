"""What reading a file of a stranger may cost: memory, steps, depth."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch

from zoo.common.reading.errors import UnsafeFileError
from zoo.common.reading.values import Stub

# What a file may become: so many bytes in memory for each of its own, and a constant.
BYTES_PER_BYTE = 3
BYTES_FREE = 2**27
MAX_STEPS = 8_000_000  # opcodes, some ten seconds
MAX_DEPTH = 200  # of containers and records in one another; those who read the result do so by recursion
# Parts of a tuple that is a key (text counts by its length): hashing goes through all, however they are shared.
MAX_KEY = 1000
SPELLED_FREE = 1_000_000  # parts that lists and tables may stand for beyond those that were read
_TEXT_UNIT = 64  # characters of text that count as one part


class Budget:
    """What reading one file may still cost; shared by all pickles of it, nested ones included."""

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
    """Bytes of text, and of numbers that hash by all their digits, in parts."""
    if isinstance(part, str | bytes):
        return len(part) // _TEXT_UNIT
    if isinstance(part, int):
        return part.bit_length() // 8 // _TEXT_UNIT
    return part.nbytes // _TEXT_UNIT if isinstance(part, np.generic) else 0


def children(value: Any) -> Iterable[Any]:
    """What a container or record holds, keys included; nothing for other values."""
    if isinstance(value, Mapping):
        return chain(value.keys(), value.values())
    if isinstance(value, list | tuple | set | frozenset):
        return value
    return (value.state, *value.args, *value.elements, *value.entries.values()) if isinstance(value, Stub) else ()


@dataclass
class _Visit:
    """A container or record on the way to the one that is looked at."""

    value: Any
    parts: Iterator[Any]
    record: int  # place on the way of the last record, up to this one
    size: int = 1


def check_shape(content: Any, budget: Budget) -> None:
    """Refuse what is small in memory and endless for those who go through it.

    Containers may share their parts, so that few of them stand for very many; whoever copies or writes a list or table
    meets each part as often as it is referred to. Records (`Stub`) may refer to one another in circles.

    Raises:
        UnsafeFileError: a list or table nests too deeply, holds itself, or stands for far more parts than were read.
    """
    allowed = SPELLED_FREE + 2 * budget.steps + budget.allowed // _TEXT_UNIT
    sizes: dict[int, int] = {}
    places: dict[int, int] = {}
    way = [_Visit(None, iter((content,)), 0)]
    while way:
        visit = way[-1]
        for part in visit.parts:
            if not isinstance(part, Mapping | list | tuple | set | frozenset | Stub):
                visit.size += 1 + (len(part) // _TEXT_UNIT if isinstance(part, str | bytes | bytearray) else 0)
            elif id(part) in sizes:
                visit.size += sizes[id(part)]
            elif id(part) not in places:
                places[id(part)] = len(way)
                way.append(_Visit(part, iter(children(part)), len(way) if isinstance(part, Stub) else visit.record))
                break
            elif places[id(part)] > visit.record:
                raise UnsafeFileError(f"a {type(part).__name__} holds itself")
            if visit.size > allowed:
                raise UnsafeFileError(f"its lists and tables stand for more than {allowed} parts (a bomb?)")
        else:
            way.pop()
            if way:
                size = 1 if isinstance(visit.value, Stub) else visit.size
                sizes[id(visit.value)] = size
                del places[id(visit.value)]
                way[-1].size += size
        if len(way) > MAX_DEPTH:
            raise UnsafeFileError(f"its containers nest deeper than {MAX_DEPTH} (a bomb?)")
