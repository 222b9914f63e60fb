"""Rows of arrays in .npy files: written once by all processes together, then read through memory maps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import track

from zoo.common.atomic_files import write_atomic
from zoo.common.journal import pending_items


def array_paths(stem: Path, count: int, file_rows: int) -> list[Path]:
    """Return the paths `<stem>-00000.npy`, ... of `count` rows in order, whether they exist or not."""
    return [stem.with_name(f"{stem.name}-{number:05d}.npy") for number in range(-(-count // file_rows))]


def write_array_files(
    stem: Path,
    count: int,
    file_rows: int,
    compute_rows: Callable[[range], np.ndarray],
    rank: int = 0,
    world_size: int = 1,
) -> int:
    """Write every world_size-th of the missing files, and return their number; the same call continues after a kill.

    `stem` identifies what the rows depend on; `compute_rows` returns (n, ...) for n consecutive row numbers, of which a
    file holds `file_rows`.
    """
    stem.parent.mkdir(parents=True, exist_ok=True)
    spans = [range(first, min(first + file_rows, count)) for first in range(0, count, file_rows)]
    files = list(zip(array_paths(stem, count, file_rows), spans, strict=True))
    pending = pending_items(files, lambda file: file[0].is_file(), rank, world_size)
    for path, span in track(pending, stem.name, disable=not pending or rank > 0):
        write_atomic(path, partial(np.save, arr=compute_rows(span)))
    return len(pending)


class MappedArrays:
    """Rows of array files, each mapped when it is first read; missing, corrupt or other files are errors.

    Args:
        row: type of a row with named fields; any type when None.
    """

    def __init__(self, stem: Path, count: int, file_rows: int, row: np.dtype[Any] | None = None) -> None:
        self.paths = array_paths(stem, count, file_rows)
        self.file_rows = file_rows
        self._row_type = row
        if missing := [path.name for path in self.paths if not path.is_file()]:
            raise FileNotFoundError(f"{stem}: {len(missing)} array files are missing, the first {missing[0]}")
        self._written = [path.stat().st_mtime_ns for path in self.paths]  # another writer may replace them

    def row(self, index: int) -> np.ndarray:
        """Return one row (...)."""
        number, position = divmod(index, self.file_rows)
        return _map_array(self.paths[number], self._written[number], self._row_type)[position]

    def arrays(self) -> Iterator[np.ndarray]:
        """Yield the rows (n, ...) of each file."""
        files = zip(self.paths, self._written, strict=True)
        return (_map_array(path, written, self._row_type) for path, written in files)


@lru_cache(64)  # open files of a process
def _map_array(path: Path, written: int, row_type: np.dtype[Any] | None) -> np.ndarray:
    try:
        rows = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError) as error:
        raise ValueError(f"{path} is corrupt ({error}): delete it and start again") from error
    if row_type is not None and rows.dtype != row_type:
        raise ValueError(f"{path}: expected rows of {row_type}, found {rows.dtype}: delete it and start again")
    return rows
