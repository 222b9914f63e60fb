"""The corpus cache: built file by file beside its target, taken up again after an interruption; read at random."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import shutil
import weakref
from array import array
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock
from rich.progress import track

from zoo.audio.corpora.selection import SHOWN, relative_name
from zoo.audio.io.files import AudioFileError, Channels, read_channels, read_mixed
from zoo.common.atomic import BINARY, read_at
from zoo.common.reading.bad_share import check_bad_share
from zoo.common.work import Journal

VERSION = 3
JOURNAL_NAME = "journal.jsonl"
MAX_MIXING_LOSS_DB = 20.0  # above it the channels of a file nearly cancel each other
_FULL_SCALE = 32768.0
_MAX_EXPONENT = 64  # of the gain of a quiet file
_LOG = logging.getLogger(__name__)


class CorpusCache:
    """Random access to the samples of a built cache; may be pickled, and every process maps the files itself.

    Args:
        folder: folder made by `zoo.audio.corpora.cache.build`.

    Attributes:
        lengths: samples per file (N,) int64.
        peaks: largest absolute sample per file (N,) float32, in [0, 1].
        exponents: per file (N,) int8; its samples are stored times 2 to this power, so that quiet files keep their
            precision and 16-bit files stay exact.
        channels: per file (N,) int64, where they were kept apart: a file's `lengths` counts all of them, one after the
            other. None where files were mixed down.
        bad: cause by name of the files that were left out.

    Raises:
        FileNotFoundError: there is no cache in the folder.
        ValueError: the cache is damaged or of another version.
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
        found = os.fstat(self._audio).st_size // 2
        if found != expected:
            raise ValueError(
                f"{self.folder}: damaged cache, {found} samples in audio.i16 where the index expects "
                f"{expected}; delete the folder and build it anew"
            )

    def _map(self) -> None:
        self.offsets = np.load(self.folder / "offsets.npy", mmap_mode="r")
        self.lengths = np.load(self.folder / "lengths.npy", mmap_mode="r")
        self.peaks = np.load(self.folder / "peaks.npy", mmap_mode="r")
        self.exponents = np.load(self.folder / "exponents.npy", mmap_mode="r")
        kept = self.folder / "channels.npy"
        self.channels = np.load(kept, mmap_mode="r") if kept.is_file() else None
        # read and not mapped: every page touched would count as this process' memory
        self._audio = os.open(self.folder / "audio.i16", os.O_RDONLY | BINARY)
        weakref.finalize(self, os.close, self._audio).atexit = False

    def __getstate__(self) -> dict[str, Any]:
        mapped = ("offsets", "lengths", "peaks", "exponents", "names", "channels", "_audio")
        return {key: value for key, value in self.__dict__.items() if key not in mapped}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._map()

    def __len__(self) -> int:
        return len(self.lengths)

    @cached_property
    def names(self) -> list[str]:
        """Paths of the files relative to the corpus' root, POSIX."""
        names: list[str] = json.loads((self.folder / "names.json").read_text(encoding="utf-8"))
        return names

    def read(self, index: int, start: int = 0, samples: int = -1) -> np.ndarray:
        """Read a file of the corpus or a part of it, (T,) float32 in [-1, 1), a copy.

        Args:
            start: first sample, 0 <= start < length of the file.
            samples: number of samples; -1 reads to the end, and a part reaching past the end is cut like a slice.
        """
        if not 0 <= index < len(self):
            raise IndexError(f"{self.folder}: file {index} of a corpus of {len(self)}")
        length = int(self.lengths[index])
        if not 0 <= start < length or samples < -1:
            raise ValueError(f"{self.names[index]}: cannot read {samples} samples from {start} on, it has {length}")
        wanted = length - start if samples == -1 else min(samples, length - start)
        first = 2 * (int(self.offsets[index]) + start)
        found = read_at(self._audio, 2 * wanted, first)
        if len(found) != 2 * wanted:
            raise ValueError(f"{self.folder}: audio.i16 was cut since it was opened; delete the folder, build it anew")
        return from_int16(np.frombuffer(found, dtype="<i2"), int(self.exponents[index]))

    def holds_files_of(self, other: CorpusCache) -> bool:
        """Whether another cache is of the same files in the same order."""
        return self.names == other.names

    def split(self, is_held_out: Callable[[str], bool]) -> tuple[np.ndarray, np.ndarray]:
        """Number the files for training and those for validation.

        Args:
            is_held_out: whether the file of a name is for validation.

        Raises:
            ValueError: one of the sets would be empty.
        """
        chosen = np.fromiter(map(is_held_out, self.names), bool, len(self))
        if not chosen.any() or chosen.all():
            count = int(chosen.sum())
            raise ValueError(f"{count} of {len(self)} clips are for validation: both sets need at least one")
        return np.flatnonzero(~chosen), np.flatnonzero(chosen)


