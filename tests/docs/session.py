"""A session at a terminal of 100 columns: the commands of docs/terminal.md and what the screen then shows.

`python -m tests.docs.session` prints the blocks of the page.
"""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import NamedTuple

import pyte

from tests.harness import REPOSITORY, environment

COLUMNS, LINES = 100, 400
PAGE = REPOSITORY / "docs/terminal.md"
RUN = "runs/flow/smoke/first"


class Step(NamedTuple):
    """A command, and the text at whose appearance Ctrl-C is pressed."""

    command: str
    interrupt_at: str = ""


STEPS = (
    Step(f"zoo fit flow/smoke --trainer.max_steps 2000 --trainer.default_root_dir {RUN}", " · val/loss"),
    Step(f"zoo fit --ckpt_path {RUN} --trainer.max_steps 60"),
    Step(f"zoo runs {RUN}"),
    Step("zoo fit flow/smoek"),
    Step("zoo fit flow/smoke --data.batch_sise 8"),
    Step("zoo fit flow/smoke --model.net zoo.flow.UNett"),
    Step("zoo evaluate flw"),
)


def screen(step: Step, folder: Path) -> list[str]:
    """Run a command in a terminal; returns the lines that it leaves, without those at the end that are empty."""
    terminal = pyte.Screen(COLUMNS, LINES)
    stream = pyte.ByteStream(terminal)
    actual, reference = pty.openpty()
    fcntl.ioctl(reference, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    environ = {**environment(), "TERM": "xterm", "COLUMNS": str(COLUMNS), "LINES": str(LINES), "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-m", *step.command.split()]
    process = subprocess.Popen(
        words, cwd=folder, env=environ, stdin=reference, stdout=reference, stderr=reference, start_new_session=True
    )
    os.close(reference)
    pending, ends = step.interrupt_at, time.monotonic() + 300
    while time.monotonic() < ends:
        ready, _, _ = select.select([actual], [], [], 0.2)
        try:
            data = os.read(actual, 65536) if ready else b""
        except OSError:  # the terminal closes with its last process
            break
        stream.feed(data)
        if pending and any(pending in line for line in terminal.display):
            pending = ""
            process.send_signal(signal.SIGINT)
        if not data and process.poll() is not None:
            break
    process.kill()
    process.wait()
    os.close(actual)
    assert not terminal.cursor.hidden
    lines = [line.rstrip() for line in terminal.display]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def masked(lines: list[str]) -> list[str]:
    """The same without what differs from run to run: numbers, times, the bar's length, and how they are spaced."""
    text = [re.sub(r"[━╸╺]+", "━", line) for line in lines]
    text = [re.sub(r"ETA [\d: a-z]*", "ETA 0 ", re.sub(r"\d+(?:[.:,]\d+)*(?:e-?\d+)?", "0", line)) for line in text]
    text = [re.sub(r"(resumed from .*/)best-(step_0)-0", r"\1\2", line) for line in text]  # the same, by either name
    text = [re.sub(r"\b0 (?:s|min|h)\b(?: 0 (?:s|min)\b)?", "0 s", line) for line in text]
    text = [re.sub(r"^(device\s+)cpu \(.*\)$", r"\1(cpu)", line) for line in text]
    return [re.sub(r"\s+", " ", line).strip() for line in text if line.strip()]


def main() -> None:
    """Print the page's blocks."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        for step in STEPS:
            print("```text")
            print(f"$ {step.command}")
            print("\n".join(screen(step, Path(folder))))
            print("```\n")


if __name__ == "__main__":
    main()
