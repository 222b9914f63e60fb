"""What this machine computes on: devices, their memory, and the memory that this process uses."""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

if TYPE_CHECKING:
    import torch

Verbosity = Literal["quiet", "normal", "verbose"]
VERBOSITY_VARIABLE = "ZOO_VERBOSITY"


@dataclass(frozen=True)
class Device:
    """One device that torch can use.

    Args:
        name: torch's name, `cuda:0`; AMD devices are called cuda as well.
        description: the maker's name.
        backend: "CPU", "CUDA 13.0", "ROCm 6.4" or "MPS".
    """

    name: str
    description: str
    backend: str
    memory_bytes: int


def list_devices() -> list[Device]:
    """List the CPU and every accelerator that torch sees."""
    import torch

    found = [Device("cpu", cpu_name(), "CPU", total_memory_bytes())]
    if torch.cuda.is_available():
        backend = f"ROCm {torch.version.hip}" if torch.version.hip else f"CUDA {torch.version.cuda}"
        for index in range(torch.cuda.device_count()):
            properties = torch.cuda.get_device_properties(index)
            found.append(Device(f"cuda:{index}", properties.name, backend, properties.total_memory))
    if torch.backends.mps.is_available():
        found.append(Device("mps", platform.machine(), "MPS", torch.mps.recommended_max_memory()))
    return found


def describe_device(device: torch.device) -> str:
    """Name a device for people, `cuda:0 (NVIDIA H100)`."""
    import torch

    if device.type == "cuda":
        return f"{device} ({torch.cuda.get_device_name(device)})"
    return f"{device} ({cpu_name()})" if device.type == "cpu" else str(device)


def peak_memory_bytes(device: torch.device) -> int:
    """Return the most memory that this process held so far.

    Args:
        device: where; on CUDA and ROCm the allocator's peak, on MPS its present use (it keeps no peak), on the CPU the
            process's peak resident size.

    Returns:
        Bytes; 0 when the system does not tell.
    """
    import torch

    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if device.type == "mps":
        return torch.mps.driver_allocated_memory()
    return peak_resident_bytes()


def peak_resident_bytes() -> int:
    """Return the process's peak resident size in bytes; 0 where the system does not tell (Windows)."""
    if sys.platform == "win32":
        return 0
    if os.path.exists("/proc/self/status"):  # unlike getrusage, it does not begin at the peak of the parent process
        with open("/proc/self/status", encoding="ascii") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM:"))
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # macOS counts bytes, others KiB (getrusage(2) of each).
    return peak if platform.system() == "Darwin" else peak * 1024


def total_memory_bytes() -> int:
    """Return the machine's memory, or the container's limit where that is lower; 0 when unknown."""
    if sys.platform == "win32":
        return 0
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return 0
    for limit_file in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            with open(limit_file, encoding="ascii") as file:
                total = min(total, int(file.read()))
        except (OSError, ValueError):
            continue
    return total


def free_memory_bytes() -> int:
    """Return the memory that processes may still take, within the container's limit too; a guess without /proc."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            free = next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return total_memory_bytes() // 2
    group = Path("/sys/fs/cgroup")
    for files in (("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes")):
        try:
            most, now = (int((group / name).read_text(encoding="ascii")) for name in files)
            free = min(free, max(0, most - now))
        except (OSError, ValueError):
            continue
    return free


def available_cores() -> int:
    """Return the cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_name() -> str:
    """Return the processor's name as the system reports it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def describe_machine() -> dict[str, Any]:
    """What the figures depend on: processor, cores, threads, memory, load, versions."""
    import lightning
    import torch

    return {
        "processor": cpu_name(),
        "cores": available_cores(),
        "torch_threads": torch.get_num_threads(),
        "memory_gib": round(total_memory_bytes() / 2**30, 1),
        "load_average": [round(load, 2) for load in os.getloadavg()] if hasattr(os, "getloadavg") else None,
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "lightning": lightning.__version__,
    }


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent dies; for `preexec_fn`, does nothing outside of Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


# The variables in which launchers give a process its rank and the number of processes: torchrun and accelerate, Open
# MPI, LSF, MPICH, srun. A batch script and a shell of salloc have a SLURM_PROCID, too, but are no task of a step.
LAUNCHERS = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)


def process_rank() -> tuple[int, int]:
    """Return the rank of this process and the number of processes that a launcher started; 0 and 1 without one."""
    for rank, world_size in LAUNCHERS:
        if rank in os.environ and world_size in os.environ:
            return int(os.environ[rank]), int(os.environ[world_size])
    return 0, 1


# The variables in which they tell a process its number on its host.
LOCAL_RANKS = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID")


def local_device(device: str) -> torch.device:
    """The device of that name; `cuda` is each process's own where several were started."""
    import torch

    if device != "cuda":
        return torch.device(device)
    rank = int(next((os.environ[name] for name in LOCAL_RANKS if name in os.environ), "0"))
    return torch.device("cuda", rank % max(1, torch.cuda.device_count()))  # a task of srun may see its own GPU alone


def verbosity() -> Verbosity:
    """Return how much a command prints, as set by its options: `quiet` leaves warnings and errors only.

    Raises:
        ValueError: for another word.
    """
    word = os.environ.get(VERBOSITY_VARIABLE) or "normal"
    for known in get_args(Verbosity):
        if word == known:
            return known
    raise ValueError(f"{VERBOSITY_VARIABLE} is {word!r}, expected one of {', '.join(get_args(Verbosity))}")
