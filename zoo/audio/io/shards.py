"""WebDataset shards: tar files of samples, written whole, read with fixed decoders only, unpacked into mirrored trees.

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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from zoo.audio.io import files
from zoo.audio.io.archives import TAR_SUFFIXES, read_tar, safe_name
from zoo.common.atomic import replacing, write_atomic
from zoo.common.ranges import at_least

INDEX_NAME = "index.json"
_BRACES = re.compile(r"\{([^{}]*)\}")


def expand(shards: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> list[Path]:
    """List shard files.

    Args:
        shards: a file, a folder (what its index names, or all tars in it), a brace pattern
            (`name-{000000..000012}.tar`, `{a,b}.tar`), or a list of these.

    Returns:
        Existing files in order.

    Raises:
        FileNotFoundError: a file does not exist, or a folder holds no shard.
        ValueError: a malformed pattern or index, or the same shard twice.
    """
    given = [shards] if isinstance(shards, str | os.PathLike) else list(shards)
    found: list[Path] = []
    for path in (Path(name) for entry in given for name in _braces(os.fspath(entry))):
        if not path.is_dir():
            found.append(path)
            continue
        tars = (p.name for p in path.iterdir() if p.name.endswith(TAR_SUFFIXES) and not p.name.startswith("."))
        names = list(read_index(path)) or sorted(tars)
        if not names:
            raise FileNotFoundError(f"{path}: no shards here, expected files ending in {', '.join(TAR_SUFFIXES)}")
        found += [path / name for name in names]
    for path in found:
        if not path.is_file():
            raise FileNotFoundError(f"{path}: no such shard")
    if len(set(found)) < len(found):
        raise ValueError(f"{shards}: names the same shard twice")
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


def read_index(folder: Path) -> dict[str, dict[str, Any]]:
    """Per shard `name`, `samples`, `bytes`, `sha256` and `last_key`, in order, by name; empty without an index.

    Raises:
        ValueError: the file is no index.
    """
    path = folder / INDEX_NAME
    if not path.is_file():
        return {}
    try:
        return {entry["name"]: entry for entry in json.loads(path.read_text(encoding="utf-8"))["shards"]}
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: no index of shards ({error!r}); delete it to read the shards without it") from error


def check_size(path: Path, entry: Mapping[str, Any] | None) -> None:
    """Compare a shard with its entry in the index, if it has one."""
    found = path.stat().st_size if path.is_file() else 0
    if entry is not None and found != entry["bytes"]:
        raise ValueError(f"{path}: cut or altered, it has {found} bytes where {INDEX_NAME} says {entry['bytes']}")


CLEAN, DEGRADED = "speech", "degraded_speech"  # stems of the two recordings
AUDIO_SUFFIXES = (".wav", ".flac")
_MOST_MEMBER_BYTES = 2**31  # an hour of 24 kHz float audio has 0.35 GB; more is a damaged header or a bomb
_EXTENSION = re.compile(r"[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)*")


@dataclass(frozen=True)
class Sample:
    """One sample of a shard.

    Attributes:
        key: name of the sample, POSIX, may hold `/`.
        members: bytes by extension, e.g. `speech.wav`.
    """

    key: str
    members: Mapping[str, bytes]
    shard: Path

    def member(self, stem: str) -> str:
        """Extension of the recording called `stem`: `speech` -> `speech.flac`."""
        for suffix in AUDIO_SUFFIXES:
            if stem + suffix in self.members:
                return stem + suffix
        raise ValueError(f"{self.shard}: sample {self.key!r} has no {stem}.wav or .flac, it has {sorted(self.members)}")

    def audio(self, stem: str) -> tuple[np.ndarray, int]:
        """Decode the recording called `stem`, `CLEAN` or `DEGRADED`: (C, T) float32 as stored, and its rate in Hz."""
        name = self.member(stem)
        with tempfile.TemporaryDirectory() as folder:  # the checks of zoo.audio.io.files need a file
            path = Path(folder) / name
            path.write_bytes(self.members[name])
            try:
                return files.read(path)
            except files.AudioFileError as error:
                raise ValueError(f"{self.shard}: sample {self.key!r}: {error}") from error

    def facts(self) -> dict[str, Any]:
        """What `<key>.json` says; empty where there is none."""
        try:
            return dict(json.loads(self.members.get("json", b"{}")))
        except (ValueError, TypeError) as error:
            raise ValueError(f"{self.shard}: {self.key}.json is no JSON object ({error})") from error


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
        self.last_key = next(reversed(self._samples))
        facts = {"name": path.name, "samples": len(self._samples), "bytes": path.stat().st_size, "sha256": digest}
        self._entries.append({**facts, "last_key": self.last_key})
        text = json.dumps({"version": 1, "shards": self._entries}, indent=1, ensure_ascii=False)
        write_atomic(self.folder / INDEX_NAME, lambda file: file.write(text.encode()))
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
            with path.open("rb") as file:
                if entry is not None and hashlib.file_digest(file, "sha256").hexdigest() != entry["sha256"]:
                    raise ValueError(f"{path}: its sha256 is not the one of {INDEX_NAME}; get or write it again")

    def __iter__(self) -> Iterator[Sample]:
        """Samples, each with all of its members in memory."""
        for path in self.paths:
            yield from read_shard(path)


def read_shard(path: Path) -> Iterator[Sample]:
    """Iterate over the samples of one tar file, compressed by gzip or not, each with all of its members.

    Raises:
        ValueError: the shard is cut, damaged or unsafe, or the members of a key do not stand together.
    """
    seen: set[str] = set()
    key, members = "", dict[str, bytes]()
    for member in read_tar(path):
        name = member.name
        folder, slash, last = name.rpartition("/")
        stem, dot, extension = last.partition(".")
        if not dot or not stem:
            raise ValueError(f"{path}: member {name!r} has no key and extension, expected e.g. a_0.speech.wav")
        if member.size > _MOST_MEMBER_BYTES:
            raise ValueError(
                f"{path}: member {name!r} has {member.size} bytes, more than the allowed {_MOST_MEMBER_BYTES}"
            )
        found = folder + slash + stem
        if found != key:
            if members:
                yield Sample(key, members, path)
            if found in seen:
                raise ValueError(
                    f"{path}: the members of sample {found!r} do not stand together, or two samples have this key; "
                    "write the shard again with unique keys"
                )
            seen.add(found)
            key, members = found, {}
        if extension in members:
            raise ValueError(f"{path}: sample {key!r} has two members {extension!r}; write the shard with unique keys")
        members[extension] = member.read()
    if members:
        yield Sample(key, members, path)
