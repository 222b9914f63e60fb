"""Archives of data sets: tar, tar.gz and zip, extracted without leaving the folder."""

from __future__ import annotations

import gzip
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from zoo.common.atomic_files import replace_atomically

ARCHIVE_SUFFIXES = (".tar", ".tar.gz", ".tgz", ".zip")
_TAR_BLOCK = 512  # bytes; a tar ends with blocks of zeros
_FAULTS = (EOFError, tarfile.TarError, zipfile.BadZipFile, zlib.error, gzip.BadGzipFile)


def extract_archive(archive: Path, folder: Path) -> int:
    """Extract the plain files of an archive; each appears under its name when it is complete.

    Returns:
        The number of files.

    Raises:
        FileNotFoundError: there is no such archive.
        ValueError: the suffix is none of `ARCHIVE_SUFFIXES`, the archive is cut or damaged, or a member is no plain
            file below the folder.
    """
    if not archive.is_file():
        raise FileNotFoundError(f"{archive}: no such archive")
    if not archive.name.endswith(ARCHIVE_SUFFIXES):
        raise ValueError(f"{archive}: expected an archive ending in {', '.join(ARCHIVE_SUFFIXES)}")
    count = 0
    try:
        for name, content in _read_zip(archive) if archive.suffix == ".zip" else _read_tar(archive):
            if name.startswith("__MACOSX/"):  # resource forks of the Finder
                continue
            target = folder / name
            if content is None or not target.resolve().is_relative_to(folder.resolve()):
                raise ValueError(f"{archive}: {name!r} is not a plain file below the folder; extracting stops here")
            with replace_atomically(target) as temporary, temporary.open("wb") as file:
                shutil.copyfileobj(content, file)
            count += 1
    except _FAULTS as error:
        raise ValueError(f"{archive}: cut, damaged or no archive ({error}); get it again") from error
    return count


def _read_tar(archive: Path) -> Iterator[tuple[str, IO[bytes] | None]]:
    with tarfile.open(archive) as tar:
        for member in tar:
            if not member.isdir():
                is_plain = member.isreg() and not member.issparse()
                yield member.name, tar.extractfile(member) if is_plain else None
    if archive.suffix == ".tar":  # tarfile takes a cut between two members for the end
        with archive.open("rb") as file:
            file.seek(-_TAR_BLOCK, 2)
            if file.read().strip(b"\0"):
                raise tarfile.ReadError("no end mark")


def _read_zip(archive: Path) -> Iterator[tuple[str, IO[bytes]]]:
    with zipfile.ZipFile(archive) as members:
        for member in members.infolist():
            if not member.is_dir():
                with members.open(member) as content:
                    yield member.filename, content
