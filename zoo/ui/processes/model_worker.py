"""A process with one loaded model: JSON lines on stdin and stdout, until stdin ends.

The first line in is `{"path", "device", "allow_import"}`, each further one a form, `{"values", "folder"}`. Lines out
are `{"fields"}`, `{"progress", "text"}`, `{"outputs", "seconds"}` and `{"error"}`. What libraries print goes to stderr.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from zoo.common.environment import local_device
from zoo.common.journal import format_error
from zoo.runs.inference.forms import read_form
from zoo.runs.load import load

REPORT_SECONDS = 0.2  # between two lines of progress


class LineWriter:
    """Writes messages and progress to the process's first stdout."""

    def __init__(self) -> None:
        self._lines = os.fdopen(os.dup(1), "w", encoding="utf-8")
        self._last_report = 0.0
        os.dup2(2, 1)

    def write(self, **message: Any) -> None:
        """Write one line."""
        self._lines.write(json.dumps(message) + "\n")
        self._lines.flush()

    def report(self, fraction: float, text: str) -> None:
        """Write the progress, not more often than a page shows it; it fails when the server has ended."""
        if time.monotonic() - self._last_report >= REPORT_SECONDS:
            self._last_report = time.monotonic()
            self.write(progress=min(max(fraction, 0.0), 1.0), text=text)


def main() -> None:
    """Load, then compute form after form."""
    faulthandler.enable()
    writer = LineWriter()
    order = json.loads(sys.stdin.readline())
    try:
        model = load(order["path"], local_device(order["device"]), allow_import=order["allow_import"])
        fields = model.fields()
    except Exception as error:  # a run's description may fail in any way
        writer.write(error=_message(error))
        return
    writer.write(fields=[asdict(field) for field in fields])
    for line in sys.stdin:
        request = json.loads(line)
        started = time.perf_counter()
        try:
            values = read_form(fields, request["values"])
            outputs = model.answer(values, Path(request["folder"]), writer.report)
        except (torch.AcceleratorError, torch.OutOfMemoryError) as error:
            sys.exit(_message(error))  # the memory is free then, and the device is opened again
        except (ValueError, OSError, RuntimeError) as error:
            writer.write(error=_message(error))
        else:
            writer.write(outputs=[asdict(each) for each in outputs], seconds=time.perf_counter() - started)


def _message(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, ValueError | OSError) and text else format_error(error)


if __name__ == "__main__":
    main()
