"""Rows of arrays in shards on disk: written once by all processes together, then read through memory maps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import track

from zoo.common.atomic_files import write_atomic
from zoo.common.journal import pending_items

OPEN_SHARDS = 64  # each holds a file descriptor


def shard_paths(stem: Path, count: int, shard_size: int) -> list[Path]:
    """The shards `<stem>-00000.npy`, ... of `count` rows, in their order, whether they are there or not."""
    return [stem.with_name(f"{stem.name}-{number:05d}.npy") for number in range(-(-count // shard_size))]


def write_rows(
    stem: Path,
    count: int,
    shard_size: int,
    rows: Callable[[range], np.ndarray],
    rank: int = 0,
    world_size: int = 1,
) -> int:
    """Write the missing shards; the same call continues after a kill.

    Of `world_size` processes each makes every world_size-th shard.

    Args:
        stem: of the shards' names, which identifies everything that the rows depend on.
        rows: (n, ...) of so many neighbours.

    Returns:
        Shards that this process wrote.
    """
    stem.parent.mkdir(parents=True, exist_ok=True)
    parts = [range(first, min(first + shard_size, count)) for first in range(0, count, shard_size)]
    shards = list(zip(shard_paths(stem, count, shard_size), parts, strict=True))
    pending = pending_items(shards, lambda shard: shard[0].is_file(), rank, world_size)
    for path, part in track(pending, stem.name, disable=not pending or rank > 0):
        write_atomic(path, partial(np.save, arr=rows(part)))
    return len(pending)


class Shards:
    """Rows of memory-mapped shards; may be pickled, every process maps the files itself.

    Args:
        stem: of their names.
        shard_size: rows of a shard; the last may have fewer.
        row: type of a row with named fields; any when not given.

    Raises:
        FileNotFoundError: when shards are missing.
        ValueError: when one that is read is torn or holds rows of another type.
    """

    def __init__(self, stem: Path, count: int, shard_size: int, row: np.dtype[Any] | None = None) -> None:
        self.paths = shard_paths(stem, count, shard_size)
        self.shard_size = shard_size
        self._type = row
        self._open: dict[int, np.ndarray] = {}
        if missing := [path.name for path in self.paths if not path.is_file()]:
            raise FileNotFoundError(f"{stem}: {len(missing)} shards are missing, the first {missing[0]}")

    def __getstate__(self) -> dict[str, Any]:
        """Leave the open shards behind: pickled, a memory map becomes a copy of the file."""
        return {**self.__dict__, "_open": {}}

    def row(self, index: int) -> np.ndarray:
        """One row (...)."""
        number, place = divmod(index, self.shard_size)
        return self._shard(number)[place]

    def shards(self) -> Iterator[np.ndarray]:
        """Every shard (n, ...)."""
        for number in range(len(self.paths)):
            yield self._shard(number)

    def _shard(self, number: int) -> np.ndarray:
        if number not in self._open:
            if len(self._open) == OPEN_SHARDS:
                del self._open[next(iter(self._open))]
            self._open[number] = self._map(self.paths[number])
        return self._open[number]

    def _map(self, path: Path) -> np.ndarray:
        try:
            rows = np.load(path, mmap_mode="r", allow_pickle=False)
        except (ValueError, OSError) as error:
            raise ValueError(f"{path} is no whole shard ({error}): delete it and start again") from error
        if self._type is not None and rows.dtype != self._type:
            raise ValueError(f"{path}: expected rows of {self._type}, found {rows.dtype}: delete it and start again")
        return rows
