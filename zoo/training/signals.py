"""Stopping on a signal: the handler notes it, and the end of the step saves and exits with the right code."""

from __future__ import annotations

import logging
import signal
import sys
import threading
from types import FrameType
from typing import Any

log = logging.getLogger(__name__)

EXIT_CODES = {signal.SIGTERM: 143, signal.SIGINT: 130}
if sys.platform == "win32":  # Ctrl-Break
    EXIT_CODES |= {signal.SIGBREAK: 143}
else:
    EXIT_CODES |= {signal.SIGUSR1: 143, signal.SIGHUP: 143}


class Interrupted(SystemExit):
    """Raised at the end of a step after a signal; its code is the exit code of the process."""


class StopSignal:
    """Remembers the first stop signal. A second SIGINT exits at once, without saving."""

    def __init__(self) -> None:
        self.exit_code: int | None = None
        self._former: dict[int, Any] = {}  # handlers of the host program, by signal

    def install(self) -> None:
        """Handle the stop signals, in the main thread alone; a SIGHUP that `nohup` ignores stays ignored."""
        if threading.current_thread() is threading.main_thread():
            for number in EXIT_CODES:
                if number.name != "SIGHUP" or signal.getsignal(number) != signal.SIG_IGN:
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
                # Batch systems signal the loader workers, too; torch would raise for their death within the step.
                self._replace(signal.SIGCHLD, signal.SIG_DFL)
            self.exit_code = EXIT_CODES[signal.Signals(number)]
            message = (
                "%s: saving at the next step boundary, then leaving with exit code %d (Ctrl-C again leaves at once)"
            )
            log.warning(message, signal.Signals(number).name, self.exit_code)
