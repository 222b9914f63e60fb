"""`zoo doctor`."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from zoo.cli.recipes import WrongNameError, config_files, find_recipe
from zoo.common.environment import available_cores, cpu_name, list_devices, total_memory_bytes
from zoo.training.errors import EXTRAS

GIB = 2**30
# Below this a run of the middle-sized recipes cannot keep its last two checkpoints and a best one.
LOW_DISK_BYTES = 5 * GIB
VERSIONS = "torch torchaudio lightning jsonargparse transformers peft soundfile soxr safetensors numpy wandb".split()


class Check(NamedTuple):
    """One row of the report: `status` is "ok", "warning" or "FAILED"."""

    subject: str
    status: str
    detail: str


def main(*recipe: str, root: Path = Path("runs")) -> int:
    """Report on this machine and installation, or try a recipe: zoo doctor RECIPE.

    Args:
        *recipe: a recipe to build, train for one step, save, load and predict with, and options of `zoo fit`.
        root: the folder that runs are written to.

    Returns:
        0, or 1 when something essential fails.

    Raises:
        ValueError: an unknown recipe, or options without one.
    """
    paths = [find_recipe(name) for name in config_files(recipe)]
    if recipe and not paths:
        raise WrongNameError("doctor: name the recipe to try")
    checks = [*check_versions(), *check_devices(), *check_machine(root)]
    checks += check_recipe(recipe, paths[0]) if paths else ()
    width = max(len(check.subject) for check in checks)
    for check in checks:
        print(f"{check.subject:<{width}}  {check.status:<7}  {check.detail}")
    failed = [check.subject for check in checks if check.status == "FAILED"]
    print(f"failed: {', '.join(failed)}" if failed else "everything essential works")
    return int(bool(failed))


def check_versions() -> Iterator[Check]:
    """Report versions and extras; torchaudio must be of torch's minor version, whose private libraries it loads."""
    torch_minor: list[str] = []
    for name in VERSIONS:
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            yield Check(name, "FAILED", "not installed")
            continue
        minor = version.split(".")[:2]
        torch_minor = minor if name == "torch" else torch_minor
        if name == "torchaudio" and minor != torch_minor:
            version += f"; torch is {'.'.join(torch_minor)}, the minor versions must be equal"
        yield Check(name, "FAILED" if ";" in version else "ok", version)
    for extra, modules in EXTRAS.items():
        missing = [module for module in modules if importlib.util.find_spec(module) is None]
        without = f"without {', '.join(missing)}; pip install 'zoo[{extra}]'"
        yield Check(f"extra [{extra}]", "ok", without if missing else f"installed: {', '.join(modules)}")


def check_devices() -> Iterator[Check]:
    """Compute a small matrix product on each device."""
    import torch

    for device in list_devices():
        detail = f"{device.description}, {device.backend}, {device.memory_bytes / GIB:.1f} GiB"
        try:
            ones = torch.ones(4, 4, device=device.name)
            is_right = float((ones @ ones).sum()) == 64.0
            yield Check(device.name, "ok" if is_right else "FAILED", detail)
        except RuntimeError as error:
            yield Check(device.name, "FAILED", f"{detail}; {' '.join(str(error).split())[:200]}")
    if not torch.cuda.is_available() and not torch.backends.mps.is_available():
        gpus = f"CUDA {torch.version.cuda}" if torch.version.cuda else f"ROCm {torch.version.hip}"
        target = gpus if torch.version.cuda or torch.version.hip else "the CPU only"
        yield Check("accelerator", "warning", f"none visible (torch is built for {target}); runs use the CPU")


def check_machine(root: Path) -> Iterator[Check]:
    """Report Python, processor, communication of processes, convolutions on GPUs, audio formats and free space."""
    import torch
    import torch.distributed as dist

    yield Check("python", "ok", f"{platform.python_version()} on {platform.platform()}")
    threads, memory = os.environ.get("OMP_NUM_THREADS", "unset"), f"{total_memory_bytes() / GIB:.1f} GiB"
    yield Check("cpu", "ok", f"{available_cores()} usable cores, {memory}, OMP_NUM_THREADS {threads}, {cpu_name()}")
    is_hip, has_gpu = bool(torch.version.hip), torch.cuda.is_available()
    if has_gpu:
        note = "; MIOPEN_FIND_MODE=2 shortens first steps" if is_hip else ""
        yield Check("MIOpen" if is_hip else "cuDNN", "ok", f"{torch.backends.cudnn.version()}{note}")
    gloo, nccl = (dist.is_available() and check() for check in (dist.is_gloo_available, dist.is_nccl_available))
    answer = {True: "yes", False: "no"}
    detail = f"gloo (CPU) {answer[gloo]}, {'rccl' if is_hip else 'nccl'} (GPU) {answer[nccl]}"
    yield Check("distributed", "ok" if (nccl if has_gpu else gloo) else "warning", detail)
    try:
        import soundfile

        missing = [name for name in ("WAV", "FLAC", "OGG", "MP3") if name not in soundfile.available_formats()]
        detail = soundfile.__libsndfile_version__ + (f", without {', '.join(missing)}" if missing else "")
        yield Check("libsndfile", "warning" if missing else "ok", detail)
    except (ImportError, OSError) as error:
        yield Check("libsndfile", "FAILED", str(error))
    root = root.absolute()
    folder = next(each for each in (root, *root.parents) if each.exists())
    if folder.is_dir() and os.access(folder, os.W_OK):
        free = shutil.disk_usage(folder).free
        yield Check("disk", "ok" if free >= LOW_DISK_BYTES else "warning", f"{free / GIB:.1f} GiB free for {root}")
    else:
        yield Check("disk", "FAILED", f"{folder} is not a writable folder; set trainer.default_root_dir")


def check_recipe(fit: Sequence[str], config: Path) -> Iterator[Check]:
    """Build a recipe, train one step, save, load and predict once, in a temporary folder; ends at the first failure."""
    from zoo.cli.log_filters import quiet_output
    from zoo.cli.trainer import run
    from zoo.runs.load import load
    from zoo.runs.run_folder import has_config_file

    source_run = config.parent if has_config_file(config) and any(config.parent.glob("*.ckpt")) else None
    with tempfile.TemporaryDirectory(prefix="zoo-trial-") as folder, quiet_output():
        root = Path(folder) / "run"
        limits = ["--trainer.max_steps=1", "--trainer.limit_val_batches=1", "--trainer.num_sanity_val_steps=0"]
        command = [*fit, f"--trainer.default_root_dir={root}", *limits]
        stages = {
            "build, one step, save": lambda: run("fit", command, source_run),
            "load": lambda: type(load(root)).__name__,
            "predict": lambda: load(root).dry_run(),
        }
        for name, stage in stages.items():
            try:
                yield Check(f"recipe: {name}", "ok", str(stage() or "ok"))
            except (Exception, SystemExit) as error:
                yield Check(f"recipe: {name}", "FAILED", " ".join(str(error).split()) or type(error).__name__)
                return
