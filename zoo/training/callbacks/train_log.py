"""`train.log`: what zoo, Lightning and `warnings` report, in a file that survives the terminal."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import lightning as L

from zoo.runs.run_folder import run_folder

LOG_NAME = "train.log"
LOGGERS = ("zoo", "lightning.pytorch", "lightning.fabric", "py.warnings")

log = logging.getLogger(__name__)


class _LogFile(logging.FileHandler):
    """A log file that loses lines on a full disk, where Python's prints a traceback for each."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, encoding="utf-8")
        self.setLevel(logging.INFO)
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s"))

    def handleError(self, record: logging.LogRecord) -> None:
        """Pass over what the disk does not take."""
        if not isinstance(sys.exception(), OSError):
            super().handleError(record)

    def close(self) -> None:
        """Close, whether or not the last lines could be written."""
        with contextlib.suppress(OSError):
            super().close()


@contextlib.contextmanager
def log_to_file(path: Path, names: Sequence[str] = LOGGERS) -> Iterator[None]:
    """Append what the loggers of these names report to a file."""
    handler, zoo_logger = _LogFile(path), logging.getLogger("zoo")
    level = zoo_logger.level
    zoo_logger.setLevel(min(zoo_logger.getEffectiveLevel(), handler.level))  # a host program's may be higher
    for name in names:
        logging.getLogger(name).addHandler(handler)
    try:
        yield
    finally:
        for name in names:
            logging.getLogger(name).removeHandler(handler)
        zoo_logger.setLevel(level)
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

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        """Write what ended the run, and close: Lightning calls no teardown hook after an exception."""
        name, extra = type(exception).__name__, {"terminal": False}
        if isinstance(exception, Exception):
            log.error("ended by %s", name, exc_info=exception, extra=extra)
        else:  # a signal or Ctrl-C: its traceback is of no use
            log.warning("ended by %s %s", name, exception, extra=extra)
        self._stack.close()

    def teardown(self, *_: Any, **__: Any) -> None:
        """Close the file."""
        self._stack.close()
