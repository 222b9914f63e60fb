"""The port of a server, and how a signal ends it."""

from __future__ import annotations

import signal
import socket
import sys
from typing import Any


def bind(host: str, port: int) -> socket.socket:
    """Take a port.

    Args:
        port: 0 for any free one.

    Raises:
        OSError: it is taken, or the address is none of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family)
    if sys.platform != "win32":  # there it would let two servers share a port
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        raise OSError(
            f"{host}, port {port} cannot be used ({error.strerror}); choose another with --port, or 0 for any"
        ) from error
    return bound


def run_until_signal(server: Any, bound: socket.socket) -> None:
    """Run a server of uvicorn; the signal that ended it gives the exit code, and further ones change nothing."""
    for name in ("SIGINT", "SIGTERM", "SIGBREAK"):  # uvicorn repeats a signal when it has shut down
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), _leave)
    server.run(sockets=[bound])


def _leave(number: int, frame: Any) -> None:
    signal.signal(number, signal.SIG_IGN)  # the second would break off what the first has begun to close
    raise SystemExit(128 + number)