def build(
    files: Sequence[str | os.PathLike[str]],
    folder: str | os.PathLike[str],
    sample_rate: int,
    progress: bool = True,
    max_bad_share: float = 0.1,
    channels: Channels = "mono",
    root: str | os.PathLike[str] | None = None,
) -> CorpusCache:
    """Decode, mix down and resample audio files into one cache, unless the same cache stands there already.

    The cache is keyed by names, sizes, modification times and the sample rate: any change builds it anew. A killed
    build goes on where it stopped. A file beyond full scale is scaled down to it instead of being clipped.

    Args:
        files: audio files; the order is kept.
        folder: target folder; appears only when the cache is complete.
        max_bad_share: share of unreadable files in [0, 1] above which the build is given up.
        channels: see `zoo.audio.io.files.read_channels`.
        root: folder that the names are relative to; None takes the deepest one that holds all files.

    Returns:
        The opened cache; the unreadable files are logged and listed in its `bad`.

    Raises:
        ValueError: there are no files, too many bad ones, or the folder holds something else.
        OSError: the disk is full; nothing is left behind.
    """
    folder, paths = Path(os.path.abspath(folder)), [Path(os.path.abspath(file)) for file in files]
    if not paths:
        raise ValueError(f"{folder}: expected at least one audio file to build the corpus cache from, got none")
    names = relative_names(paths, root)
    key = _key(paths, names, sample_rate, channels)
    if folder.exists() and not (folder / "meta.json").is_file() and any(folder.iterdir()):
        raise ValueError(f"{folder}: exists and is not a corpus cache; give an empty or a new folder")
    partial = folder.with_name(f".{folder.name}.partial")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_name(f".{folder.name}.lock")):
        if (cache := _existing(folder)) is not None and cache.key == key:
            return _checked(cache, len(names), max_bad_share)
        try:
            known = _fill(paths, partial, key, sample_rate, progress, max_bad_share, channels)
            _finish(names, known, partial, channels, {"key": key, "sample_rate": sample_rate})
        except (OSError, ValueError) as error:
            shutil.rmtree(partial, ignore_errors=True)
            if isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
                raise OSError(error.errno, f"{folder}: corpus cache not built, nothing kept ({error})") from error
            raise
        _swap(partial, folder)
    return CorpusCache(folder)


def relative_names(files: Sequence[str | os.PathLike[str]], root: str | os.PathLike[str] | None = None) -> list[str]:
    """Name the files of a cache: their paths relative to the corpus' root.

    Args:
        root: of the corpus; None takes the deepest folder that holds all files.
    """
    paths = [os.path.abspath(file) for file in files]
    home = os.path.commonpath(map(os.path.dirname, paths)) if root is None else os.path.abspath(root)
    return [relative_name(path, home) for path in paths]


