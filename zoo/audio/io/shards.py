"""WebDataset shards: tar files of samples, written whole, read in order or at random, with fixed decoders only.

A sample is a run of members with one key: `<key>.speech.wav` (or `.speech.flac`), `<key>.degraded_speech.wav` and
perhaps `<key>.json`. What would need unpickling (`resampled_speech.pth` of other writers) stays bytes.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import re
import tarfile
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import soundfile

from zoo.audio.io import files
from zoo.audio.io.archives import TAR_SUFFIXES, Member, members, read_tar, safe_name
from zoo.audio.io.stores import Patience, Place, StoreError, Url, local, place, read_small
from zoo.common.atomic import replacing, write_atomic
from zoo.common.ranges import at_least

INDEX_NAME = "index.json"
TABLE_SUFFIX = ".offsets.json"  # of the table beside a shard
MOST_SAMPLE_BYTES = 2**28  # of a sample that is read at random
_BRACES = re.compile(r"\{([^{}]*)\}")


def expand(
    shards: str | os.PathLike[str] | Url | Sequence[str | os.PathLike[str] | Url], patience: Patience | None = None
) -> list[Place]:
    """List shard files.

    Args:
        shards: a file, a folder (what its index names, or all tars in it), a brace pattern
            (`name-{000000..000012}.tar`, `{a,b}.tar`), the address of a file, of a pattern or of a folder with an
            index (`https://host/folder/`, `s3://bucket/folder`), or a list of these.

    Returns:
        Files in order; those with a path exist.

    Raises:
        FileNotFoundError: a file does not exist, or a folder holds no shard.
        OSError: a store does not answer.
        ValueError: a malformed pattern, address or index, or the same shard twice.
    """
    given = [shards] if isinstance(shards, str | os.PathLike | Url) else list(shards)
    found: list[Place] = []
    for text in (name for entry in given for name in _braces(str(entry))):
        path = place(text)
        if path.name.endswith(TAR_SUFFIXES) if isinstance(path, Url) else not path.is_dir():
            found.append(path)
            continue
        names = list(read_index(path, patience))
        if isinstance(path, Path) and not names:
            names = sorted(p.name for p in path.iterdir() if p.name.endswith(TAR_SUFFIXES) and not p.name[0] == ".")
        if not names:
            wanted = INDEX_NAME if isinstance(path, Url) else f"files ending in {', '.join(TAR_SUFFIXES)}"
            raise FileNotFoundError(f"{path}: no shards here, expected {wanted}")
        found += [path / name for name in names]
    for path in found:
        if isinstance(path, Path) and not path.is_file():
            raise FileNotFoundError(f"{path}: no such shard")
    if len(set(found)) < len(found):
        raise ValueError(f"{', '.join(map(str, given))}: names the same shard twice")
    return found


def _braces(pattern: str) -> list[str]:
    match = _BRACES.search(pattern)
    if match is None:
        return [pattern]
    choices = match[1].split(",")
    first, dots, last = match[1].partition("..")
    if dots:
        if not (first.isdecimal() and last.isdecimal() and int(first) <= int(last)):
            raise ValueError(f"{pattern}: expected a rising range like {{000000..000012}}, found {match[0]}")
        choices = [f"{number:0{len(first)}d}" for number in range(int(first), int(last) + 1)]
    return [name for choice in choices for name in _braces(pattern[: match.start()] + choice + pattern[match.end() :])]


def read_index(folder: Place, patience: Patience | None = None) -> dict[str, dict[str, Any]]:
    """Per shard `name`, `samples`, `bytes`, `sha256` and `last_key`, in order, by name; empty without an index.

    Raises:
        ValueError: the file is no index, or names what is not in its folder: a path elsewhere, or an address.
        OSError: a store does not answer.
    """
    path = folder / INDEX_NAME
    data = _read_beside(path, MOST_INDEX_BYTES, patience)
    if data is None:
        return {}
    try:
        entries = {entry["name"]: entry for entry in json.loads(data)["shards"]}
        for name, entry in entries.items():
            if safe_name(name, path) != name or not all(type(entry[key]) is int for key in ("samples", "bytes")):
                raise ValueError(f"entry {name!r}")
        return entries
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: no index of shards ({error!r}); delete it to read the shards without it") from error


def _read_beside(path: Place, most_bytes: int, patience: Patience | None) -> bytes | None:
    """A small file, or None where there is none."""
    if isinstance(path, Path):
        return path.read_bytes() if path.is_file() else None
    (found,) = read_small([path], most_bytes, patience or Patience())
    if isinstance(found, StoreError) and not found.is_missing:
        raise found
    return None if isinstance(found, StoreError) else found


def check_size(path: Place, entry: Mapping[str, Any] | None) -> None:
    """Compare a shard that has a path with its entry in the index, if it has one."""
    if entry is None or isinstance(path, Url):
        return
    found = path.stat().st_size if path.is_file() else 0
    if found != entry["bytes"]:
        raise ValueError(f"{path}: cut or altered, it has {found} bytes where {INDEX_NAME} says {entry['bytes']}")


CLEAN, DEGRADED = "speech", "degraded_speech"  # stems of the two recordings
AUDIO_SUFFIXES = (".wav", ".flac")
_MOST_MEMBER_BYTES = 2**31  # an hour of 24 kHz float audio has 0.35 GB; more is a damaged header or a bomb
MOST_INDEX_BYTES = 2**26  # a line of a table has some 150 bytes, an entry of an index some 200
_EXTENSION = re.compile(r"[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)*")


@dataclass(frozen=True)
class Sample:
    """One sample of a shard.

    Attributes:
        key: name of the sample, POSIX, may hold `/`.
        members: bytes by extension, e.g. `speech.wav`.
        start: byte of the unpacked shard at which its first header begins.
        stop: byte behind its last member.
    """

    key: str
    members: Mapping[str, bytes]
    shard: Place
    start: int = 0
    stop: int = 0

    def member(self, stem: str) -> str:
        """Extension of the recording called `stem`: `speech` -> `speech.flac`."""
        for suffix in AUDIO_SUFFIXES:
            if stem + suffix in self.members:
                return stem + suffix
        raise ValueError(f"{self.shard}: sample {self.key!r} has no {stem}.wav or .flac, it has {sorted(self.members)}")

    def audio(self, stem: str) -> tuple[np.ndarray, int]:
        """Decode the recording called `stem`, `CLEAN` or `DEGRADED`: (C, T) float32 as stored, and its rate in Hz."""
        name = self.member(stem)
        with _file_of(self.members[name]) as path:  # the checks of zoo.audio.io.files need a file
            try:
                return files.read(path)
            except files.AudioFileError as error:
                cause = str(error).replace(str(path), name)
                raise ValueError(f"{self.shard}: sample {self.key!r}: {cause}") from error

    def facts(self) -> dict[str, Any]:
        """What `<key>.json` says; empty where there is none."""
        try:
            return dict(json.loads(self.members.get("json", b"{}")))
        except (ValueError, TypeError) as error:
            raise ValueError(f"{self.shard}: {self.key}.json is no JSON object ({error})") from error


@contextmanager
def _file_of(data: bytes) -> Iterator[Path]:
    """A file with this content, on Linux in memory: making one on disk costs more than decoding it."""
    if not hasattr(os, "memfd_create"):
        with tempfile.TemporaryDirectory(prefix="zoo-", ignore_cleanup_errors=True) as folder:
            (path := Path(folder) / "data").write_bytes(data)
            yield path
        return
    with open(os.memfd_create("zoo"), "wb") as file:
        file.write(data)
        file.flush()
        yield Path(f"/proc/self/fd/{file.fileno()}")


class ShardWriter:
    """Writes samples into `<prefix>-000000.tar`, ...; each shard appears when it is whole, then enters `index.json`.

    Equal samples give equal bytes. The samples of a shard are held in memory until it is full. On a folder with whole
    shards it goes on with the next one: give it the samples after `last_key`.

    Args:
        max_bytes: members of one shard together, > 0; a single sample may exceed it.
        max_samples: samples of one shard, > 0.
        compress: write `.tar.gz`.

    Attributes:
        last_key: key of the last sample that lies in a whole shard; None when there is none.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        prefix: str = "shard",
        max_bytes: int = 2**28,
        max_samples: int = 1000,
        compress: bool = False,
    ) -> None:
        at_least(1, max_bytes=max_bytes, max_samples=max_samples)
        self.folder, self.prefix, self.compress = Path(folder), prefix, compress
        self.max_bytes, self.max_samples = max_bytes, max_samples
        self._entries = list(read_index(self.folder).values())
        for entry in self._entries:
            check_size(self.folder / entry["name"], entry)
        self.last_key: str | None = self._entries[-1]["last_key"] if self._entries else None
        self._samples: dict[str, Mapping[str, bytes]] = {}
        self._bytes = 0

    def write(self, key: str, members: Mapping[str, bytes]) -> None:
        """Add a sample.

        Args:
            key: relative POSIX path without a dot in its last part; new in its shard.
            members: bytes by extension, e.g. `speech.wav`.

        Raises:
            ValueError: a key or extension that a reader could not take apart again, or a repeated key.
            OSError: the disk is full; the shards that are whole stay.
        """
        sound = safe_name(key, self.folder) == key and "." not in key.rpartition("/")[2]
        if not sound or not members or not all(_EXTENSION.fullmatch(name) for name in members):
            raise ValueError(
                f"{self.folder}: cannot write a sample {key!r} with members {sorted(members)}; expected a "
                "relative path without a dot in its last part, and extensions like speech.wav"
            )
        size = sum(map(len, members.values()))
        if self._samples and (len(self._samples) >= self.max_samples or self._bytes + size > self.max_bytes):
            self._finish()
        if key in self._samples:
            raise ValueError(f"{self.folder}: two samples are called {key!r}")
        self._samples[key] = members
        self._bytes += size

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and self._samples:
            self._finish()

    def _finish(self) -> None:
        path = self.folder / f"{self.prefix}-{len(self._entries):06d}{'.tar.gz' if self.compress else '.tar'}"
        with replacing(path) as temporary:
            with temporary.open("wb") as file:
                if self.compress:  # without name and time, so that equal samples give equal bytes
                    with gzip.GzipFile("", "wb", fileobj=file, mtime=0) as zipped:
                        self._write_tar(zipped)
                else:
                    self._write_tar(file)
            with temporary.open("rb") as written:
                digest = hashlib.file_digest(written, "sha256").hexdigest()
            if not self.compress:
                write_table(self.folder / (path.name + TABLE_SUFFIX), tabulate(temporary, path))
        self.last_key = next(reversed(self._samples))
        facts = {"name": path.name, "samples": len(self._samples), "bytes": path.stat().st_size, "sha256": digest}
        self._entries.append({**facts, "last_key": self.last_key})
        _write_index(self.folder, self._entries)
        self._samples, self._bytes = {}, 0

    def _write_tar(self, file: Any) -> None:
        with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
            for key, members in self._samples.items():
                for name, data in members.items():
                    info = tarfile.TarInfo(f"{key}.{name}")
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))


