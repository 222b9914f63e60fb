"""`zoo serve`."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from zoo.common.checks import check_at_least, check_within
from zoo.common.environment import listen, local_device

COMMANDS = {
    "serve": (
        "zoo.serve.commands:main",
        "Serve a trained system over HTTP: POST /predict, GET /openapi.json, /healthz and /metrics.",
    ),
}
MIN_TOKEN_LENGTH = 16
ANY_ADDRESS = ("0.0.0.0", "::")
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


def main(
    run: Path,
    host: str = "127.0.0.1",
    port: int = 8000,
    device: str = "auto",
    max_batch: int = 16,
    max_wait_ms: float = 5.0,
    max_queue: int = 64,
    max_upload_mib: int = 64,
    timeout_seconds: float = 300.0,
    allowed_hosts: list[str] | None = None,
    token_env: str | None = None,
) -> None:
    """Serve a trained system over HTTP: POST /predict, GET /openapi.json, /healthz and /metrics.

    Args:
        run: a run folder (its newest checkpoint), a checkpoint, an export folder, or hf://user/name.
        host: the address to listen at.
        port: to listen at; 0 for any free one.
        device: where to compute, such as cuda:1; a GPU where there is one.
        max_batch: most requests that are computed together, where the system gains by it.
        max_wait_ms: how long the first of them waits for others.
        max_queue: requests that may wait; one more gets 429.
        max_upload_mib: largest request.
        timeout_seconds: a request without a result after so long gets 504.
        allowed_hosts: names under which clients reach this machine, besides the host; needed for 0.0.0.0.
        token_env: name of the environment variable that holds the token; without it a new one is made and printed.
    """
    check_within(0, 65535, port=port)
    check_at_least(1, max_batch=max_batch, max_queue=max_queue, max_upload_mib=max_upload_mib)
    check_within(0, 10_000, max_wait_ms=max_wait_ms)
    check_within(0.1, 86_400, timeout_seconds=timeout_seconds)
    if host in ANY_ADDRESS and not allowed_hosts:
        raise ValueError(f"--host {host}: name what clients write in the address with --allowed_hosts '[my.machine]'")
    token = read_token(token_env)
    import uvicorn

    from zoo.runs.load import load
    from zoo.serve.app import create_app

    listener = listen(host, port)
    model = load(run, local_device(device))
    names = (host, *(allowed_hosts or ()))
    hosts = [*LOOPBACK, *(f"[{name.strip('[]')}]" if ":" in name else name for name in names)]  # IPv6 in brackets
    limits = (max_batch, max_wait_ms, max_queue, max_upload_mib, timeout_seconds)
    app = create_app(model, token, hosts, f"zoo {run}", *limits)
    address = f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"
    print(f"zoo: serving {run} at {address} token {token if token_env is None else f'of ${token_env}'}", flush=True)
    config = uvicorn.Config(
        app, log_level="warning", server_header=False, limit_concurrency=4 * max_queue + 128,
        timeout_graceful_shutdown=30,
    )  # fmt: skip
    uvicorn.Server(config).run(sockets=[listener])


def read_token(variable: str | None) -> str:
    """Return the token of an environment variable, a new one without; ValueError where it is absent or too short."""
    token = secrets.token_urlsafe(24) if variable is None else os.environ.get(variable, "")
    if len(token) < MIN_TOKEN_LENGTH or not (token.isascii() and token.isprintable()):
        raise ValueError(f"--token_env {variable}: expected a variable of at least {MIN_TOKEN_LENGTH} ASCII characters")
    return token
