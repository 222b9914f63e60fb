"""`train.log`: what zoo, Lightning and `warnings` report, in a file that survives the terminal."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import lightning as L

from zoo.runs.run_folder import LOG_NAME, run_folder
from zoo.runs.run_info import STARTED_MARK

LOGGERS = ("zoo", "lightning.pytorch", "lightning.fabric", "py.warnings")

log = logging.getLogger(__name__)


class _LogFile(logging.FileHandler):
    """A log file that loses lines on a full disk, where Python's prints a traceback for each."""

    def handleError(self, record: logging.LogRecord) -> None:
        if not isinstance(sys.exception(), OSError):
            super().handleError(record)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            super().close()


@contextlib.contextmanager
def log_to_file(path: Path, names: Sequence[str] = LOGGERS) -> Iterator[None]:
    """Append what the loggers of these names report to a file."""
    handler = _LogFile(path, encoding="utf-8")
    handler.setLevel(logging.INFO)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s"))
    for name in names:
        logging.getLogger(name).addHandler(handler)
    try:
        yield
    finally:
        for name in names:
            logging.getLogger(name).removeHandler(handler)
        handler.close()


class TrainLog(L.Callback):
    """Copies what zoo, Lightning and `warnings` report into `train.log` of the run folder, on rank zero.

    A resumed run appends. An exception is written with its traceback.
    """

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Open the file."""
        folder = run_folder(trainer)
        if stage == "fit" and trainer.is_global_zero:
            folder.mkdir(parents=True, exist_ok=True)
            self._stack.enter_context(log_to_file(folder / LOG_NAME))
            logging.captureWarnings(True)
            self._stack.callback(logging.captureWarnings, False)
            log.info("%s %d", STARTED_MARK, os.getpid(), extra={"terminal": False})

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        """Write what ended the run, and close: Lightning calls no teardown hook after an exception."""
        is_error = isinstance(exception, Exception)  # a signal's or Ctrl-C's traceback is of no use
        text = type(exception).__name__ if is_error else f"{type(exception).__name__} {exception}"
        trace, level = exception if is_error else None, logging.ERROR if is_error else logging.WARNING
        log.log(level, "ended by %s", text, exc_info=trace, extra={"terminal": False})
        self._stack.close()

    def teardown(self, *_: Any, **__: Any) -> None:
        """Close the file."""
        self._stack.close()
