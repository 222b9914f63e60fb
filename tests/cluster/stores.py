"""Stores that tests start on free ports: an HTTP server with ranges and faults to order, and moto's S3."""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote


@dataclass
class HttpStore:
    """Serves a folder.

    Attributes:
        faults: by file name, one of `404`, `500`, `drop` (the connection breaks in the middle of the answer), `slow`,
            `redirect`, `no-ranges`, with how many answers it spoils; -1 for all.
        seen: every answered request: path with query, and the range or "".
    """

    folder: Path
    url: str = ""
    faults: dict[str, tuple[str, int]] = field(default_factory=dict)
    slow_seconds: float = 2.0
    seen: list[tuple[str, str]] = field(default_factory=list)
    spoiled: Counter[str] = field(default_factory=Counter)
    sent_bytes: int = 0

    def fault(self, name: str) -> str:
        kind, count = self.faults.get(name, self.faults.get("*", ("", 0)))
        if 0 <= count <= self.spoiled[name]:
            return ""
        self.spoiled[name] += 1
        return kind


@contextmanager
def http_store(folder: Path) -> Iterator[HttpStore]:
    store = HttpStore(folder)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            store.seen.append((self.path, self.headers.get("Range", "")))
            path = folder / unquote(self.path.partition("?")[0]).lstrip("/")
            fault = store.fault(path.name)
            if fault == "redirect":
                return self.answer(302, b"", Location="http://169.254.169.254/latest?token=hidden")
            if fault in ("404", "500") or not path.is_file():
                return self.answer(int(fault) if fault in ("404", "500") else 404, b"no")
            data, size = path.read_bytes(), path.stat().st_size
            match = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
            if fault == "slow":
                time.sleep(store.slow_seconds)
            if match is None or fault == "no-ranges":
                return self.answer(200, data, cut=fault == "drop")
            start, stop = int(match[1]), min(int(match[2]) + 1, size)
            if start >= size:
                return self.answer(416, b"", **{"Content-Range": f"bytes */{size}"})
            headers = {"Content-Range": f"bytes {start}-{stop - 1}/{size}", "ETag": f'"{size}"'}
            return self.answer(206, data[start:stop], cut=fault == "drop", **headers)

        def answer(self, status: int, data: bytes, cut: bool = False, **headers: str) -> None:
            try:
                self.send_response(status)
                for name, value in (headers | {"Content-Length": str(len(data))}).items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data[: len(data) // 2] if cut else data)
                store.sent_bytes += len(data)
                self.close_connection = cut
            except OSError:
                self.close_connection = True  # the other side has given up

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    store.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield store
    finally:
        server.shutdown()
        server.server_close()


S3_VARIABLES = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "hidden-secret",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}


@contextmanager
def s3_store() -> Iterator[dict[str, str]]:
    """Yields the variables with which a process finds the store."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    try:
        yield {**S3_VARIABLES, "AWS_ENDPOINT_URL": f"http://{host}:{port}"}
    finally:
        server.stop()
