"""`train.log`: what zoo, Lightning and `warnings` report, in a file that survives the terminal."""

from __future__ import annotations

import contextlib
import logging
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import lightning as L

from zoo.runs.run_folder import run_folder

LOG_NAME = "train.log"
LOG_FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
LOGGERS = ("zoo", "lightning.pytorch", "lightning.fabric")


class _LogFile(logging.FileHandler):
    """A log file that loses lines on a full disk, where Python's prints a traceback for each."""

    def handleError(self, record: logging.LogRecord) -> None:
        """Pass over what the disk does not take."""
        if not isinstance(sys.exception(), OSError):
            super().handleError(record)

    def close(self) -> None:
        """Close, whether or not the last lines could be written."""
        with contextlib.suppress(OSError):
            super().close()


@contextlib.contextmanager
def log_file(path: Path, logger: logging.Logger) -> Iterator[None]:
    """Write what a logger says to the end of a `train.log` as well."""
    handler = _open_log(path)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        handler.close()


def _open_log(path: Path) -> _LogFile:
    handler = _LogFile(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter(LOG_FORMAT))
    return handler


class TrainLog(L.Callback):
    """Copies what zoo, Lightning and `warnings` say into `train.log` of the run folder, on rank zero.

    A resumed run appends. An exception is written with its traceback. What reaches the terminal stays as it was.

    Args:
        level: lowest level that is written, e.g. "INFO".
    """

    def __init__(self, level: str = "INFO") -> None:
        if level not in logging.getLevelNamesMapping():
            raise ValueError(
                f"TrainLog: unknown level {level!r}, expected one of {list(logging.getLevelNamesMapping())}"
            )
        self.level = level
        self._handler: _LogFile | None = None
        self._added: list[tuple[logging.Logger, logging.Handler]] = []

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Open the file and listen."""
        folder = run_folder(trainer)
        if stage != "fit" or not trainer.is_global_zero or self._handler is not None:
            return
        folder.mkdir(parents=True, exist_ok=True)
        self._handler = _open_log(folder / LOG_NAME)
        self._handler.setLevel(self.level)
        for name in LOGGERS:
            logger = logging.getLogger(name)
            if not logger.hasHandlers() and logging.lastResort is not None:
                # Python shows warnings of a logger without handlers on the terminal; ours must not end that
                self._add(logger, logging.lastResort)
            self._add(logger, self._handler)
        self._zoo_level = logging.getLogger("zoo").level
        logging.getLogger("zoo").setLevel(min(logging.getLogger("zoo").getEffectiveLevel(), self._handler.level))
        self._show = warnings.showwarning
        warnings.showwarning = self._shown

    def _add(self, logger: logging.Logger, handler: logging.Handler) -> None:
        logger.addHandler(handler)
        self._added.append((logger, handler))

    def _shown(
        self,
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        self._show(message, category, filename, lineno, file, line)
        self._write(logging.WARNING, "warnings", f"{category.__name__}: {message} ({filename}:{lineno})")

    def _write(self, level: int, name: str, text: str, error: BaseException | None = None) -> None:
        if self._handler is not None and level >= self._handler.level:
            trace = (type(error), error, error.__traceback__) if error is not None else None
            self._handler.emit(logging.LogRecord(name, level, "", 0, text, None, trace))

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        """Write what ended the run, and close: Lightning calls no teardown hook after an exception."""
        if isinstance(exception, Exception):
            self._write(logging.ERROR, __name__, f"ended by {type(exception).__name__}", exception)
        else:  # a signal or Ctrl-C: its traceback is of no use
            self._write(logging.WARNING, __name__, f"ended by {type(exception).__name__} {exception}")
        self.close()

    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Close the file."""
        self.close()

    def close(self) -> None:
        """Stop listening and close the file."""
        if self._handler is None:
            return
        for logger, handler in self._added:
            logger.removeHandler(handler)
        self._added = []
        logging.getLogger("zoo").setLevel(self._zoo_level)
        if warnings.showwarning == self._shown:
            warnings.showwarning = self._show
        self._handler.close()
        self._handler = None
