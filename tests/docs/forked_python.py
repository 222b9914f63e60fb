"""A `python` and a `zoo` for the blocks of the documents, forked from a process with all imports done."""

import json
import multiprocessing
import os
import runpy
import socket
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

from tests.harness import REPOSITORY, SERVER

# -I -S: it starts within milliseconds. Other commands run as usual.
CLIENT = """#!{python} -IS
import json, os, socket, sys
if os.path.basename(sys.argv[0]) == "zoo":
    sys.argv[1:1] = ["-m", "zoo"]
if not " ".join(sys.argv[1:3]).startswith(("-m zoo", "-m scripts.", "scripts/", "-c")):
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
connection = socket.socket(socket.AF_UNIX)
connection.connect({address!r})
with connection.makefile("rw") as stream:
    call = dict(args=sys.argv[1:], cwd=os.getcwd(), variables=dict(os.environ), pid=os.getpid())
    stream.write(json.dumps(call) + "\\n")
    stream.flush()
    sys.exit(int(stream.readline()))
"""


class ForkedPython:
    """Writes the executables `python` and `zoo` into a folder and serves their calls until it is closed.

    Args:
        folder: for the executables; to be put first on the PATH.
    """

    def __init__(self, folder: Path) -> None:
        self._short = tempfile.TemporaryDirectory()  # the path of a socket has 100 characters at most
        address = str(Path(self._short.name) / "python")
        folder.mkdir()
        for name in ("python", "zoo"):
            client = folder / name
            client.write_text(CLIENT.format(python=sys.executable, address=address))
            client.chmod(0o755)
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(address)
        self._socket.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        """Take no more calls."""
        self._socket.close()
        self._short.cleanup()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:  # closed
                return
            threading.Thread(target=_answer, args=(connection,), daemon=True).start()


def _answer(connection: socket.socket) -> None:
    with connection, connection.makefile("rw") as stream:
        process = SERVER.Process(target=_python_in_child, kwargs=json.loads(stream.readline()))
        process.start()
        process.join()
        stream.write(f"{process.exitcode}\n")


def _python_in_child(args: Sequence[str], cwd: str, variables: dict[str, str], pid: int) -> None:
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(variables)
    tempfile.tempdir = None
    for descriptor, flags in enumerate((os.O_RDONLY, os.O_WRONLY | os.O_APPEND, os.O_WRONLY | os.O_APPEND)):
        os.dup2(os.open(f"/proc/{pid}/fd/{descriptor}", flags), descriptor)
    multiprocessing.set_start_method("fork", force=True)
    sys.path[:0] = [str(REPOSITORY), *variables["PYTHONPATH"].split(os.pathsep)]
    if args[0] == "-m":
        sys.argv = list(args[1:])
        sys.path.insert(0, cwd)
        runpy.run_module(args[1], run_name="__main__", alter_sys=True)
    elif args[0] == "-c":
        sys.argv = list(args[:1])
        sys.path.insert(0, "")
        exec(compile(args[1], "<block>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv = list(args)
        sys.path.insert(0, str(Path(args[0]).parent))
        runpy.run_path(args[0], run_name="__main__")
