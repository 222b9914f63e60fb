"""Runs a command for the page's server: not before the server has noted it, and, if asked, no longer than the server.

`python -m zoo.ui.jobs.tied -m zoo fit ...` is `python -m zoo fit ...` with a pipe of the server as standard input. The
first byte lets it begin. The end of the pipe, which also comes when the server is killed, ends what is tied: by
SIGTERM, upon which a training saves.
"""

from __future__ import annotations

import os
import runpy
import sys
import threading

from zoo.ui.jobs.groups import end_self

KEPT, TIED = b"k", b"t"


def main() -> None:
    """Wait for the server's word, then be the command."""
    pipe = os.dup(0)  # which the command's own children do not inherit
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    word = os.read(pipe, 1)
    if not word:
        sys.exit("the server ended before this began")
    if word == TIED:
        threading.Thread(target=_end_with, args=(pipe,), daemon=True).start()
    else:
        os.close(pipe)
    words = sys.argv[1:]
    if words[0] == "-m":
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = words
        runpy.run_path(words[0], run_name="__main__")


def _end_with(pipe: int) -> None:
    os.read(pipe, 1)
    end_self()


if __name__ == "__main__":
    main()
