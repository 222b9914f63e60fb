"""The machine and this process: devices, memory, rank among processes that a launcher started, verbosity."""

from __future__ import annotations

import os
import platform
import re
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast, get_args

from zoo.common.checks import check_one_of

if TYPE_CHECKING:
    import torch

Verbosity = Literal["quiet", "normal", "verbose"]
VERBOSITY_VARIABLE = "ZOO_VERBOSITY"
# The variables in which launchers give a process its rank and the number of processes: torchrun and accelerate, Open
# MPI, LSF, MPICH, srun. A batch script and a shell of salloc have a SLURM_PROCID, too, but are no task of a step.
LAUNCHERS = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)
LOCAL_RANKS = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID")  # of a process on its host
# Parts of the messages of allocators (lower case); torch raises plain RuntimeErrors, too.
OUT_OF_GPU_MEMORY = ("out of memory", "cublas_status_alloc_failed", "cudnn_status_alloc_failed")
OUT_OF_CPU_MEMORY = ("defaultcpuallocator", "can't allocate memory", "cannot allocate memory")
OUT_OF_MEMORY = (*OUT_OF_GPU_MEMORY, *OUT_OF_CPU_MEMORY)
# A container's memory limit and use, and what of the use are cached files that the system drops before it runs short:
# files of control groups of version 2, then 1, and names in the last.
_CONTROL_GROUPS = Path("/sys/fs/cgroup")
_CONTAINER = (
    ("memory.max", "memory.current", "memory.stat", "inactive_file"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat", "total_inactive_file"),
)


class Device(NamedTuple):
    """One device that torch can use."""

    name: str  # torch's, `cuda:0`; AMD devices are called cuda as well
    description: str  # the maker's name
    backend: str  # "CPU", "CUDA 13.0", "ROCm 6.4" or "MPS"
    memory_bytes: int


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens at an address; OSError for a port that cannot be used."""
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise OSError(
            f"port {port} cannot be used at {host} ({error.strerror}): choose another with --port, or 0"
        ) from error


def list_devices() -> list[Device]:
    """List the CPU and every accelerator that torch sees."""
    import torch

    devices = [Device("cpu", cpu_name(), "CPU", total_memory_bytes())]
    if torch.cuda.is_available():
        backend = f"ROCm {torch.version.hip}" if torch.version.hip else f"CUDA {torch.version.cuda}"
        for index in range(torch.cuda.device_count()):
            properties = torch.cuda.get_device_properties(index)
            devices.append(Device(f"cuda:{index}", properties.name, backend, properties.total_memory))
    if torch.backends.mps.is_available():
        devices.append(Device("mps", platform.machine(), "MPS", torch.mps.recommended_max_memory()))
    return devices


def local_device(device: str) -> torch.device:
    """Return the device of that name; `cuda` is each process's own where several were started, `auto` a GPU if any."""
    import torch

    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    if device != "cuda":
        return torch.device(device)
    rank = int(next((os.environ[name] for name in LOCAL_RANKS if name in os.environ), "0"))
    return torch.device("cuda", rank % max(1, torch.cuda.device_count()))  # a task of srun may see its own GPU alone


def describe_device(device: torch.device) -> str:
    """Name a device for people, `cuda:0 (NVIDIA H100)`."""
    import torch

    if device.type == "cuda":
        return f"{device} ({torch.cuda.get_device_name(device)})"
    return f"{device} ({cpu_name()})" if device.type == "cpu" else str(device)


def peak_memory_bytes(device: torch.device) -> int:
    """Return the allocator's peak on CUDA and ROCm, its present use on MPS, on the CPU `peak_resident_bytes`."""
    import torch

    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return torch.mps.driver_allocated_memory() if device.type == "mps" else peak_resident_bytes()


def peak_resident_bytes() -> int:
    """Return the process's peak resident size in bytes; 0 where the system does not tell (Windows)."""
    if sys.platform == "win32":
        return 0
    if os.path.exists("/proc/self/status"):  # unlike getrusage, it does not begin at the peak of the parent process
        with open("/proc/self/status", encoding="ascii") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM:"))
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if platform.system() == "Darwin" else peak * 1024  # macOS counts bytes, others KiB


def total_memory_bytes() -> int:
    """Return the machine's memory, or the container's limit where that is lower; 0 when unknown."""
    if sys.platform == "win32":
        return 0
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return 0
    return min([total, *(_read_container(limit) for limit, *_ in _CONTAINER)])


def free_memory_bytes() -> int:
    """Return the memory that processes may still take, within the container's limit too; a guess without /proc."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            free = next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return total_memory_bytes() // 2
    for limit, use, statistics, cached in _CONTAINER:
        used = _read_container(use, 0) - _read_container(statistics, 0, cached)
        free = min(free, max(0, _read_container(limit) - used))
    return free


def _read_container(file: str, default: int = sys.maxsize, name: str = "") -> int:
    """Return the number in a file, or that behind a name at the beginning of a line."""
    try:
        text = (_CONTROL_GROUPS / file).read_text(encoding="ascii")
        return int(dict(line.split() for line in text.splitlines())[name] if name else text)
    except (OSError, ValueError, KeyError):  # "max" is no limit
        return default


def available_cores() -> int:
    """Return the cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_name() -> str:
    """Return the processor's name as the system reports it."""
    info = Path("/proc/cpuinfo").read_text(encoding="utf-8") if os.path.exists("/proc/cpuinfo") else ""
    match = re.search(r"^model name\s*: (.+)$", info, re.MULTILINE)
    return match[1].strip() if match else platform.processor() or platform.machine()


def describe_machine() -> dict[str, Any]:
    """Collect what measurements depend on: processor, cores, threads, memory, load, versions."""
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


def process_rank() -> tuple[int, int]:
    """Return the rank of this process and the number of processes that a launcher started; 0 and 1 without one."""
    for rank, world_size in LAUNCHERS:
        if rank in os.environ and world_size in os.environ:
            return int(os.environ[rank]), int(os.environ[world_size])
    return 0, 1


def verbosity() -> Verbosity:
    """Return how much a command prints, as set by its options: `quiet` leaves warnings and errors only."""
    word: Any = os.environ.get(VERBOSITY_VARIABLE) or "normal"
    check_one_of(get_args(Verbosity), **{VERBOSITY_VARIABLE: word})
    return cast(Verbosity, word)


@contextmanager
def exit_on_sigterm() -> Iterator[None]:
    """Raise SystemExit(143) on SIGTERM, so that what is under way can clean up; the former handler comes back."""
    previous = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
