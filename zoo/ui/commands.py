"""The tool of the page: command -> the function, with the first line of its docstring."""

from __future__ import annotations

import getpass
import importlib.util
import os
from pathlib import Path

from zoo.common.checks import check_at_least, check_within

COMMANDS = {
    "ui": ("zoo.ui.commands:main", "Serve the local web page: train, watch, inspect, predict; for this machine only."),
}
MODULES = ("fastapi", "nicegui", "psutil", "uvicorn")
MIN_PASSWORD = 8


def main(
    port: int = 7860,
    runs: Path = Path("runs"),
    data: Path | None = None,
    password_env: str | None = None,
    ask_password: bool = False,
    max_upload_mib: int = 512,
    max_uploads: int = 50,
    max_session_mib: int = 1024,
    trainings_at_once: int = 1,
    max_trainings: int = 8,
    on_exit: str = "keep",
) -> None:
    """Serve the local web page: train, watch, inspect, predict; for this machine only.

    Args:
        port: on 127.0.0.1; 0 for any free one.
        runs: the folder that runs are written to.
        data: folder whose sub-folders the page offers as data sets; $ZOO_DATA or `data` without it.
        password_env: name of the environment variable that holds a password; without a password the printed address
            carries a token.
        ask_password: ask for a password at the terminal.
        max_upload_mib: largest upload; the page's temporary folder holds four of them.
        max_uploads: files that a session may have uploaded at a time.
        max_session_mib: how large they may be together.
        trainings_at_once: how many trainings run at a time; more wait for their turn.
        max_trainings: how many a session may have running or waiting.
        on_exit: what becomes of trainings when the page ends or is killed: "keep" lets them go on, and a later page
            finds them; "stop" has them save and end.

    Raises:
        ImportError: the extra `ui` is not installed.
        ValueError: the port, the password, a limit or on_exit cannot be used.
        OSError: the port is taken.
    """
    missing = [name for name in MODULES if importlib.util.find_spec(name) is None]
    if missing:
        raise ImportError(f"the page needs {', '.join(missing)}: pip install 'zoo[ui]'")
    check_within(0, 65535, port=port)
    check_at_least(1, max_upload_mib=max_upload_mib, max_uploads=max_uploads, max_session_mib=max_session_mib)
    check_at_least(1, trainings_at_once=trainings_at_once, max_trainings=max_trainings)
    if on_exit not in ("keep", "stop"):
        raise ValueError(f"--on_exit {on_exit}: expected keep or stop")
    password = None
    if password_env is not None:
        password = os.environ.get(password_env)
        if password is None:
            raise ValueError(f"--password_env {password_env}: there is no such environment variable")
    elif ask_password:
        password = getpass.getpass("Password for the page: ")
    if password is not None and len(password) < MIN_PASSWORD:
        raise ValueError(f"the password has {len(password)} characters, at least {MIN_PASSWORD} are needed")
    from zoo.ui.jobs.trainings import Queue
    from zoo.ui.server import MIB, Limits, serve

    secrets = () if password_env is None else (password_env,)
    folder = data or Path(os.environ.get("ZOO_DATA", "data"))
    sizes = Limits(max_upload_mib * MIB, max_uploads, max_session_mib * MIB)
    serve(runs, folder, port, password, secrets, sizes, Queue(trainings_at_once, max_trainings, on_exit == "stop"))
