"""What a run and this machine say of themselves: metrics, log, sounds and pictures, load."""

from __future__ import annotations

import csv
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import psutil

from zoo.common.hardware import total_memory_bytes, usable_cores
from zoo.runs.listing import LOG_NAME, media_of, tail
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


def log_of(run: Path, failed: bool) -> str:
    """What a run said last: train.log, and the console where there is none or where it failed."""
    log, console = tail(run / LOG_NAME), tail(run / CONSOLE_NAME, 20)
    if not log:
        return console
    return f"{log}\n\n--- console ---\n{console}" if failed and console else log


def last_media(run: Path) -> tuple[str, list[str]]:
    """The newest step folder of `media/` and the files in it that a browser can show; ("", []) without any."""
    for folder in media_of(run):
        names = sorted(path.name for path in folder.iterdir() if is_media(path.name))
        if names:
            return folder.name, names
    return "", []


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
    cores = usable_cores()
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
