"""Lists of very many files, kept on disk: sorted names in one block, mapped into memory, shared by all processes.

Below `LARGE` files a list of paths is made anew at every start. From there on the list is written once into the folder
of the caches and opened again at once, as long as the folders below the root (or the file lists) are as they were:
files that are added, removed or renamed change the time of their folder, files that are written over in place do not.
"""

from __future__ import annotations

import hashlib
import heapq
import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from filelock import FileLock

from zoo.common.atomic import replacing

LARGE = 1 << 16  # files: longer lists are kept on disk
FOLDERS_LOOKED_AT = 1 << 14  # at a start: all of so many folders, of more so many evenly spread ones
VERSION = 1
_BLOCK = 1 << 16  # names worked on at once
_LOG = logging.getLogger(__name__)


class Names(Sequence[str]):
    """File names kept as one block of UTF-8, so that a million of them open without a million Python objects."""

    def __init__(self, folder: Path, name: str = "name") -> None:
        self._ends = np.load(folder / f"{name}_ends.npy", mmap_mode="r")
        path = folder / f"{name}s.txt"
        self._block = np.memmap(path, np.uint8, "r") if path.stat().st_size else np.empty(0, np.uint8)

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        index = range(len(self))[index]
        start = 0 if index == 0 else int(self._ends[index - 1])
        return self._block[start : int(self._ends[index])].tobytes().decode("utf-8")

    def __iter__(self) -> Iterator[str]:
        begin = 0
        for first in range(0, len(self), _BLOCK):
            ends = self._ends[first : first + _BLOCK].tolist()
            block = self._block[begin : ends[-1]].tobytes()
            places = ((start - begin, end - begin) for start, end in zip([begin, *ends], ends, strict=False))
            if block.isascii():
                text = block.decode("ascii")
                yield from (text[start:end] for start, end in places)
            else:
                yield from (block[start:end].decode("utf-8") for start, end in places)
            begin = ends[-1]

    def equal(self, other: Names) -> bool:
        """Whether another block holds the same names in the same order."""
        pairs = (self._ends, other._ends), (self._block, other._block)
        return all(len(a) == len(b) for a, b in pairs) and all(
            np.array_equal(a[i : i + _BLOCK], b[i : i + _BLOCK]) for a, b in pairs for i in range(0, len(a), _BLOCK)
        )


class Column:
    """Writes numbers to a `.npy` file as they come."""

    def __init__(self, path: Path, dtype: Any) -> None:
        self._dtype = np.dtype(dtype)
        self._count = 0
        self._file = path.open("wb")
        self._head()

    def _head(self) -> None:
        self._file.seek(0)
        facts = {"descr": np.lib.format.dtype_to_descr(self._dtype), "fortran_order": False, "shape": (self._count,)}
        np.lib.format.write_array_header_1_0(self._file, facts)  # leaves room for a larger count

    def extend(self, values: Any) -> None:
        """Append numbers."""
        array = np.asarray(values, self._dtype)
        self._file.write(array.tobytes())
        self._count += len(array)

    def __enter__(self) -> Column:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._file:
            self._head()


def write_names(folder: Path, names: Iterable[str], name: str = "name") -> bytes:
    """Write what `Names` reads, block by block; returns a digest of the names.

    Raises:
        ValueError: a name is not UTF-8.
    """
    names = iter(names)
    end, digest = 0, hashlib.blake2b(digest_size=16)
    with (folder / f"{name}s.txt").open("wb") as text, Column(folder / f"{name}_ends.npy", np.int64) as ends:
        while block := list(islice(names, _BLOCK)):
            together = "".join(block)
            joined = together.encode("utf-8")
            text.write(joined)
            sizes = map(len, block if together.isascii() else [each.encode("utf-8") for each in block])
            places = end + np.cumsum(np.fromiter(sizes, np.int64, len(block)))
            ends.extend(places)
            end = int(places[-1])
            digest.update(joined)
            digest.update(places.astype("<i8").tobytes())
    return digest.digest()