def _key(paths: Iterable[Path], names: Iterable[str], sample_rate: int, channels: Channels) -> str:
    kept = "" if channels == "mono" else f" {channels}"
    digest = hashlib.sha256(f"{VERSION} {sample_rate}{kept}\n".encode())
    for path, name in zip(paths, names, strict=True):
        facts = path.stat()
        digest.update(f"{name}\0{facts.st_size}\0{facts.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def _existing(folder: Path) -> CorpusCache | None:
    try:
        return CorpusCache(folder)
    except (OSError, ValueError, KeyError) as error:
        if folder.exists():
            _LOG.info("building the corpus cache anew: %s", error)
        return None


def _checked(cache: CorpusCache, count: int, max_bad_share: float) -> CorpusCache:
    check_bad_share(cache.bad.values(), count, max_bad_share)
    for cause in cache.bad.values():
        _LOG.warning("left out of the corpus cache: %s", cause)
    return cache


class _Files:
    """The facts of every finished file, noted after its samples in lines of JSON: what a killed build knows."""

    def __init__(self, partial: Path, key: str) -> None:
        self.lengths = array("q")
        self.peaks = array("f")
        self.exponents = array("b")
        self.channels = array("q")
        self.bad: dict[int, str] = {}
        head = f"{key}\n".encode()
        self._journal = Journal(partial / JOURNAL_NAME, head=head, ascii=True)
        self._whole = 0  # bytes of the journal up to the last whole line
        if self._journal.path.is_file():
            with self._journal.path.open("rb") as lines:  # line by line, because there may be ten million
                if lines.readline() == head:
                    self._whole = len(head)
                    for line in lines:
                        if not line.endswith(b"]\n"):
                            break
                        self._take(json.loads(line))
                        self._whole += len(line)

    def _take(self, facts: list[int | float | str]) -> None:
        if isinstance(facts[0], str):
            self.bad[len(self.lengths)] = facts[0]
            facts = [0, 0.0, 0, 1]
        self.lengths.append(int(facts[0]))
        self.peaks.append(float(facts[1]))
        self.exponents.append(int(facts[2]))
        self.channels.append(int(facts[3]))

    @property
    def samples(self) -> int:
        return sum(self.lengths)

    def restart(self) -> None:
        """Cut off what a kill tore."""
        if self._whole:
            os.truncate(self._journal.path, self._whole)
        else:
            self._journal.write([])

    def add(self, facts: list[int | float | str]) -> None:
        self._take(facts)
        self._journal.append(facts)


def _fill(
    paths: Sequence[Path],
    partial: Path,
    key: str,
    sample_rate: int,
    progress: bool,
    max_bad_share: float,
    channels: Channels,
) -> _Files:
    path = partial / "audio.i16"
    known = _Files(partial, key)
    if not path.is_file() or not len(known.lengths) or path.stat().st_size < 2 * known.samples:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        path.touch()
        known = _Files(partial, key)
    known.restart()
    with path.open("r+b", buffering=0) as handle:
        handle.truncate(2 * known.samples)
        handle.seek(0, os.SEEK_END)
        todo = range(len(known.lengths), len(paths))
        cancelled: list[str] = []
        for index in track(todo, description="corpus cache", disable=not progress):
            try:
                if channels == "mono":
                    mono, loss_db = read_mixed(paths[index], sample_rate)
                    audio = mono[None]
                    if loss_db > MAX_MIXING_LOSS_DB:
                        cancelled.append(str(paths[index]))
                else:
                    audio = read_channels(paths[index], sample_rate, channels)
                samples, peak, exponent = to_int16(audio.reshape(-1))
            except AudioFileError as error:
                _LOG.warning("left out of the corpus cache: %s", error)
                known.add([str(error)])
                check_bad_share(known.bad.values(), len(paths), max_bad_share)
                continue
            _write_all(handle.fileno(), samples.tobytes())
            known.add([len(samples), peak, exponent, len(audio)])
        os.fsync(handle.fileno())
    if cancelled:
        _LOG.warning(
            "%d files lose more than %g dB when their channels are mixed to mono: %s%s",
            len(cancelled), MAX_MIXING_LOSS_DB, ", ".join(cancelled[:SHOWN]), ", ..." if len(cancelled) > SHOWN else "",
        )  # fmt: skip
    if len(known.bad) == len(paths):
        raise ValueError(f"none of {len(paths)} files is sound audio, the first: {known.bad[0]}")
    return known


def to_int16(audio: np.ndarray) -> tuple[np.ndarray, float, int]:
    """Round a clip as the cache stores it.

    Args:
        audio: (T,) float32.

    Returns:
        Samples (T,) int16; the peak, at most 1, to which a clip beyond full scale is scaled down; and the exponent, the
        largest of those that bring a quiet clip into full scale when it is multiplied by 2 to its power.
    """
    audio = audio / max(1.0, float(np.abs(audio).max()))
    peak = float(np.abs(audio).max())
    exponent = 0
    if peak > 0:
        exponent = min(max(0, math.floor(math.log2((_FULL_SCALE - 1) / _FULL_SCALE / peak))), _MAX_EXPONENT)
    scaled = np.rint(audio * np.float32(_FULL_SCALE * 2.0**exponent))
    samples = np.clip(scaled, -_FULL_SCALE, _FULL_SCALE - 1).astype("<i2")
    return samples, float(np.abs(samples.astype(np.int32)).max()) / _FULL_SCALE / 2.0**exponent, exponent


def from_int16(samples: np.ndarray, exponent: int) -> np.ndarray:
    """Bring samples of the cache back to [-1, 1), float32."""
    return samples.astype(np.float32) / np.float32(_FULL_SCALE * 2.0**exponent)


def _write_all(descriptor: int, data: bytes) -> None:
    """An unbuffered write may take only a part just before the disk is full."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _finish(names: Sequence[str], known: _Files, partial: Path, channels: Channels, meta: dict[str, object]) -> None:
    """Write the index beside the finished `audio.i16`; `meta.json` comes last and makes the cache valid."""
    lengths = np.frombuffer(known.lengths, dtype=np.int64)
    good = lengths > 0
    if channels != "mono":
        np.save(partial / "channels.npy", np.frombuffer(known.channels, dtype=np.int64)[good])
    np.save(partial / "lengths.npy", lengths[good])
    np.save(partial / "offsets.npy", np.cumsum(lengths[good]) - lengths[good])
    np.save(partial / "peaks.npy", np.frombuffer(known.peaks, dtype=np.float32)[good])
    np.save(partial / "exponents.npy", np.frombuffer(known.exponents, dtype=np.int8)[good])
    (partial / "names.json").write_text(json.dumps(list(compress(names, good)), indent=0), encoding="utf-8")
    bad = {names[index]: cause for index, cause in known.bad.items()}
    text = json.dumps({"version": VERSION, "files": int(good.sum()), **meta, "bad": bad}, indent=1)
    (partial / "meta.json").write_text(text, encoding="utf-8")
    (partial / JOURNAL_NAME).unlink()


def _swap(partial: Path, folder: Path) -> None:
    old = folder.with_name(f".{folder.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        os.replace(folder, old)
    os.replace(partial, folder)
    shutil.rmtree(old, ignore_errors=True)
