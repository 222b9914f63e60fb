"""Files and folders that appear only when they are complete: written aside, synced, renamed."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

TEMPORARY_MARK = ".tmp-"
LOCK_NAME = ".zoo.lock"  # of a folder that a command writes into
REPLACED_MARK = ".replaced"


def temporary_path(path: Path) -> Path:
    """Return the hidden name, in the same folder and of this process, under which `path` is written first."""
    return path.with_name(f".{path.name}{TEMPORARY_MARK}{os.getpid()}")


def replaced_path(path: Path) -> Path:
    """Return the hidden name of a folder while another takes its place: no folder can be renamed over a full one."""
    return path.with_name(f".{path.name}{REPLACED_MARK}")


@contextlib.contextmanager
def replace_atomically(path: Path) -> Iterator[Path]:
    """Write a file or a folder aside and rename it over `path` when the block ends well.

    A kill, a full disk or an error at any step leaves the old or the new one; see `delete_temporary_files`.

    Yields:
        The temporary path to write to; the folder of `path` is made when missing.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    _restore(replaced_path(path))
    temporary = temporary_path(path)
    try:
        yield temporary
        if temporary.is_dir() and not path.is_file():
            replace_folder(temporary, path)
        else:
            _sync(temporary)
            os.replace(temporary, path)
            _sync_folder(path.parent)
    except BaseException:
        delete_path(temporary)
        raise


def replace_folder(folder: Path, path: Path) -> None:
    """Rename a folder to `path`, on the same file system; what was there stays until the new one has its name."""
    _sync(folder)
    replaced = replaced_path(path)
    try:
        if os.path.lexists(path):
            os.replace(path, replaced)
        os.replace(folder, path)
        _sync_folder(path.parent)
    finally:
        _restore(replaced)


def write_atomic(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Let `write` fill a file, so that `path` holds its old content or all of the new; see `replace_atomically`."""
    with replace_atomically(path) as temporary, temporary.open("wb") as file:
        write(file)


def delete_path(path: Path) -> None:
    """Delete a file, a folder or a link, if it is there and can be."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()


def delete_temporary_files(folder: Path) -> list[Path]:
    """Delete what killed processes left half-written below a folder; restore what they were replacing."""
    stale: list[Path] = []
    for parent, folders, files in os.walk(folder):
        for path in (Path(parent, name) for name in (*folders, *files) if name.startswith(".")):
            if path.name.endswith(REPLACED_MARK):
                _restore(path)
            elif TEMPORARY_MARK in path.name[1:]:
                stale.append(path)
                delete_path(path)
    return stale


def _restore(replaced: Path) -> None:
    """Give a folder its name back where a killed process did not come to rename the new one; else delete it."""
    if os.path.lexists(replaced):
        path = replaced.with_name(replaced.name[1:].removesuffix(REPLACED_MARK))
        if path.exists():
            delete_path(replaced)
        else:
            os.replace(replaced, path)


def _sync(path: Path) -> None:
    """Make a file, or all that lies in a folder, durable."""
    for each in [path, *path.rglob("*")] if path.is_dir() else [path]:
        if each.is_dir():
            _sync_folder(each)
        else:
            with each.open("rb") as file:
                os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    """Make renames in a folder durable, where the system and its file system have that notion."""
    if sys.platform == "win32":
        return
    with contextlib.suppress(OSError):  # what was written is complete; some file systems sync files alone
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
