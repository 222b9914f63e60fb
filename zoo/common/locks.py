"""One writer a folder: it is locked while a command writes into it.

The lock is the kernel's (flock): it goes with its process. A file system without flock gets filelock's marker file
instead; that of a dead process on another host has to be deleted by hand.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from zoo.common.atomic_files import LOCK_NAME
from zoo.common.environment import process_rank

LOCK_INFO_NAME = f"{LOCK_NAME}.txt"  # who holds the lock
# Lightning sets only these for the processes that it starts itself.
_LOCAL_RANKS = ("LOCAL_RANK", "NODE_RANK", "GROUP_RANK")

Function = TypeVar("Function", bound=Callable[..., object])


def is_rank_zero() -> bool:
    """Tell whether this process is the first, or the only one, of those that were started together."""
    return process_rank()[0] == 0 and all(os.environ.get(name, "0") == "0" for name in _LOCAL_RANKS)


@contextlib.contextmanager
def lock_folder(folder: Path, command: str, timeout_seconds: float = 1.0, part: str = "") -> Iterator[None]:
    """Keep other commands from writing into a folder until the block ends; ranks but the first lock nothing.

    Args:
        folder: made when missing, and removed again when nothing was written.
        command: that writes, for the message of those that are refused.
        timeout_seconds: to wait for one that writes there; then ValueError names it.
        part: of the folder, which this process alone writes, whatever its rank; others may write theirs.
    """
    if not part and not is_rank_zero():
        yield
        return
    from filelock import FileLock, Timeout  # help and messages answer without it

    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; name a folder")
    created = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{LOCK_NAME}.{part}" if part else folder / LOCK_NAME
    lock, info = FileLock(path, timeout=timeout_seconds), path.with_name(f"{path.name}.txt")
    try:
        lock.acquire()
    except Timeout as error:
        owner = info.read_text(encoding="utf-8") if info.is_file() else "another process"
        raise ValueError(
            f"{folder} is being written by {owner}: wait for it or stop it, or choose another folder"
        ) from error
    try:
        since = time.strftime("%Y-%m-%d %H:%M:%S")
        owner = f"`zoo {command}` (process {os.getpid()} on host {socket.gethostname()}, since {since})"
        info.write_text(owner, encoding="utf-8")
        yield
    finally:
        # while it is locked: one who waits for it finds that its file is gone, and makes a new one
        for held in (info, path):
            delete_held_lock(held)
        lock.release()
        with contextlib.suppress(OSError):  # the first that holds something ends it
            for each in created:
                each.rmdir()


def delete_held_lock(path: Path) -> None:
    """Delete the file of a lock before it is released; Windows keeps what is open, and `release` deletes it there."""
    with contextlib.suppress(PermissionError):
        path.unlink(missing_ok=True)


def is_locked(folder: Path) -> bool:
    """Tell whether a process writes into a folder now; the lock of a killed one counts as none."""
    path = folder / LOCK_NAME
    if not path.exists():
        return False
    from filelock import FileLock, Timeout

    try:
        with FileLock(path, timeout=0):
            if not path.with_name(LOCK_INFO_NAME).exists():  # its command has just ended, this call created it
                delete_held_lock(path)
            return False
    except OSError as error:  # else it is not ours to write
        return isinstance(error, Timeout)


def writes_into(*parameters: str, positional: bool = True, shared: bool = False) -> Callable[[Function], Function]:
    """Mark a tool's function: the command line locks the folders that these arguments name while it runs.

    Its required arguments are `positional` or options; several processes share its work, or the first one does it.
    """

    def mark(function: Function) -> Function:
        function.writes_into, function.positional = parameters, positional  # type: ignore[attr-defined]
        function.shared = shared  # type: ignore[attr-defined]
        return function

    return mark


@contextlib.contextmanager
def lock_arguments(function: Callable[..., object], values: Mapping[str, Any], command: str) -> Iterator[None]:
    """Lock what a tool's function is marked to write into; arguments and errors as those of `lock_folder`."""
    with contextlib.ExitStack() as stack:
        for parameter in getattr(function, "writes_into", ()):
            stack.enter_context(lock_folder(Path(values[parameter]), command))
        yield
