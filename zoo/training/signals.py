"""Stopping on a signal: the handler only notes it; the step boundary saves and leaves with the right exit code."""

from __future__ import annotations

import logging
import signal
import sys
import threading
from types import FrameType
from typing import Any

log = logging.getLogger(__name__)

EXIT_CODES = {signal.SIGTERM: 143, signal.SIGINT: 130}
if sys.platform == "win32":  # Ctrl-Break, and what the page sends there
    EXIT_CODES |= {signal.SIGBREAK: 143}
else:
    EXIT_CODES |= {signal.SIGUSR1: 143, signal.SIGHUP: 143}


class Interrupted(SystemExit):
    """Raised at a step boundary after a signal; its code is the exit code of the process."""


class StopSignal:
    """Remembers the first stop signal. A second SIGINT stops at once, without saving."""

    def __init__(self) -> None:
        self.exit_code: int | None = None
        self._former: dict[int, Any] = {}  # handlers of the host program, by signal

    def install(self) -> None:
        """Handle the stop signals (only in the main thread, where Python allows it)."""
        if threading.current_thread() is threading.main_thread():
            for number in _stop_signals():
                self._replace(number, self._note)

    def uninstall(self) -> None:
        """Restore the handlers that the first `install` found."""
        if threading.current_thread() is threading.main_thread():
            for number, handler in self._former.items():
                signal.signal(number, handler)
            self._former = {}

    def _replace(self, number: int, handler: Any) -> None:
        former = signal.signal(number, handler)
        if former is not None:  # None: not installed from Python
            self._former.setdefault(number, former)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.exit_code is not None and number == signal.SIGINT:
            raise Interrupted(self.exit_code)  # Lightning would turn a KeyboardInterrupt into exit code 1
        if self.exit_code is None:
            if hasattr(signal, "SIGCHLD"):
                # Batch systems signal the loader workers as well; torch would raise for their death within the step.
                self._replace(signal.SIGCHLD, signal.SIG_DFL)
            self.exit_code = EXIT_CODES[signal.Signals(number)]
            log.warning(
                "%s: saving at the next step boundary, then leaving with exit code %d (Ctrl-C again leaves at once)",
                signal.Signals(number).name,
                self.exit_code,
            )


def _stop_signals() -> list[signal.Signals]:
    """The stop signals; a hang-up that `nohup` has the process ignore is none."""
    return [each for each in EXIT_CODES if each.name != "SIGHUP" or signal.getsignal(each) != signal.SIG_IGN]


def ignore_signals_in_worker(worker_id: int) -> None:
    """`worker_init_fn` of data loaders: a worker leaves the stop signals to the main process.

    SIGTERM stays as torch sets it: the main process ends a worker by it.
    """
    for number in EXIT_CODES:
        if number != signal.SIGTERM:
            signal.signal(number, signal.SIG_IGN)
