"""The tool of the endpoint: command -> the function, whose signature and docstring are its help."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from zoo.common.ranges import at_least, within

COMMANDS = {"serve": "zoo.serve.commands:main"}
MODULES = ("fastapi", "prometheus_client", "psutil", "python_multipart", "uvicorn")
LEAST_TOKEN = 16
ANYWHERE = ("0.0.0.0", "::")


def main(
    run: Path,
    host: str = "127.0.0.1",
    port: int = 0,
    device: str | None = None,
    max_batch: int = 16,
    max_wait_ms: float = 5.0,
    max_queue: int = 64,
    max_upload_mib: int = 64,
    deadline_seconds: float = 300.0,
    grace_seconds: float = 30.0,
    keep_seconds: float = 600.0,
    allowed_hosts: list[str] | None = None,
    token_env: str | None = None,
) -> None:
    """Serve a trained system over HTTP: POST /predict, GET /openapi.json, /health and /metrics.

    Args:
        run: a run folder (its newest checkpoint, also when a newer one appears), a checkpoint, an export folder, or
            hf://user/name.
        host: the address to listen at.
        port: 0 for any free one.
        device: where to compute, such as cuda:1; a GPU where there is one.
        max_batch: requests that are computed together at most, where the system gains by it.
        max_wait_ms: how long the first of them waits for others.
        max_queue: requests that may wait; one more is told to come back later (429).
        max_upload_mib: largest upload; uploads under way together may have 16 times as much.
        deadline_seconds: a request without an answer after so long is given up (504).
        grace_seconds: how long requests may be finished after Ctrl-C or SIGTERM.
        keep_seconds: how long files of an answer can be fetched below /results/.
        allowed_hosts: names under which clients reach this machine, besides the host; needed for 0.0.0.0.
        token_env: name of the environment variable that holds the token; without it a new one is made and printed.

    Raises:
        ImportError: the extra `ui` is not installed.
        FileNotFoundError: there is no such run.
        ValueError: an option cannot be used, or the run cannot be loaded.
        OSError: the port is taken.
    """
    missing = [name for name in MODULES if importlib.util.find_spec(name) is None]
    if missing:
        raise ImportError(f"the endpoint needs {', '.join(missing)}: pip install 'zoo[ui]'")
    within(0, 65535, port=port)
    at_least(1, max_batch=max_batch, max_queue=max_queue, max_upload_mib=max_upload_mib)
    within(0, 10_000, max_wait_ms=max_wait_ms)
    within(0.1, 86_400, deadline_seconds=deadline_seconds, keep_seconds=keep_seconds)
    within(0, 3600, grace_seconds=grace_seconds)
    if host in ANYWHERE and not allowed_hosts:
        raise ValueError(f"--host {host}: name what clients write in the address with --allowed_hosts '[my.machine]'")
    token = None if token_env is None else os.environ.get(token_env)
    if token_env is not None and token is None:
        raise ValueError(f"--token_env {token_env}: there is no such environment variable")
    if token is not None and (len(token) < LEAST_TOKEN or not (token.isascii() and token.isprintable())):
        raise ValueError(f"--token_env {token_env}: expected at least {LEAST_TOKEN} characters of ASCII")
    from zoo.serve.queue import Limits
    from zoo.serve.server import Address, serve

    limits = Limits(
        max_batch, max_wait_ms / 1000, max_queue, max_upload_mib * 2**20, deadline_seconds, grace_seconds, keep_seconds
    )
    serve(run, Address(host, port, tuple(allowed_hosts or ())), limits, device, token, token_env)
