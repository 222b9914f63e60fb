"""The corpus cache: 16-bit samples of all files in one, built file by file beside its target, read at random."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import shutil
import sys
import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock
from rich.progress import track

from zoo.audio.corpora.corpus import relative_name
from zoo.audio.io.files import AudioFileError, check_band, read_mono
from zoo.common.atomic_files import replace_folder
from zoo.common.checks import check_unreadable_share
from zoo.common.journal import Journal

VERSION = 4
JOURNAL_NAME = "journal.jsonl"
_FULL_SCALE = 32768.0
_MAX_EXPONENT = 64  # of the gain of a quiet file, and of the loss of one beyond full scale
_LOG = logging.getLogger(__name__)


class CorpusCache:
    """Random access to the samples of a cache made by `build_cache`; every process opens its files itself.

    Attributes:
        lengths: samples per file (N,) int64.
        peaks: largest absolute sample per file (N,) float32.
        exponents: per file (N,) int8; samples are stored times 2 to this power, so that quiet files stay precise and
            those beyond full scale (of floats, or after resampling) keep their level.
        unreadable: cause by name of the files that were left out.

    Args:
        key: of the files that are expected; any when None.

    Raises:
        FileNotFoundError: there is no cache in the folder.
        ValueError: the cache is damaged, of another version or of other files.
    """

    def __init__(self, folder: str | os.PathLike[str], key: str | None = None) -> None:
        self.folder = Path(folder)
        if not (self.folder / "meta.json").is_file():
            raise FileNotFoundError(f"{self.folder}: no corpus cache here (meta.json is missing); build it first")
        meta = json.loads((self.folder / "meta.json").read_text(encoding="utf-8"))
        if meta.get("version") != VERSION:
            version = meta.get("version")
            raise ValueError(f"{self.folder}: expected cache version {VERSION}, found {version}; build it anew")
        self.key: str = meta["key"]
        if key not in (None, self.key):
            raise ValueError(f"{self.folder}: another process has built this cache anew, of other files; start again")
        self.sample_rate: int = meta["sample_rate"]
        self.unreadable: dict[str, str] = meta["unreadable"]
        self.offsets, self.lengths, self.peaks, self.exponents = (
            np.load(self.folder / f"{name}.npy", mmap_mode="r") for name in ("offsets", "lengths", "peaks", "exponents")
        )
        # read and not mapped: every page touched would count as this process' memory
        self._audio = os.open(self.folder / "audio.i16", os.O_RDONLY | getattr(os, "O_BINARY", 0))
        weakref.finalize(self, os.close, self._audio).atexit = False
        expected = int(self.offsets[-1] + self.lengths[-1]) if len(self.lengths) == meta["files"] else -1
        if os.fstat(self._audio).st_size // 2 != expected:
            raise ValueError(f"{self.folder}: damaged, audio.i16 lacks samples of its index; delete the folder")

    def __reduce__(self) -> tuple[type[CorpusCache], tuple[Path, str]]:
        return CorpusCache, (self.folder, self.key)

    def __len__(self) -> int:
        return len(self.lengths)

    @cached_property
    def names(self) -> list[str]:
        """Paths of the files relative to the corpus' root, POSIX."""
        names: list[str] = json.loads((self.folder / "names.json").read_text(encoding="utf-8"))
        return names

    def read(self, index: int, start: int = 0, samples: int = -1) -> np.ndarray:
        """Read a file of the corpus, or a part of it cut like a slice, (T,) float32, a copy."""
        length = int(self.lengths[index])
        if index < 0 or not 0 <= start < length or samples < -1:
            raise ValueError(f"{self.names[index]}: cannot read {samples} samples from {start} on, it has {length}")
        count = length - start if samples == -1 else min(samples, length - start)
        content = _read_at(self._audio, 2 * count, 2 * (int(self.offsets[index]) + start))
        if len(content) != 2 * count:
            raise ValueError(f"{self.folder}: audio.i16 was cut since it was opened; delete the folder, build it anew")
        scale = np.float32(_FULL_SCALE * 2.0 ** int(self.exponents[index]))
        return np.frombuffer(content, dtype="<i2").astype(np.float32) / scale

    def split(self, is_held_out: Callable[[str], bool]) -> tuple[np.ndarray, np.ndarray]:
        """Number the files for training and those for validation; one empty set is a ValueError."""
        held_out = np.fromiter(map(is_held_out, self.names), bool, len(self))
        if not held_out.any() or held_out.all():
            count = int(held_out.sum())
            raise ValueError(f"{count} of {len(self)} clips are for validation: both sets need at least one")
        return np.flatnonzero(~held_out), np.flatnonzero(held_out)


