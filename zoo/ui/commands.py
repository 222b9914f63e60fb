"""The tool of the page: command -> the function, with the first line of its docstring."""

from __future__ import annotations

import os
import re
from pathlib import Path

from zoo.common.checks import check_at_least, check_within

COMMANDS = {
    "ui": ("zoo.ui.commands:main", "Serve the local web page: train, watch, inspect, predict; for this machine only."),
}
MIN_TOKEN_LENGTH = 16


def main(
    port: int = 7860,
    runs: Path = Path("runs"),
    data: Path | None = None,
    max_upload_mib: int = 512,
    trainings_at_once: int = 1,
    token_env: str | None = None,
) -> None:
    """Serve the local web page: train, watch, inspect, predict; for this machine only.

    Args:
        port: on 127.0.0.1; 0 for any free one.
        runs: the folder that runs are written to.
        data: folder whose sub-folders the page offers as data sets; $ZOO_DATA or `data` without it.
        max_upload_mib: largest upload.
        trainings_at_once: how many trainings run at a time; more wait for their turn.
        token_env: name of the environment variable that holds the token; without it a new one is made.

    Raises:
        ImportError: the extra `ui` is not installed.
        ValueError: the port, a limit or the token cannot be used.
        OSError: the port is taken.
    """
    check_within(0, 65535, port=port)
    check_at_least(1, max_upload_mib=max_upload_mib, trainings_at_once=trainings_at_once)
    token = None if token_env is None else os.environ.get(token_env, "")
    if token is not None and not re.fullmatch(rf"[\w.~-]{{{MIN_TOKEN_LENGTH},}}", token, re.ASCII):
        raise ValueError(
            f"--token_env {token_env}: expected a variable of at least {MIN_TOKEN_LENGTH} letters, digits and . _ ~ -"
        )
    from zoo.ui.server import serve

    folder = data or Path(os.environ.get("ZOO_DATA", "data"))
    serve(runs.absolute(), folder.absolute(), port, token, token_env, max_upload_mib, trainings_at_once)
