"""Order and equality of more names than memory holds as Python objects."""

from __future__ import annotations

import heapq
import itertools
import marshal
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO, TypeVar

import numpy as np

T = TypeVar("T")

_RUN_ITEMS = 2**16  # sorted in memory at once
_BLOCK_ITEMS = 2**9  # read back at once of each run
_DIGEST_BYTES = 16  # 10^7 names meet by chance with a probability of 1e-25


def in_order(items: Iterable[T], folder: Path | None = None) -> Iterator[T]:
    """Sort items, many of them through an unnamed temporary file.

    Args:
        items: bytes, or tuples of plain values that `marshal` writes.
        folder: for the temporary file; the system's when not given.
    """
    rest = iter(items)
    run = sorted(itertools.islice(rest, _RUN_ITEMS))  # type: ignore[type-var]
    if len(run) < _RUN_ITEMS:
        yield from run
        return
    with tempfile.TemporaryFile(dir=folder) as file:
        runs = []
        while run:
            runs.append([_spill(file, run[start : start + _BLOCK_ITEMS]) for start in range(0, len(run), _BLOCK_ITEMS)])
            run = sorted(itertools.islice(rest, _RUN_ITEMS))  # type: ignore[type-var]
        yield from heapq.merge(*(_read_back(file, places) for places in runs))


def _spill(file: BinaryIO, items: list[T]) -> tuple[int, int]:
    place = file.tell()
    return place, file.write(zlib.compress(marshal.dumps(items), 1))


def _read_back(file: BinaryIO, places: list[tuple[int, int]]) -> Iterator[T]:
    for place, size in places:
        file.seek(place)
        yield from marshal.loads(zlib.decompress(file.read(size)))


class Digests:
    """A set of names as their 128-bit hashes, 16 bytes each: add all, then ask."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._sorted: np.ndarray | None = None

    def add(self, name: bytes) -> None:
        """Add a name; before the first question."""
        self._bytes += digest(name)

    def __len__(self) -> int:
        return len(self._bytes) // _DIGEST_BYTES

    def __contains__(self, name: bytes) -> bool:
        known = self._settled()
        if not len(known):
            return False
        wanted = np.frombuffer(digest(name), known.dtype)
        place = int(np.searchsorted(known, wanted)[0])
        return place < len(known) and bool(known[place] == wanted[0])

    def repeated(self) -> Digests:
        """The names that were added more than once."""
        known = self._settled()
        found = Digests()
        found._bytes += np.unique(known[1:][known[1:] == known[:-1]]).tobytes()
        return found

    def many(self, limit: int) -> dict[bytes, int]:
        """Names that were added more than `limit` times, by digest, and how often."""
        known = self._settled()
        starts = np.flatnonzero(np.append(True, known[1:] != known[:-1])) if len(known) else np.empty(0, int)
        counts = np.diff(np.append(starts, len(known)))
        large = counts > limit
        return {known[i : i + 1].tobytes(): int(n) for i, n in zip(starts[large], counts[large], strict=True)}

    def _settled(self) -> np.ndarray:
        if self._sorted is None:
            self._sorted = np.frombuffer(self._bytes, f"S{_DIGEST_BYTES}")
            self._sorted.sort()  # in place: there is no second copy
        return self._sorted


def digest(name: bytes) -> bytes:
    """The hash by which `Digests` knows a name."""
    return blake2b(name, digest_size=_DIGEST_BYTES).digest()