class ShardReader:
    """Iterates over the samples of shards, see `expand`, in their order; may be iterated again.

    Shards with an address are fetched whole, one after the other, into a temporary file.

    Raises:
        FileNotFoundError: a shard does not exist.
        ValueError: a shard has another size than the `index.json` beside it says, and see `expand`.
    """

    def __init__(self, shards: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> None:
        self.paths = expand(shards)
        self._indexes = {folder: read_index(folder) for folder in {path.parent for path in self.paths}}
        for path in self.paths:
            check_size(path, self._indexes[path.parent].get(path.name))

    def verify(self) -> None:
        """Compare the shards with the sha256 of their index, where they have one."""
        for path in self.paths:
            entry = self._indexes[path.parent].get(path.name)
            if entry is not None:
                with local(path) as file:
                    check_sha256(file, entry["sha256"], path)

    def __iter__(self) -> Iterator[Sample]:
        """Samples, each with all of its members in memory."""
        for path in self.paths:
            yield from read_shard(path)


def check_sha256(path: Path, expected: str, named: Place) -> None:
    """Compare a whole file with the sha256 of its index."""
    with path.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != expected:
            raise ValueError(f"{named}: its sha256 is not the one of {INDEX_NAME}; get or write it again")


def read_shard(path: Place, named: Place | None = None) -> Iterator[Sample]:
    """Iterate over the samples of one tar file, compressed by gzip or not, each with all of its members.

    Args:
        named: what samples and messages call it; its path when None.

    Raises:
        ValueError: the shard is cut, damaged or unsafe, or the members of a key do not stand together.
    """
    with local(path) as file:
        yield from samples(read_tar(file, named or path), named or path)


def samples(members: Iterable[Member], path: Place) -> Iterator[Sample]:
    """Join the members of a shard to samples."""
    seen: set[str] = set()
    key, start, stop, found = "", 0, 0, dict[str, bytes]()
    for member in members:
        name = member.name
        folder, slash, last = name.rpartition("/")
        stem, dot, extension = last.partition(".")
        if not dot or not stem:
            raise ValueError(f"{path}: member {name!r} has no key and extension, expected e.g. a_0.speech.wav")
        if member.size > _MOST_MEMBER_BYTES:
            raise ValueError(
                f"{path}: member {name!r} has {member.size} bytes, more than the allowed {_MOST_MEMBER_BYTES}"
            )
        if folder + slash + stem != key:
            if found:
                yield Sample(key, found, path, start, stop)
            key, start, found = folder + slash + stem, member.start, {}
            if key in seen:
                raise ValueError(
                    f"{path}: the members of sample {key!r} do not stand together, or two samples have this key; "
                    "write the shard again with unique keys"
                )
            seen.add(key)
        if extension in found:
            raise ValueError(f"{path}: sample {key!r} has two members {extension!r}; write the shard with unique keys")
        found[extension] = member.read()
        stop = member.stop
    if found:
        yield Sample(key, found, path, start, stop)


@dataclass(frozen=True)
class Row:
    """Where a sample lies in its shard, and what its recordings are.

    Attributes:
        start: first byte of its headers in the unpacked tar.
        size: bytes of its headers and members.
        crc32: of these bytes.
        audio: samples and sample rate in Hz of its recordings by extension, e.g. `speech.wav`.
    """

    key: str
    start: int
    size: int
    crc32: int
    audio: Mapping[str, tuple[int, int]]


@dataclass(frozen=True)
class Table:
    """The samples of a shard of `size` bytes, for reading them at random."""

    size: int
    rows: Sequence[Row]


def tabulate(path: Path, named: Place | None = None) -> Table:
    """Make the table of a shard that is not compressed, by reading it once.

    Raises:
        ValueError: as `read_shard`.
    """
    rows = []
    with path.open("rb") as file:
        for sample in read_shard(path, named or path):
            file.seek(sample.start)
            crc = zlib.crc32(file.read(sample.stop - sample.start))
            audio = {name: facts for name, data in sample.members.items() if (facts := _audio_facts(name, data))}
            rows.append(Row(sample.key, sample.start, sample.stop - sample.start, crc, audio))
    return Table(path.stat().st_size, rows)


def _audio_facts(name: str, data: bytes) -> tuple[int, int] | None:
    if not name.endswith(AUDIO_SUFFIXES):
        return None
    try:
        found = soundfile.info(io.BytesIO(data))
    except soundfile.SoundFileError:
        return None
    return (found.frames, found.samplerate) if 0 < found.frames < files.UNKNOWN_LENGTH else None


def write_table(path: Path, table: Table) -> None:
    """Write a table where it is looked for: beside its shard, `<shard>.offsets.json`."""
    rows = [[row.key, row.start, row.size, row.crc32, row.audio] for row in table.rows]
    text = json.dumps({"version": 1, "bytes": table.size, "samples": rows}, ensure_ascii=False, separators=(",", ":"))
    write_atomic(path, lambda file: file.write(text.encode()))


def parse_table(data: bytes, path: Place) -> Table:
    """Check and take the content of a table's file.

    Raises:
        ValueError: it is damaged, or points outside its shard.
    """
    try:
        content = json.loads(data)
        rows = [
            Row(key, start, size, crc, {name: (int(count), int(rate)) for name, (count, rate) in audio.items()})
            for key, start, size, crc, audio in content["samples"]
        ]
        table = Table(int(content["bytes"]), rows)
        for row in rows:
            sound = 0 <= row.start and 0 < row.size <= MOST_SAMPLE_BYTES and row.start + row.size <= table.size
            sound = sound and 0 <= row.crc32 < 2**32 and safe_name(row.key, path) == row.key
            if not sound or not all(0 < count < 2**36 and 0 < rate < 2**31 for count, rate in row.audio.values()):
                raise ValueError(f"sample {row.key!r}")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: no table of a shard ({error!r}); delete it or write it anew") from error
    return table


def read_sample(data: bytes, row: Row, shard: Place) -> Sample:
    """Take a sample apart that was read by its table.

    Raises:
        ValueError: the bytes are not those of which the table was made.
    """
    if len(data) != row.size or zlib.crc32(data) != row.crc32:
        raise ValueError(f"{shard}: sample {row.key!r} is not the one of which the table was made (crc32)")
    found = list(samples(members(shard, io.BytesIO(data + bytes(2 * 512))), shard))  # a tar ends with two empty blocks
    if [sample.key for sample in found] != [row.key]:
        raise ValueError(f"{shard}: the table says {row.key!r} where {[sample.key for sample in found]} was found")
    return found[0]


def is_zipped(path: Path) -> bool:
    """Whether a shard is compressed by gzip, whatever its name says, so that it cannot be read at random."""
    with path.open("rb") as file:
        return file.read(2) == b"\x1f\x8b"


def index_shards(folder: str | os.PathLike[str]) -> int:
    """Write `index.json` and the tables of the shards of a folder that others wrote; returns the number of shards.

    To be called where the shards lie, before they are uploaded: without it every machine reads them whole once.

    Raises:
        ValueError: a shard is cut, damaged or unsafe.
    """
    folder = Path(folder)
    entries = []
    for path in sorted(p for p in folder.iterdir() if p.name.endswith(TAR_SUFFIXES) and p.name[0] != "."):
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        keys = [sample.key for sample in read_shard(path)]
        if not is_zipped(path):
            write_table(path.with_name(path.name + TABLE_SUFFIX), tabulate(path))
        facts = {"name": path.name, "samples": len(keys), "bytes": path.stat().st_size, "sha256": digest}
        entries.append({**facts, "last_key": keys[-1] if keys else ""})
    _write_index(folder, entries)
    return len(entries)


def _write_index(folder: Path, entries: Sequence[Mapping[str, Any]]) -> None:
    text = json.dumps({"version": 1, "shards": entries}, indent=1, ensure_ascii=False)
    write_atomic(folder / INDEX_NAME, lambda file: file.write(text.encode()))
