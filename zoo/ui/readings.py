"""What a run and this machine say of themselves: metrics, log, sounds and pictures, load."""

from __future__ import annotations

import csv
import re
import shutil
import subprocess
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import psutil

from zoo.common.environment import available_cores, total_memory_bytes
from zoo.runs.run_folder import LOG_NAME, MEDIA_NAME
from zoo.runs.run_info import sample_folders, tail_lines
from zoo.ui.places import CONSOLE_NAME, check_name

GIB = 2**30
MEDIA_TYPES = {
    ".wav": "audio/wav",
    ".flac": "audio/flac",
    ".ogg": "audio/ogg",
    ".mp3": "audio/mpeg",
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".gif": "image/gif",
}
_CARDS = Path("/sys/class/drm")
_TABLE_CHARACTERS, _TABLE_ROWS, _CELL_CHARACTERS = 2**18, 100, 2000
_PROGRESS = "progress: step "
_RAISED = re.compile(r"^(?:[\w.]*\.)?\w*(?:Error|Exception|Interrupt): .*", re.MULTILINE)
Table = tuple[list[str], list[list[str]]]


def log_of(run: Path, failed: bool) -> str:
    """What a run said last: train.log, and the console where there is none or where it failed."""
    log, console = recent(run / LOG_NAME), recent(run / CONSOLE_NAME, 20)
    if not log:
        return console
    return f"{log}\n\n--- console ---\n{console}" if failed and console else log


def recent(path: Path, lines: int = 200) -> str:
    """The last lines of a text file, read once for all pages."""
    try:
        status = path.stat()
    except OSError:
        return ""
    return _tail(path, lines, status.st_mtime_ns, status.st_size)


@lru_cache(64)
def _tail(path: Path, lines: int, changed: int, size: int) -> str:
    return tail_lines(path, lines)


def why_failed(run: Path) -> str:
    """One line on what ended a run, which names the key to mend where its command did; "" when nothing tells."""
    console = recent(run / CONSOLE_NAME)
    if "error:" in console or _RAISED.search(console):
        said = [line for line in console.splitlines() if "error:" in line or _RAISED.match(line)][-1]
        return said.strip().removeprefix("zoo: error: ")
    raised = _RAISED.findall(recent(run / LOG_NAME).rpartition("ended by ")[2])
    return raised[-1] if raised else ""


@dataclass(frozen=True)
class Speed:
    """What a run last said of its speed; "" where it did not."""

    rate: str = ""
    left: str = ""


def speed_of(log: str) -> Speed:
    """Read the newest line of progress in train.log."""
    lines = [line for line in log.splitlines() if _PROGRESS in line]
    parts = lines[-1].split(_PROGRESS)[1].split(" · ") if lines else []
    rate = next((part for part in parts if part.endswith((" it/s", " s/it"))), "")
    return Speed(rate, next((part.removeprefix("ETA ") for part in parts if part.startswith("ETA ")), ""))


def steps_of(run: Path) -> list[str]:
    """Names of the step folders of `media/`, the oldest first."""
    return [folder.name for folder in reversed(sample_folders(run)) if re.fullmatch(r"step_\d+", folder.name)]


def samples_of(run: Path, step: str) -> tuple[list[str], dict[str, Table]]:
    """What a step folder of `media/` holds: names of sounds and pictures, and tables by name."""
    names, tables = [], {}
    for path in sorted((run / MEDIA_NAME / check_name(step)).glob("*")):
        if is_media(path.name):
            names.append(path.name)
        elif path.suffix == ".csv" and not path.is_symlink():
            tables[path.stem] = read_table(path)
    return names, tables


def read_table(path: Path) -> Table:
    """The columns and first rows of a csv file; cells are cut to what can be read on a page."""
    try:
        with path.open(newline="", encoding="utf-8", errors="replace") as file:
            text = file.read(_TABLE_CHARACTERS)
        lines = [[cell[:_CELL_CHARACTERS] for cell in line] for line in csv.reader(text.splitlines(keepends=True))]
    except (OSError, csv.Error):
        return [], []
    return (lines[0], lines[1 : _TABLE_ROWS + 1]) if lines else ([], [])


def is_media(name: str) -> bool:
    """Whether a file name is safe and of a kind that a browser plays or shows."""
    try:
        check_name(name)
    except ValueError:
        return False
    return Path(name).suffix.lower() in MEDIA_TYPES


@dataclass(frozen=True)
class Load:
    """How busy a device is.

    Args:
        percent: of its computing, 0 to 100.
    """

    name: str
    percent: float
    used_bytes: int
    total_bytes: int


def machine_load() -> list[Load]:
    """Load of the processor since the last call, and of each GPU that tells."""
    memory = psutil.virtual_memory()
    total = total_memory_bytes() or memory.total  # a container's limit may be lower
    cores = available_cores()
    cpu = Load(f"CPU, {cores} cores", psutil.cpu_percent(), min(memory.total - memory.available, total), total)
    return [cpu, *(nvidia_load() or amd_load())]


def nvidia_load() -> list[Load]:
    """NVIDIA's GPUs, as nvidia-smi sees them."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    query = "--query-gpu=name,utilization.gpu,memory.used,memory.total"
    try:
        answer = subprocess.run(
            [program, query, "--format=csv,noheader,nounits"], capture_output=True, text=True, timeout=5, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return parse_nvidia(answer.stdout)


def parse_nvidia(text: str) -> list[Load]:
    """Read nvidia-smi's rows of name, percent, MiB used and MiB in all; rows that lack a number are left out."""
    found = []
    for row in csv.reader(text.splitlines(), skipinitialspace=True):
        try:
            name, percent, used, total = row
            found.append(Load(name, float(percent), int(used) * 2**20, int(total) * 2**20))
        except ValueError:
            continue
    return found


def amd_load(cards: Path = _CARDS) -> list[Load]:
    """AMD's GPUs, as the kernel's amdgpu driver tells (`gpu_busy_percent`, `mem_info_vram_*`)."""
    found = []
    for busy in sorted(cards.glob("card*/device/gpu_busy_percent")):
        try:
            used = int((busy.parent / "mem_info_vram_used").read_text())
            total = int((busy.parent / "mem_info_vram_total").read_text())
            found.append(Load(f"AMD {busy.parent.parent.name}", float(busy.read_text()), used, total))
        except (OSError, ValueError):
            continue
    return found
