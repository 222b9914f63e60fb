"""Files and folders that appear only when they are whole: written aside, synced, renamed."""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

TEMPORARY_MARK = ".tmp-"
REPLACED_MARK = ".replaced"
BINARY = getattr(os, "O_BINARY", 0)  # for os.open; without it Windows translates ends of lines


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
