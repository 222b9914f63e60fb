"""Files and folders that appear only when they are whole: written aside, synced, renamed."""

from __future__ import annotations

import contextlib
import glob
import gzip
import os
import shutil
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, BinaryIO

TEMPORARY_MARK = ".tmp-"
REPLACED_MARK = ".replaced"
BINARY = getattr(os, "O_BINARY", 0)  # for os.open; without it Windows translates ends of lines
ARCHIVE_SUFFIXES = (".tar", ".tar.gz", ".tgz", ".zip")
_TAR_BLOCK = 512  # bytes; a tar ends with blocks of zeros
_FAULTS = (EOFError, tarfile.TarError, zipfile.BadZipFile, zlib.error, gzip.BadGzipFile)


def temporary_path(path: Path) -> Path:
    """The hidden name, in the same folder and of this process, under which `path` is written first."""
    return path.with_name(f".{path.name}{TEMPORARY_MARK}{os.getpid()}")


@contextlib.contextmanager
def replace_atomically(path: Path) -> Iterator[Path]:
    """Write a file or a folder aside and rename it over `path` when the block ends well.

    Args:
        path: final name; its folder is made when missing. A folder already there is replaced.

    Yields:
        The temporary path to write to.

    Raises:
        OSError: when the disk is full or the folder is not writable; what was at `path` is untouched.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    restore_replaced(path.parent, path.name)
    temporary = temporary_path(path)
    try:
        yield temporary
        if temporary.is_dir() and not path.is_file():
            replace_folder(temporary, path)
        else:
            sync_content(temporary)
            os.replace(temporary, path)
            fsync_folder(path.parent)
    except BaseException:
        delete_path(temporary)
        raise


def replace_folder(folder: Path, path: Path) -> None:
    """Rename a folder over what is at `path`, so that a kill at any step loses neither.

    Args:
        folder: on the file system of `path`.
        path: final name. A folder or file there is renamed first, and deleted when the new one has its name.

    Raises:
        OSError: when the disk fails or the folder is not writable; what was at `path` is untouched.
    """
    sync_content(folder)
    try:
        if os.path.lexists(path):
            os.replace(path, replaced_path(path))
        os.replace(folder, path)
        fsync_folder(path.parent)
    finally:
        restore_replaced(path.parent, path.name)


def replaced_path(path: Path) -> Path:
    """The hidden name of a folder while another takes its place: no folder can be renamed over one that holds files."""
    return path.with_name(f".{path.name}{REPLACED_MARK}")


def restore_replaced(folder: Path, name: str = "*") -> None:
    """Give a folder its name back where a killed process renamed it and did not come to rename the new one.

    Args:
        folder: that holds it.
        name: final name; all by default.
    """
    pattern = name if name == "*" else glob.escape(name)
    for old in folder.glob(f".{pattern}{REPLACED_MARK}"):
        path = old.with_name(old.name[1:].removesuffix(REPLACED_MARK))
        if path.exists():
            delete_path(old)
        else:
            os.replace(old, path)


def write_atomic(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a file so that `path` holds either its old content or the whole new one.

    Args:
        path: final name.
        write: called with the open temporary file.

    Raises:
        OSError: when the disk is full or the folder is not writable; the old file is untouched.
    """
    with replace_atomically(path) as temporary, temporary.open("wb") as file:
        write(file)


def sync_content(path: Path) -> None:
    """Make a file, or all that lies in a folder, durable."""
    for file in [path] if path.is_file() else [each for each in path.rglob("*") if each.is_file()]:
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
    for folder in [path, *path.rglob("*")] if path.is_dir() else []:
        if folder.is_dir():
            fsync_folder(folder)


def fsync_folder(folder: Path) -> None:
    """Make renames in a folder durable, where the system and its file system have that notion."""
    if sys.platform == "win32":
        return
    with contextlib.suppress(OSError):  # what was written is complete; some file systems sync files alone
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def delete_path(path: Path) -> None:
    """Delete a file, a folder or a link, if it is there and can be."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()


def delete_temporary_files(folder: Path) -> list[Path]:
    """Delete what killed processes left half-written anywhere below a folder, and restore what they were replacing.

    Returns:
        The removed paths.
    """
    stale: list[Path] = []
    waiting = [os.fspath(folder)] if folder.is_dir() else []
    while waiting:
        parent = waiting.pop()
        with contextlib.suppress(FileNotFoundError, PermissionError), os.scandir(parent) as entries:
            restore_replaced(Path(parent))
            for entry in entries:
                if entry.name[0] == "." and TEMPORARY_MARK in entry.name[1:]:
                    stale.append(Path(entry.path))
                elif entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
    for path in stale:
        delete_path(path)
    return stale


def read_at(descriptor: int, count: int, start: int) -> bytes:
    """Read from a place of an open file; on Windows, which has no pread, no two threads at a time."""
    if sys.platform != "win32":
        return os.pread(descriptor, count, start)
    os.lseek(descriptor, start, os.SEEK_SET)
    return os.read(descriptor, count)


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