def build_cache(
    files: Sequence[str | os.PathLike[str]],
    folder: str | os.PathLike[str],
    sample_rate: int,
    max_bad_share: float = 0.1,
    root: str | os.PathLike[str] | None = None,
    full_band: bool = False,
) -> CorpusCache:
    """Decode, mix down and resample audio files, in their order, into one cache; a killed build is resumed.

    The cache is keyed by names, sizes, modification times, and sample rate: any change rebuilds it. A file
    beyond full scale is scaled down to it. Unreadable files are logged and left out.

    Args:
        folder: appears only when the cache is complete.
        max_bad_share: share of unreadable files in [0, 1] above which the build is given up.
        root: folder that the names are relative to; None takes the deepest one that holds all files.
        full_band: count files of a lower rate as unreadable, see `zoo.audio.io.files.check_band`.

    Raises:
        ValueError: there are no files, too many unreadable ones, or the folder holds something else.
        OSError: the disk is full; nothing is left behind.
    """
    folder, paths = Path(os.path.abspath(folder)), [Path(os.path.abspath(file)) for file in files]
    if not paths:
        raise ValueError(f"{folder}: expected at least one audio file to build the corpus cache from, got none")
    names = relative_names(paths, root)
    key = _key(paths, names, sample_rate, full_band)
    if folder.exists() and not (folder / "meta.json").is_file() and any(folder.iterdir()):
        raise ValueError(f"{folder}: exists and is not a corpus cache; give an empty or a new folder")
    partial = folder.with_name(f".{folder.name}.partial")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_name(f".{folder.name}.lock")):
        if (cache := _open_current(folder, key)) is not None:
            check_unreadable_share(cache.unreadable.values(), len(names), max_bad_share)
            for cause in cache.unreadable.values():
                _LOG.warning("left out of the corpus cache: %s", cause)
            return cache
        partial.mkdir(exist_ok=True)
        try:
            rows = _decode_files(paths, partial, key, sample_rate, max_bad_share, full_band)
            _write_index(names, rows, partial, {"key": key, "sample_rate": sample_rate})
        except (OSError, ValueError) as error:
            shutil.rmtree(partial, ignore_errors=True)
            if isinstance(error, OSError):
                raise OSError(error.errno, f"{folder}: corpus cache not built, nothing kept ({error})") from error
            raise
        replace_folder(partial, folder)
    return CorpusCache(folder)


def relative_names(files: Sequence[str | os.PathLike[str]], root: str | os.PathLike[str] | None = None) -> list[str]:
    """Name the files of a cache by their paths relative to `root`, by default the deepest folder that holds all."""
    paths = [os.path.abspath(file) for file in files]
    base = os.path.commonpath(map(os.path.dirname, paths)) if root is None else os.path.abspath(root)
    return [relative_name(path, base) for path in paths]


