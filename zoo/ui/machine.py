"""How busy this machine is."""

from __future__ import annotations

import contextlib
import csv
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import psutil

from zoo.common.environment import available_cores, free_memory_bytes, total_memory_bytes

CARDS = Path("/sys/class/drm")  # of the amdgpu driver
GIB = 2**30


@dataclass(frozen=True)
class MachineLoad:
    """Load of a device: percent of its computing, and its memory in bytes."""

    name: str
    percent: float
    used_bytes: int
    total_bytes: int

    def __str__(self) -> str:
        memory = f"{self.used_bytes / GIB:.1f} of {self.total_bytes / GIB:.1f} GiB"
        return f"{self.name}: {self.percent:.0f} %, {memory}"


def read_machine() -> list[MachineLoad]:
    """Read the load of the processor since the last call, then that of each GPU that reports one."""
    memory = psutil.virtual_memory()
    total = total_memory_bytes() or memory.total  # a container's limit may be lower
    free = free_memory_bytes() if sys.platform == "linux" else memory.available
    cpu = MachineLoad(f"CPU, {available_cores()} cores", psutil.cpu_percent(), max(0, total - free), total)
    return [cpu, *(read_nvidia() or read_amd())]


def read_nvidia() -> list[MachineLoad]:
    """Read the load of NVIDIA's GPUs from nvidia-smi."""
    query = "--query-gpu=index,name,utilization.gpu,memory.used,memory.total"
    try:
        table = subprocess.check_output(["nvidia-smi", query, "--format=csv,noheader,nounits"], text=True, timeout=5)
    except (OSError, subprocess.SubprocessError):
        return []
    loads = []
    for row in csv.reader(table.splitlines(), skipinitialspace=True):
        with contextlib.suppress(ValueError):  # a GPU that does not report a number
            index, name, percent, used, total = row
            loads.append(MachineLoad(f"{name} #{index}", float(percent), int(used) * 2**20, int(total) * 2**20))
    return loads


def read_amd() -> list[MachineLoad]:
    """Read the load of AMD's GPUs from the files of the amdgpu driver."""
    loads = []
    for busy in sorted(CARDS.glob("card*/device/gpu_busy_percent")):
        with contextlib.suppress(OSError, ValueError):
            used = int((busy.parent / "mem_info_vram_used").read_text())
            total = int((busy.parent / "mem_info_vram_total").read_text())
            loads.append(MachineLoad(f"AMD {busy.parent.parent.name}", float(busy.read_text()), used, total))
    return loads
