"""One writer a folder: a run folder or an output folder is locked while a command writes into it.

The lock is the kernel's (flock, by `filelock`): it goes with the process that holds it, so what a killed one leaves is
taken over at once, and forked data workers hold nothing. NFS passes it on to its server, which drops it when the
client's lease ends. A file system without flock gets filelock's marker file instead: it is taken over when its process
is dead on the same host; the marker of a dead process on another host has to be deleted by hand.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from zoo.common.environment import process_rank

LOCK_NAME = ".zoo.lock"
LOCK_INFO_NAME = ".zoo.lock.json"
_TIMEOUT_SECONDS = 1.0  # a predecessor may just be leaving
# Lightning sets only these for the processes that it starts itself.
_LOCAL_RANKS = ("LOCAL_RANK", "NODE_RANK", "GROUP_RANK")

Function = TypeVar("Function", bound=Callable[..., object])


def is_rank_zero() -> bool:
    """Whether this process is the first, or the only one, of those that were started together."""
    return process_rank()[0] == 0 and all(os.environ.get(name, "0") == "0" for name in _LOCAL_RANKS)


@contextlib.contextmanager
def lock_folder(folder: Path, command: str, timeout_seconds: float = _TIMEOUT_SECONDS) -> Iterator[None]:
    """Keep other commands from writing into a folder until the block ends; ranks but the first lock nothing.

    Args:
        folder: made when missing, and removed again when nothing was written.
        command: that writes, for the message of those that are refused.
        timeout_seconds: to wait for one that writes there.

    Raises:
        ValueError: when another process writes there; it is named.
        OSError: when the folder cannot be written.
    """
    if not is_rank_zero():
        yield
        return
    from filelock import FileLock, Timeout  # help and messages answer without it

    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; name a folder")
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    lock, owner = FileLock(folder / LOCK_NAME, timeout=timeout_seconds), folder / LOCK_INFO_NAME
    try:
        lock.acquire()
    except Timeout as error:
        raise ValueError(
            f"{folder} is being written by {_owner_of(owner)}: wait for it or stop it, or choose another folder"
        ) from error
    try:
        facts = {"command": command, "host": socket.gethostname(), "pid": os.getpid(), "since": time.time()}
        owner.write_text(json.dumps(facts), encoding="utf-8")
        yield
    finally:
        # while the lock is held: one who waits for it finds that its file is gone, and makes a new one
        for path in (owner, folder / LOCK_NAME):
            with contextlib.suppress(PermissionError):  # Windows keeps what is open; `release` deletes it there
                path.unlink(missing_ok=True)
        lock.release()
        with contextlib.suppress(OSError):  # the first that holds something ends it
            for path in made:
                path.rmdir()


def is_locked(folder: Path) -> bool:
    """Whether a process writes into a folder now; what a killed one left counts as nothing."""
    path = folder / LOCK_NAME
    if not path.exists():
        return False
    from filelock import FileLock, Timeout

    try:
        lock = FileLock(path, timeout=0)
        lock.acquire()
    except Timeout:
        return True
    except OSError:  # not ours to write
        return False
    lock.release()
    return False


def _owner_of(owner: Path) -> str:
    """What the owner of a lock has noted of itself."""
    try:
        facts = json.loads(owner.read_text(encoding="utf-8"))
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(facts["since"]))
        return f"`zoo {facts['command']}` (process {facts['pid']} on host {facts['host']}, since {since})"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"


def writes_into(*parameters: str, positional: bool = True, shared: bool = False) -> Callable[[Function], Function]:
    """Mark a tool's function: the command line locks the folders that these arguments name while it runs.

    Args:
        positional: whether the command takes its required arguments by position; else as options.
        shared: whether several processes divide the work among them; else the first one does it.
    """

    def mark(function: Function) -> Function:
        function.writes_into, function.positional = parameters, positional  # type: ignore[attr-defined]
        function.shared = shared  # type: ignore[attr-defined]
        return function

    return mark


@contextlib.contextmanager
def lock_arguments(function: Callable[..., object], values: Mapping[str, Any], command: str) -> Iterator[None]:
    """Lock what a tool's function is marked to write into; see `locked`.

    Raises:
        ValueError: when another process writes there.
        OSError: when a folder cannot be written.
    """
    with contextlib.ExitStack() as stack:
        for parameter in getattr(function, "writes_into", ()):
            stack.enter_context(lock_folder(Path(values[parameter]), command))
        yield
