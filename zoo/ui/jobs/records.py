"""`process.json` of a run folder: which process trains or trained it, whose it is, and what waits for its turn."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psutil

from zoo.common.atomic_files import write_atomic
from zoo.common.journal import load_json
from zoo.ui.places import RECORD_NAME

_LARGEST = 2**20  # bytes


@dataclass(frozen=True)
class Record:
    """A run's last process, and the next one while that is queued.

    Args:
        pid: its number, which the system gives again to others; 0 before there was one.
        started: when it began, seconds since 1970.
        exit_code: None while it runs, or when nobody was there to see its end.
        stopping: whether the page asked it to stop.
        birth: tells it from all other processes, see `identity`; "" in records of former versions, which find none.
        owner: the session that asked for it; None in records of former versions.
        queued: since when it waits for its turn, seconds since 1970; None when nothing does.
        server: the identity of the server that will start it.
        configs: of the queued training; none for one that goes on from its checkpoint.
        changes: laid over these, YAML.
    """

    pid: int = 0
    started: float = 0.0
    command: list[str] = field(default_factory=list)
    exit_code: int | None = None
    stopping: bool = False
    birth: str = ""
    owner: str | None = None
    queued: float | None = None
    server: str = ""
    configs: list[str] = field(default_factory=list)
    changes: str = ""

    def __post_init__(self) -> None:
        """Refuse what is not of these kinds (TypeError), whoever wrote it."""
        texts = [self.birth, self.server, self.changes, self.owner or "", *self.command, *self.configs]
        numbers = [self.pid, self.started, self.exit_code or 0, self.queued or 0]
        if not (all(isinstance(text, str) for text in texts) and all(isinstance(n, int | float) for n in numbers)):
            raise TypeError("a record of other kinds of values")

    def process(self) -> psutil.Process | None:
        """The process while it runs."""
        return find_process(self.birth) if self.exit_code is None else None


def identity(pid: int) -> str:
    """What tells a process from all others, those that had or get its number included, whatever the clock is set to.

    Raises:
        psutil.Error: there is no such process.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        ticks = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[19].decode()
        return f"{pid} {boot} {ticks}"
    except OSError:  # no Linux, or no such process
        return f"{pid} {psutil.Process(pid).create_time():.2f}"


def find_process(birth: str) -> psutil.Process | None:
    """The process of an identity while it runs."""
    try:
        process = psutil.Process(int(birth.partition(" ")[0]))
        same = identity(process.pid) == birth
        return process if same and process.status() != psutil.STATUS_ZOMBIE else None
    except (psutil.Error, ValueError, OverflowError):
        return None


def read_record(folder: Path) -> Record | None:
    """Read a run folder's record; None when it has none that makes sense."""
    path = folder / RECORD_NAME
    try:
        if not path.is_file() or path.stat().st_size > _LARGEST:
            return None
        return Record(**load_json(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def write_record(folder: Path, record: Record) -> None:
    """Write a run folder's record."""
    text = json.dumps(asdict(record), indent=2)
    write_atomic(folder / RECORD_NAME, lambda file: file.write(text.encode()))
