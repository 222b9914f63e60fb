"""Files and folders that appear only when they are whole: written aside, synced, renamed."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

TEMPORARY_MARK = ".tmp-"
BINARY = getattr(os, "O_BINARY", 0)  # for os.open; without it Windows translates ends of lines


def temporary_beside(path: Path) -> Path:
    """The hidden name, in the same folder and of this process, under which `path` is written first."""
    return path.with_name(f".{path.name}{TEMPORARY_MARK}{os.getpid()}")


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Write a file or a folder aside and rename it over `path` when the block ends well.

    Args:
        path: final name; its folder is made when missing. A folder already there is replaced.

    Yields:
        The temporary path to write to.

    Raises:
        OSError: when the disk is full or the folder is not writable; what was at `path` is untouched.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_beside(path)
    try:
        yield temporary
        if temporary.is_dir():
            if path.is_dir():
                shutil.rmtree(path)
        else:
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        remove(temporary)
        raise
    sync_folder(path.parent)


def write_atomic(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a file so that `path` holds either its old content or the whole new one.

    Args:
        path: final name.
        write: called with the open temporary file.

    Raises:
        OSError: when the disk is full or the folder is not writable; the old file is untouched.
    """
    with replacing(path) as temporary, temporary.open("wb") as file:
        write(file)


def sync_folder(folder: Path) -> None:
    """Make renames in a folder durable (where the system has that notion)."""
    if sys.platform == "win32":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove(path: Path) -> None:
    """Delete a file or folder, if it is there and can be."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()


def sweep_temporaries(folder: Path) -> list[Path]:
    """Delete what killed processes left half-written anywhere below a folder.

    Returns:
        The removed paths.
    """
    stale: list[Path] = []
    waiting = [os.fspath(folder)] if folder.is_dir() else []
    while waiting:
        with contextlib.suppress(FileNotFoundError, PermissionError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.name[0] == "." and TEMPORARY_MARK in entry.name[1:]:
                    stale.append(Path(entry.path))
                elif entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
    for path in stale:
        remove(path)
    return stale


def read_at(descriptor: int, count: int, start: int) -> bytes:
    """Read from a place of an open file; on Windows, which has no pread, no two threads at a time."""
    if sys.platform != "win32":
        return os.pread(descriptor, count, start)
    os.lseek(descriptor, start, os.SEEK_SET)
    return os.read(descriptor, count)
