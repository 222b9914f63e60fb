"""A whole corpus as one flat int16 file with a memory-mapped index: cropping costs a page fault, not a decode.

A folder holds `audio.i16`, the arrays `offsets`, `lengths`, `peaks`, `name_ends` (`.npy`), `names.txt` and `meta.json`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

VERSION = 1
_FULL_SCALE = 32768.0


class Names(Sequence[str]):
    """File names kept as one block of UTF-8, so that a million of them open without a million Python objects.

    Args:
        folder: A cache folder.
    """

    def __init__(self, folder: Path) -> None:
        self._ends = np.load(folder / "name_ends.npy", mmap_mode="r")
        self._block = np.memmap(folder / "names.txt", dtype=np.uint8, mode="r")

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        index = range(len(self))[index]
        start = 0 if index == 0 else int(self._ends[index - 1])
        return self._block[start : int(self._ends[index])].tobytes().decode("utf-8")

    def __iter__(self) -> Iterator[str]:
        return (self[i] for i in range(len(self)))


class CorpusCache:
    """Random access to the samples of a built cache; may be pickled, and every process maps the files itself.

    Args:
        folder: Folder made by `zoo.audio.cache.build`.

    Attributes:
        sample_rate: Hz.
        lengths: Samples per file (N,) int64.
        peaks: Largest absolute sample per file (N,) float32, in [0, 1].
        names: Names of the files, relative to their common folder.
        bad: Cause by name of the files that were left out.

    Raises:
        FileNotFoundError: There is no cache in the folder.
        ValueError: The cache is damaged or of another version.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        if not (self.folder / "meta.json").is_file():
            raise FileNotFoundError(f"{self.folder}: no corpus cache here (meta.json is missing); build it first")
        meta = json.loads((self.folder / "meta.json").read_text(encoding="utf-8"))
        if meta.get("version") != VERSION:
            raise ValueError(
                f"{self.folder}: expected cache version {VERSION}, found {meta.get('version')}; build it anew"
            )
        self.key: str = meta["key"]
        self.sample_rate: int = meta["sample_rate"]
        self.bad: dict[str, str] = meta["bad"]
        self._map()
        expected = int(self.offsets[-1] + self.lengths[-1]) if len(self.lengths) == meta["files"] else -1
        if len(self._audio) != expected:
            raise ValueError(
                f"{self.folder}: damaged cache, {len(self._audio)} samples in audio.i16 where the index expects "
                f"{expected}; delete the folder and build it anew"
            )

    def _map(self) -> None:
        self._process = os.getpid()
        self.offsets = np.load(self.folder / "offsets.npy", mmap_mode="r")
        self.lengths = np.load(self.folder / "lengths.npy", mmap_mode="r")
        self.peaks = np.load(self.folder / "peaks.npy", mmap_mode="r")
        self.names = Names(self.folder)
        self._audio = np.memmap(self.folder / "audio.i16", dtype="<i2", mode="r")

    def __getstate__(self) -> dict[str, Any]:
        mapped = ("offsets", "lengths", "peaks", "names", "_audio", "_process")
        return {key: value for key, value in self.__dict__.items() if key not in mapped}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._map()

    def __len__(self) -> int:
        return len(self.lengths)

    def read(self, index: int, start: int = 0, samples: int = -1) -> np.ndarray:
        """Read a file of the corpus or a part of it.

        Args:
            index: File, 0 <= index < len.
            start: First sample, 0 <= start < length of the file.
            samples: Number of samples; -1 reads to the end, and a part reaching past the end is cut like a slice.

        Returns:
            Audio (T,) float32 in [-1, 1), a copy.

        Raises:
            IndexError: There is no such file.
            ValueError: `start` or `samples` lies outside the file.
        """
        if not 0 <= index < len(self):
            raise IndexError(f"{self.folder}: file {index} of a corpus of {len(self)}")
        length = int(self.lengths[index])
        if not 0 <= start < length or samples < -1:
            raise ValueError(f"{self.names[index]}: cannot read {samples} samples from {start} on, it has {length}")
        if self._process != os.getpid():
            self._map()
        first = int(self.offsets[index]) + start
        last = first + (length - start if samples == -1 else min(samples, length - start))
        return self._audio[first:last].astype(np.float32) / np.float32(_FULL_SCALE)
