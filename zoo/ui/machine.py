"""How busy this machine is."""

from __future__ import annotations

import csv
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import psutil

from zoo.common.environment import available_cores, total_memory_bytes

CARDS = Path("/sys/class/drm")


@dataclass(frozen=True)
class MachineLoad:
    """Load of a device: percent of its computing, and its memory in bytes."""

    name: str
    percent: float
    used_bytes: int
    total_bytes: int


def read_machine() -> list[MachineLoad]:
    """Read the load of the processor since the last call, then that of each GPU that reports one."""
    memory = psutil.virtual_memory()
    total = total_memory_bytes() or memory.total  # a container's limit may be lower
    used = min(memory.total - memory.available, total)
    cpu = MachineLoad(f"CPU, {available_cores()} cores", psutil.cpu_percent(), used, total)
    return [cpu, *(read_nvidia() or read_amd())]


def read_nvidia() -> list[MachineLoad]:
    """Read the load of NVIDIA's GPUs from nvidia-smi."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    query = "--query-gpu=name,utilization.gpu,memory.used,memory.total"
    try:
        result = subprocess.run(
            [program, query, "--format=csv,noheader,nounits"], capture_output=True, text=True, timeout=5, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return parse_nvidia(result.stdout)


def parse_nvidia(text: str) -> list[MachineLoad]:
    """Parse rows of name, percent, MiB used and MiB in all; rows that lack a number are left out."""
    loads = []
    for row in csv.reader(text.splitlines(), skipinitialspace=True):
        try:
            name, percent, used, total = row
            loads.append(MachineLoad(name, float(percent), int(used) * 2**20, int(total) * 2**20))
        except ValueError:
            continue
    return loads


def read_amd(cards: Path = CARDS) -> list[MachineLoad]:
    """Read the load of AMD's GPUs from the files of the amdgpu driver."""
    loads = []
    for busy in sorted(cards.glob("card*/device/gpu_busy_percent")):
        try:
            used = int((busy.parent / "mem_info_vram_used").read_text())
            total = int((busy.parent / "mem_info_vram_total").read_text())
            loads.append(MachineLoad(f"AMD {busy.parent.parent.name}", float(busy.read_text()), used, total))
        except (OSError, ValueError):
            continue
    return loads
