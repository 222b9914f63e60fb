"""Recordings in shards as inputs of bulk inference: which there are, and each as a file while it is computed."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from zoo.audio.archives import TAR_SUFFIXES, Member, read_tar
from zoo.audio.shards import AUDIO_SUFFIXES, CLEAN, DEGRADED

WALK_SUFFIXES = tuple(sorted({Path(f"x{suffix}").suffix for suffix in TAR_SUFFIXES}))
"""What `zoo.audio.files.walk` must be asked for to find shards; other `.gz` files are found too."""
_WANTED = [f"{stem}{suffix}" for stem in (DEGRADED, CLEAN) for suffix in AUDIO_SUFFIXES]


def is_shard(path: Path) -> bool:
    """Whether a path is named like a shard."""
    return path.name.endswith(TAR_SUFFIXES)


def shard_stem(path: Path) -> str:
    """The name of a shard without its suffix."""
    return next(path.name.removesuffix(suffix) for suffix in TAR_SUFFIXES if path.name.endswith(suffix))


def recordings(shard: Path) -> dict[str, str]:
    """List what is to be computed of a shard, without reading the samples.

    Args:
        shard: tar file, compressed by gzip or not.

    Returns:
        Member's name by key, in order: of each sample the degraded recording, or the speech where there is none.

    Raises:
        ValueError: when the shard is cut or damaged, or no sample holds a recording.
    """
    found: dict[str, str] = {}
    for member in read_tar(shard):
        folder, slash, last = member.name.rpartition("/")
        stem, _, extension = last.partition(".")
        key = folder + slash + stem
        if extension in _WANTED and (key not in found or _rank(member.name) < _rank(found[key])):
            found[key] = member.name
    if not found:
        raise ValueError(f"{shard}: no sample holds a recording, expected members like <key>.{_WANTED[0]}")
    return found


def _rank(name: str) -> int:
    return _WANTED.index(name.rpartition("/")[2].partition(".")[2])


class ShardFiles:
    """Gives members as files; goes through each shard once when they are asked for in their order."""

    def __init__(self) -> None:
        self._shard: Path | None = None
        self._members: Iterator[Member] = iter(())

    @contextlib.contextmanager
    def file(self, shard: Path, name: str) -> Iterator[Path]:
        """Unpack a member for a while.

        Args:
            shard: tar file.
            name: of the member.

        Yields:
            A temporary file.

        Raises:
            ValueError: when the shard has no such member, or is damaged there; also, naming the member in place of the
                temporary file, when the caller raises it.
        """
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / name.rpartition("/")[2]
            path.write_bytes(self._read(shard, name))
            try:
                yield path
            except ValueError as error:
                raise ValueError(str(error).replace(str(path), f"{shard}/{name}")) from error

    def _read(self, shard: Path, name: str) -> bytes:
        for _ in range(2):
            if shard != self._shard:
                self._shard, self._members = shard, read_tar(shard)
            for member in self._members:
                if member.name == name:
                    return member.read()
            self._shard = None  # the member lies further to the front
        raise ValueError(f"{shard}: holds no {name} any more; run the same command again")
