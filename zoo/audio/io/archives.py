"""Archives from elsewhere: tar, tar.gz and zip read with checked names and noticed when cut."""

from __future__ import annotations

import gzip
import re
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from zoo.audio.io.stores import Place

TAR_SUFFIXES = (".tar", ".tar.gz", ".tgz")
SUFFIXES = (*TAR_SUFFIXES, ".zip")
_ILLEGAL = re.compile(r"[\\:\x00-\x1f\x7f]")
_BLOCK = 512  # bytes of a tar's record
_FAULTS = (EOFError, tarfile.TarError, zipfile.BadZipFile, zlib.error, gzip.BadGzipFile)


@dataclass(frozen=True)
class Member:
    """A file in an archive, to be read before the next one.

    Attributes:
        name: checked, relative, POSIX.
        start: byte of the unpacked tar at which its first header begins; 0 in a zip.
        stop: byte behind its content and padding.
    """

    name: str
    size: int
    archive: Place
    _file: IO[bytes]
    start: int = 0
    stop: int = 0

    def read(self, size: int = -1, /) -> bytes:
        """Read up to `size` bytes, or all.

        Raises:
            ValueError: the archive is cut or damaged here.
        """
        try:
            return self._file.read(size)
        except _FAULTS as error:
            raise _fault(self.archive, error) from error


def _fault(archive: Place, error: Exception) -> ValueError:
    return ValueError(f"{archive}: cut, damaged or no such archive ({error}); get or write it again")


def safe_name(name: str, archive: Place) -> str:
    """Check the name of a member: a POSIX path relative to whatever folder the member goes to.

    Raises:
        ValueError: the name is absolute, leads upwards, or holds a backslash, a colon or a control character.
    """
    name = name.removeprefix("./")
    if any(part in ("", ".", "..") or _ILLEGAL.search(part) for part in name.split("/")):
        raise ValueError(f"{archive}: unsafe member name {name!r}, expected a relative path; reading stops here")
    return name


def read_tar(path: Path, named: Place | None = None) -> Iterator[Member]:
    """Go through the files of a tar, compressed by gzip or not, in order; hidden ones are left out.

    Args:
        named: what messages call it; its path when None.

    Raises:
        ValueError: the archive is cut, damaged or no tar, or a member is a link, a device or unsafely named.
    """
    with path.open("rb") as plain:
        zipped = plain.read(2) == b"\x1f\x8b"
        plain.seek(0)
        try:
            yield from members(named or path, gzip.GzipFile(fileobj=plain) if zipped else plain)
        except _FAULTS as error:
            raise _fault(named or path, error) from error


def members(path: Place, file: IO[bytes] | gzip.GzipFile) -> Iterator[Member]:
    """Go through an open tar like `read_tar`, whose faults are tarfile's own here."""
    with tarfile.open(fileobj=file, mode="r:") as tar:
        while (info := tar.next()) is not None:
            tar.members.clear()  # type: ignore[attr-defined]  # tarfile would keep them all
            if info.isdir():
                continue
            name = safe_name(info.name, path)
            member = tar.extractfile(info) if info.isreg() and not info.issparse() else None
            if member is None:
                raise ValueError(f"{path}: {name} is a link, a device or sparse, expected plain files only")
            if not _is_hidden(name):
                yield Member(name, info.size, path, member, info.offset, tar.offset)
        # tarfile takes a cut between two members, and a damaged header, for the end
        ended = file.tell() == tar.offset + _BLOCK
        while rest := file.read(1 << 20):
            ended = ended and not rest.strip(b"\0")
        if not ended:
            raise EOFError("no end mark")


def _is_hidden(name: str) -> bool:
    return any(part.startswith(".") for part in name.split("/")) or name.startswith("__MACOSX/")


def read_zip(path: Path) -> Iterator[Member]:
    """Go through the files of a zip like `read_tar`."""
    try:
        with zipfile.ZipFile(path) as archive:
            for info in archive.infolist():
                if not info.is_dir():
                    name = safe_name(info.filename, path)
                    if not _is_hidden(name):
                        with archive.open(info) as member:
                            yield Member(name, info.file_size, path, member)
    except _FAULTS as error:
        raise _fault(path, error) from error
