"""A trained system in a process of its own: lines of JSON come in on stdin and go out on stdout, until stdin ends.

The first line in says what to load, `{"path", "temp", "allow_import"}`; then `{"fields"}` goes out, or `{"failed"}` and
the process ends. Each further line in is a request, `{"values", "folder"}`; out go lines of `{"progress", "text"}` and
one of `{"parts", "seconds"}` or `{"failed"}`. A line `{"together": [request, ...]}` is answered by one line
`{"answers": [...]}` of the same without pictures, in which `refused` tells that a request itself was at fault. Lines
`{"arriving": [request, ...]}`, whose requests have a `number`, may come while others of them are computed; each request
is answered by a line of its own with its number.
Whatever the libraries print goes to stderr.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import queue
import signal
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from zoo.common.journal import load_json
from zoo.runs.inference.forms import FILE_FIELDS, read_form

REPORT_SECONDS = 0.2  # between two lines of progress


def main() -> None:
    """Serve until stdin ends."""
    faulthandler.enable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C at the server ends the server, and that ends this
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(sys.stdin.buffer, requests), daemon=True).start()
    Worker(out, requests.get()).serve(requests)


def _read(lines: IO[bytes], requests: queue.SimpleQueue[Any]) -> None:
    """Take requests in beside the computation, so that the end of the server ends it too."""
    with contextlib.suppress(ValueError):
        for line in lines:
            requests.put(load_json(line))
    if sys.platform != "win32" and os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)  # with what the computation itself has started
    os._exit(0)


class Worker:
    """Loads what the first line names, then answers.

    Args:
        out: where lines go.
        order: the first line.
    """

    def __init__(self, out: IO[str], order: dict[str, Any]) -> None:
        self._out = out
        self.temp = Path(order["temp"]).resolve()
        self._reported = 0.0
        try:
            import torch

            from zoo.runs.load import load

            device = order.get("device") or ("cuda" if torch.cuda.is_available() else "cpu")
            self.inference = load(order["path"], device, allow_import=order.get("allow_import", ()))
            self.declared = self.inference.fields()
        except Exception as error:
            self._say(failed=_one_line(error))
            raise SystemExit(1) from error
        self._say(fields=[asdict(field) for field in self.declared])

    def serve(self, requests: queue.SimpleQueue[Any]) -> None:
        """Answer one request after the other; the reader of stdin ends the process."""
        while True:
            request = requests.get()
            started = time.perf_counter()
            try:
                parts = self._answer(request)
            except (ValueError, OSError, RuntimeError) as error:
                if _is_lost(error):
                    raise
                self._say(failed=_without_paths(_one_line(error), request, self.temp))
            else:
                self._say(parts=parts, seconds=round(time.perf_counter() - started, 6))

    def _answer(self, request: dict[str, Any]) -> list[dict[str, Any]]:
        return [asdict(part) for part in self.inference.answer(*self._asked(request), self._report)]

    def _asked(self, request: dict[str, Any]) -> tuple[dict[str, Any], Path]:
        """The values and the folder of a request, checked."""
        values, folder = read_form(self.declared, request["values"]), Path(request["folder"])
        for field in self.declared:
            if field.kind in FILE_FIELDS and values[field.name] is not None:
                values[field.name] = self._inside(values[field.name])
                if not values[field.name].is_file():
                    raise ValueError(f"{field.label}: the file is there no more; give it again")
        return values, self._inside(folder)

    def _inside(self, path: Path) -> Path:
        """The path itself when it lies in the server's temporary folder, links followed."""
        if not path.is_absolute() or not path.resolve().is_relative_to(self.temp):
            raise ValueError(f"{path.name} is no file of this page")
        return path

    def _report(self, fraction: float, text: str) -> None:
        now = time.monotonic()
        if now - self._reported >= REPORT_SECONDS:
            self._reported = now
            self._say(progress=round(min(max(fraction, 0.0), 1.0), 4), text=text)

    def _say(self, **line: Any) -> None:
        self._out.write(json.dumps(line) + "\n")
        self._out.flush()


def _is_lost(error: Exception) -> bool:
    """Whether nothing can be computed in this process any more."""
    import torch

    return isinstance(error, torch.AcceleratorError | torch.OutOfMemoryError)


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, ValueError) and text else f"{type(error).__name__}: {text}"


def _without_paths(text: str, request: dict[str, Any], temp: Path) -> str:
    """The text with the names of files in the place of where they lie."""
    given = [value for value in request["values"].values() if isinstance(value, str)]
    for path in (*given, request["folder"]):
        if path.startswith(str(temp)):
            text = text.replace(path, Path(path).name)
    return text.replace(f"{temp}{os.sep}", "")


if __name__ == "__main__":
    main()