def _key(paths: Iterable[Path], names: Iterable[str], sample_rate: int, full_band: bool) -> str:
    digest = hashlib.sha256(f"{VERSION} {sample_rate} mono{' full band' if full_band else ''}\n".encode())
    for path, name in zip(paths, names, strict=True):
        stat = path.stat()
        digest.update(f"{name}\0{stat.st_size}\0{stat.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def _open_current(folder: Path, key: str) -> CorpusCache | None:
    """Open the cache of a folder if it is valid and of this key."""
    try:
        cache = CorpusCache(folder)
    except (OSError, ValueError, KeyError) as error:
        if folder.exists():
            _LOG.info("building the corpus cache anew: %s", error)
        return None
    return cache if cache.key == key else None


Row = list[Any]  # of a file in the journal: samples, peak, exponent; or the cause why it cannot be read


def _decode_files(
    paths: Sequence[Path],
    partial: Path,
    key: str,
    sample_rate: int,
    max_bad_share: float,
    full_band: bool,
) -> list[Row]:
    """Append the samples of the files that the journal of a killed build lacks; a row follows its samples."""
    audio, journal = partial / "audio.i16", Journal(partial / JOURNAL_NAME)
    audio.touch()
    rows = journal.read()
    rows = rows[1:] if rows[:1] == [key] else []
    samples = sum(row[0] for row in rows if len(row) > 1)
    if audio.stat().st_size < 2 * samples:
        rows, samples = [], 0
    journal.write([key, *rows])
    unreadable = [row[0] for row in rows if len(row) == 1]
    with audio.open("r+b") as handle:
        handle.truncate(2 * samples)
        handle.seek(0, os.SEEK_END)
        for path in track(paths[len(rows) :], description="corpus cache"):
            try:
                if full_band:
                    check_band(path, sample_rate)
                content, peak, exponent = to_int16(read_mono(path, sample_rate))
                handle.write(content.tobytes())
                handle.flush()
                row: Row = [len(content), peak, exponent]
            except AudioFileError as error:
                _LOG.warning("left out of the corpus cache: %s", error)
                row = [str(error)]
                unreadable += row
                check_unreadable_share(unreadable, len(paths), max_bad_share)
            journal.append(row)
            rows.append(row)
    if len(unreadable) == len(paths):
        raise ValueError(f"none of {len(paths)} files is valid audio, the first: {unreadable[0]}")
    return rows


def to_int16(audio: np.ndarray) -> tuple[np.ndarray, float, int]:
    """Round a clip (T,) as the cache stores it.

    Returns:
        Samples (T,) int16, the peak, and the largest exponent of 2 that keeps the clip within full scale.
    """
    peak = float(np.abs(audio).max())
    exponent = 0
    if 0 < peak <= 1:  # full scale itself is clipped by one step
        exponent = min(max(0, math.floor(math.log2((_FULL_SCALE - 1) / _FULL_SCALE / peak))), _MAX_EXPONENT)
    elif peak > 1:
        exponent = max(math.floor(-math.log2(peak)), -_MAX_EXPONENT)
    scaled = np.rint(audio * np.float32(_FULL_SCALE * 2.0**exponent))
    samples = np.clip(scaled, -_FULL_SCALE, _FULL_SCALE - 1).astype("<i2")
    return samples, float(np.abs(samples.astype(np.int32)).max()) / _FULL_SCALE / 2.0**exponent, exponent


def _write_index(names: Sequence[str], rows: Sequence[Row], partial: Path, meta: dict[str, object]) -> None:
    """Write the index beside the finished `audio.i16`; `meta.json` comes last and makes the cache valid."""
    lengths, peaks, exponents = zip(*(row for row in rows if len(row) > 1), strict=True)
    np.save(partial / "lengths.npy", np.array(lengths, np.int64))
    np.save(partial / "offsets.npy", np.cumsum(lengths) - lengths)
    np.save(partial / "peaks.npy", np.array(peaks, np.float32))
    np.save(partial / "exponents.npy", np.array(exponents, np.int8))
    readable = [name for name, row in zip(names, rows, strict=True) if len(row) > 1]
    (partial / "names.json").write_text(json.dumps(readable, indent=0), encoding="utf-8")
    unreadable = {name: row[0] for name, row in zip(names, rows, strict=True) if len(row) == 1}
    content = {"version": VERSION, "files": len(readable), **meta, "unreadable": unreadable}
    (partial / "meta.json").write_text(json.dumps(content, indent=1), encoding="utf-8")
    (partial / JOURNAL_NAME).unlink()


def _read_at(descriptor: int, count: int, start: int) -> bytes:
    """Read from a position of an open file; on Windows, which has no pread, no two threads at a time."""
    if sys.platform != "win32":
        return os.pread(descriptor, count, start)
    os.lseek(descriptor, start, os.SEEK_SET)
    return os.read(descriptor, count)
