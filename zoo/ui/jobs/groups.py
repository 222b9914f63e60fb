"""Processes in groups of their own: Ctrl-C at the server does not reach them; they are asked to save, or killed whole.

POSIX has sessions and SIGTERM. Windows has process groups of a console and CTRL_BREAK, which Python's children receive
as SIGBREAK; its SIGTERM kills at once. The branches of Windows are tested with stand-ins and were not run there.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from typing import Any

import psutil


def own_group() -> dict[str, Any]:
    """Arguments of `Popen` that begin a group."""
    if sys.platform == "win32":
        return {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}
    return {"start_new_session": True}


def ask_to_end(process: subprocess.Popen[bytes] | psutil.Process) -> None:
    """Ask the first process of a group to save and to end.

    Raises:
        OSError: on Windows, where it belongs to another console.
    """
    if sys.platform == "win32":
        process.send_signal(signal.CTRL_BREAK_EVENT)
    else:
        process.terminate()


def end_self() -> None:
    """Have this process save and end, from any of its threads."""
    if sys.platform == "win32":
        signal.raise_signal(signal.SIGTERM)  # os.kill would end it at once
    else:
        os.kill(os.getpid(), signal.SIGTERM)


def kill_group(pid: int) -> None:
    """Kill the first process of a group and what it has started; nothing happens when it is gone."""
    if sys.platform != "win32":
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
        return
    with contextlib.suppress(psutil.NoSuchProcess):
        first = psutil.Process(pid)
        for each in [*first.children(recursive=True), first]:
            with contextlib.suppress(psutil.Error):
                each.kill()