class FileIndex(Sequence[Path]):
    """The paths of a list of files that is kept on disk; may be pickled.

    Args:
        folder: where `file_list` or `write_index` wrote it.

    Attributes:
        home: the folder that holds all files.
        names: relative to it.
        lengths: samples per file (N,) int64, where `headers` made the index.
        digest: of the list and of the folders' times.
        meta: what was noted besides.

    Raises:
        FileNotFoundError: there is no index in the folder.
        ValueError: it is damaged or of another version.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
        if self.meta.get("version") != VERSION:
            raise ValueError(f"{folder}: an index of version {self.meta.get('version')}, expected {VERSION}; delete it")
        self.home: str = self.meta["home"]
        self.digest: str = self.meta["digest"]
        self._map()
        if len(self) != self.meta["files"]:
            raise ValueError(f"{folder}: damaged, {len(self)} names of {self.meta['files']}; delete it")

    def _map(self) -> None:
        self.names = Names(self.folder)
        lengths = self.folder / "lengths.npy"
        self.lengths = np.load(lengths, mmap_mode="r") if lengths.is_file() else np.empty(0, np.int64)

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key not in ("names", "lengths")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._map()

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return Path(self.home, self.names[index])

    def __iter__(self) -> Iterator[Path]:
        return (Path(self.home, name) for name in self.names)

    @property
    def is_current(self) -> bool:
        """Whether the folders that it was made of have not changed since (of many, those looked at)."""
        folders, times = Names(self.folder, "folder"), np.load(self.folder / "times.npy", mmap_mode="r")
        looked_at = np.linspace(0, len(folders) - 1, min(len(folders), FOLDERS_LOOKED_AT)).astype(int)
        return all(_time(folders[place]) == times[place] for place in looked_at)


def _time(folder: str) -> int:
    try:
        return os.stat(folder).st_mtime_ns
    except OSError:
        return -1


def file_list(
    folder: Path,
    files: Callable[[Callable[[str], None]], Iterable[str]],
    key: Callable[[str], str] = lambda path: path.replace("/", "\0"),
) -> Sequence[Path]:
    """Files in order and each once: those of an index that is current, else as `files` finds them.

    Args:
        folder: where the index of a long list is kept.
        files: paths; it calls its argument with each folder (or file list) that decides which, before it is read.
        key: what to sort them by; the default sorts like `sorted` on paths.

    Returns:
        A list of paths; a `FileIndex` where there are more than `LARGE`.
    """
    folder = Path(os.path.abspath(folder))
    if (found := _current(folder)) is not None:
        return found
    seen: list[tuple[str, int]] = []
    paths = iter(files(lambda path: seen.append((path, _time(path)))))
    first = list(islice(paths, LARGE + 1))
    if len(first) <= LARGE:
        return [Path(path) for path in sorted(dict.fromkeys(first), key=key)]
    _LOG.info("%s: writing the list of the files, once", folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_name(f".{folder.name}.lock")):
        if (found := _current(folder)) is not None:  # another process was faster
            return found
        with replacing(folder) as temporary:
            temporary.mkdir()
            home, ordered = _sorted(chain(first, paths), key, temporary)
            write_index(temporary, home, ordered, seen)
    return FileIndex(folder)


def _current(folder: Path) -> FileIndex | None:
    found = _opened(folder)
    return found if found is not None and found.is_current else None


def _opened(folder: Path) -> FileIndex | None:
    try:
        return FileIndex(folder)
    except (OSError, ValueError, KeyError) as error:
        if folder.exists():
            _LOG.info("listing the files anew: %s", error)
        return None


def write_index(
    folder: Path, home: str, paths: Iterable[str], seen: Sequence[tuple[str, int]] = (), **meta: object
) -> None:
    """Write what `FileIndex` reads into an empty folder; `meta.json` comes last and makes it valid.

    Args:
        home: a folder above all paths.
        paths: absolute, in order.
        seen: folders or file lists that decide which, and their times in ns.
        meta: further facts, plain values.
    """
    above = len(home.rstrip("/")) + 1
    digest = hashlib.blake2b(write_names(folder, (path[above:] for path in paths)), digest_size=16)
    digest.update(write_names(folder, (path for path, _ in seen), "folder"))
    times = np.array([time for _, time in seen], dtype=np.int64)
    np.save(folder / "times.npy", times)
    digest.update(times.tobytes())
    facts = {"version": VERSION, "home": home, "files": len(Names(folder)), "digest": digest.hexdigest(), **meta}
    (folder / "meta.json").write_text(json.dumps(facts, indent=1), encoding="utf-8")


def _sorted(paths: Iterator[str], key: Callable[[str], str], scratch: Path) -> tuple[str, Iterator[str]]:
    """The folder above all paths, and the paths in order, each once: sorted in runs on disk, which are merged."""
    runs: list[Path] = []
    home = last = ""
    while part := list(islice(paths, 4 * _BLOCK)):
        for path in part:
            folder = path.rpartition("/")[0] or "/"
            if folder != last:
                home, last = os.path.commonpath([home or folder, folder]), folder
        part.sort(key=key)
        runs.append(scratch / f"run{len(runs)}")
        write_names(scratch, part, runs[-1].name)

    def merged() -> Iterator[str]:
        before = ""
        for path in heapq.merge(*(Names(scratch, run.name) for run in runs), key=key):
            if path != before:
                yield path
            before = path
        for file in scratch.glob("run*"):
            file.unlink()

    return home, merged()


def headers(files: FileIndex, sample_rate: int, length: Callable[[Path], int]) -> FileIndex:
    """The sound files of an index with their `lengths`, from the headers; read once, then kept beside the index.

    Args:
        length: samples of a file at the rate; -1 for a broken one, which is left out.
    """
    folder = files.folder.with_name(f"{files.folder.name}-headers-{sample_rate}")
    with FileLock(folder.with_name(f".{folder.name}.lock")):
        found = _opened(folder)
        if found is None or found.meta["of"] != files.digest:
            with replacing(folder) as temporary:
                temporary.mkdir()
                with Column(temporary / "lengths.npy", np.int64) as lengths:

                    def sound() -> Iterator[str]:
                        for path in files:
                            if (samples := length(path)) >= 0:
                                lengths.extend([samples])
                                yield str(path)

                    write_index(temporary, files.home, sound(), of=files.digest)
            found = FileIndex(folder)
    return found
