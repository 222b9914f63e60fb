"""`zoo doctor`."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from zoo.common.checks import check_within
from zoo.training.errors import EXTRAS

if TYPE_CHECKING:
    from rich.table import Table

GIB = 2**30
# Below this a run of the middle-sized recipes cannot keep its last two checkpoints and a best one.
LOW_DISK_BYTES = 5 * GIB
VERSIONS = "torch torchaudio lightning jsonargparse transformers peft soundfile soxr safetensors numpy wandb".split()


class Check(NamedTuple):
    """One row of the report: `status` is "ok", "warning" or "FAILED"."""

    subject: str
    status: str
    detail: str


def main(config: Path | None = None, port: int = 29500, root: Path = Path("runs")) -> int:
    """Report on this machine and installation; with --config try a recipe for one step.

    Args:
        config: a recipe to build, train for one step, save, load and predict with.
        port: the port that the processes of a distributed run meet at (MASTER_PORT).
        root: the folder that runs are written to.

    Returns:
        0, or 1 when something essential fails.

    Raises:
        FileNotFoundError: there is no such recipe.
    """
    if config is not None and not config.is_file():
        raise FileNotFoundError(f"{config}: no such recipe; `zoo list` names them")
    checks = [
        *system_checks(),
        *version_checks(),
        *device_checks(),
        *backend_checks(),
        audio_check(),
        *extra_checks(),
        disk_check(root),
        port_check(port),
        hub_check(),
    ]
    if config is not None:
        from zoo.cli.trainer import dry_run

        for name, passed, detail in dry_run(config):
            checks.append(Check(f"recipe: {name}", "ok" if passed else "FAILED", detail))
    from rich.console import Console

    Console().print(_table(checks))
    failed = [check.subject for check in checks if check.status == "FAILED"]
    print(f"failed: {', '.join(failed)}" if failed else "everything essential works")
    return int(bool(failed))


def system_checks() -> Iterator[Check]:
    """Python, operating system, processor and memory."""
    from zoo.common.environment import available_cores, cpu_name, total_memory_bytes

    yield Check("python", "ok", f"{platform.python_version()} on {platform.platform()}")
    memory = total_memory_bytes()
    threads = os.environ.get("OMP_NUM_THREADS", "unset")
    detail = f"{available_cores()} usable cores, {memory / GIB:.1f} GiB, OMP_NUM_THREADS {threads}, {cpu_name()}"
    yield Check("cpu", "ok", detail)


def version_checks() -> Iterator[Check]:
    """Installed versions; torchaudio must be of torch's minor version, whose private libraries it loads."""
    detected = {}
    for name in VERSIONS:
        try:
            detected[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            yield Check(name, "FAILED", "not installed")
            continue
        status, note = "ok", ""
        if name == "torchaudio" and _minor(detected[name]) != _minor(detected.get("torch", "")):
            status, note = "FAILED", f"; torch is {detected.get('torch', 'missing')}, the minor versions must be equal"
        yield Check(name, status, detected[name] + note)


def device_checks() -> Iterator[Check]:
    """Devices: each must compute a small matrix product."""
    import torch

    from zoo.common.environment import list_devices

    for device in list_devices():
        detail = f"{device.description}, {device.backend}, {device.memory_bytes / GIB:.1f} GiB"
        try:
            ones = torch.ones(4, 4, device=device.name)
            right = float((ones @ ones).sum()) == 64.0
            yield Check(device.name, "ok" if right else "FAILED", detail if right else f"{detail}; computes wrongly")
        except RuntimeError as error:
            yield Check(device.name, "FAILED", f"{detail}; {' '.join(str(error).split())[:200]}")
    if not torch.cuda.is_available() and not torch.backends.mps.is_available():
        built = f"CUDA {torch.version.cuda}" if torch.version.cuda else f"ROCm {torch.version.hip}"
        for_what = built if torch.version.cuda or torch.version.hip else "the CPU only"
        yield Check("accelerator", "warning", f"none visible (torch is built for {for_what}); runs use the CPU")


def backend_checks() -> Iterator[Check]:
    """Libraries behind torch: convolutions, and how processes talk to one another."""
    import torch
    import torch.distributed as dist

    if torch.version.hip:
        yield Check("MIOpen", "ok", f"{torch.backends.cudnn.version()}; MIOPEN_FIND_MODE=2 shortens first steps")
    elif torch.cuda.is_available():
        yield Check("cuDNN", "ok", str(torch.backends.cudnn.version()))
    yield Check("oneDNN", "ok" if torch.backends.mkldnn.is_available() else "warning", "convolutions on the CPU")
    if not dist.is_available():
        yield Check("distributed", "warning", "this torch is built without it: one process only")
        return
    gloo, nccl = dist.is_gloo_available(), dist.is_nccl_available()
    expected = nccl if torch.cuda.is_available() else gloo
    library = "rccl" if torch.version.hip else "nccl"
    detail = f"gloo (CPU) {'yes' if gloo else 'no'}, {library} (GPU) {'yes' if nccl else 'no'}"
    yield Check("distributed", "ok" if expected else "warning", detail)


def audio_check() -> Check:
    """Audio formats that libsndfile reads and writes."""
    try:
        import soundfile
    except (ImportError, OSError) as error:
        return Check("libsndfile", "FAILED", str(error))
    expected = ("WAV", "FLAC", "OGG", "MP3")
    missing = [name for name in expected if name not in soundfile.available_formats()]
    detail = f"{soundfile.__libsndfile_version__}: {', '.join(name for name in expected if name not in missing)}"
    if missing:
        return Check("libsndfile", "warning", f"{detail}; missing {', '.join(missing)}")
    return Check("libsndfile", "ok", detail)


def extra_checks() -> Iterator[Check]:
    """Optional parts of the installation."""
    for extra, modules in EXTRAS.items():
        missing = [module for module in modules if importlib.util.find_spec(module) is None]
        if missing:
            detail = f"without {', '.join(missing)}; pip install 'zoo[{extra}]'"
        else:
            detail = f"installed: {', '.join(modules)}"
        yield Check(f"extra [{extra}]", "ok", detail)


def disk_check(root: Path) -> Check:
    """Free room where runs are written."""
    root = root.absolute()
    existing = next(folder for folder in (root, *root.parents) if folder.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        return Check("disk", "FAILED", f"{existing} is not a writable folder; set trainer.default_root_dir")
    free = shutil.disk_usage(existing).free
    status = "ok" if free >= LOW_DISK_BYTES else "warning"
    return Check("disk", status, f"{free / GIB:.1f} GiB free for {root}")


def port_check(port: int) -> Check:
    """Whether the meeting port of a distributed run is free."""
    check_within(1, 65535, port=port)
    with socket.socket() as probe:
        # What torch's store sets as well: a port in TIME_WAIT after a stopped run is usable.
        if sys.platform != "win32":
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            detail = f"{port} cannot be used ({error.strerror}); set MASTER_PORT to another one"
            return Check("port", "warning", detail)
    return Check("port", "ok", f"{port} is free")


def hub_check() -> Check:
    """Whether models may be downloaded; looks at settings only, nothing is contacted."""
    offline = os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")
    cache = os.environ.get("HF_HOME", "~/.cache/huggingface")
    return Check("hub", "ok", f"{'offline: models come from the cache' if offline else 'online'}, cache {cache}")


def _minor(version: str) -> list[str]:
    return version.split(".")[:2]


def _table(checks: list[Check]) -> Table:
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    table = Table("check", "status", "detail", box=box.SIMPLE, title=None)
    colours = {"ok": "green", "warning": "yellow", "FAILED": "red"}
    for check in checks:
        status = f"[{colours[check.status]}]{check.status}[/]"
        table.add_row(escape(check.subject), status, escape(check.detail))
    return table
