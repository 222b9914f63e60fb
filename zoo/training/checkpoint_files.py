"""Checkpoint files: written aside, synced and renamed; verified before use; never unpickled."""

from __future__ import annotations

import hashlib
import logging
import pickle
import shutil
import zipfile
from pathlib import Path
from typing import Any, BinaryIO

import torch

from zoo.atomic import TEMPORARY_MARK, write_atomic

log = logging.getLogger(__name__)

HASH_SUFFIX = ".sha256"


class _HashingFile:
    """A write-only view of a file that hashes what passes through, so that a checkpoint is read only once."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.sha256 = hashlib.sha256()

    def write(self, data: Any) -> int:
        self.sha256.update(data)
        return self._file.write(data)

    def flush(self) -> None:
        self._file.flush()


def save_checkpoint(checkpoint: dict[str, Any], path: Path) -> None:
    """Write a checkpoint atomically, with its sha256 in `<name>.sha256` beside it.

    Raises:
        OSError: when the disk is full (also where torch reports that as a RuntimeError); nothing saved before is lost.
    """
    digest = ""

    def write(file: BinaryIO) -> None:
        nonlocal digest
        hashing = _HashingFile(file)
        try:
            torch.save(checkpoint, hashing)  # type: ignore[arg-type]
        except RuntimeError as error:
            # torch's zip writer hides ENOSPC behind "enforce fail at inline_container.cc"
            free = shutil.disk_usage(path.parent).free
            if "inline_container" in str(error) or "PytorchStreamWriter" in str(error):
                raise OSError(f"could not write {path}: disk full? ({free / 2**20:.0f} MiB free)") from error
            raise
        digest = hashing.sha256.hexdigest()

    hash_file = path.with_name(path.name + HASH_SUFFIX)
    hash_file.unlink(missing_ok=True)  # a stale hash must never condemn the new file
    write_atomic(path, write)
    write_atomic(hash_file, lambda file: file.write(f"{digest}  {path.name}\n".encode()))


def load_checkpoint(path: Path, map_location: Any = "cpu") -> dict[str, Any]:
    """Read one of our checkpoints; holds tensors and primitives only, so nothing in it can execute.

    Raises:
        FileNotFoundError: when there is no such file.
        ValueError: when the file is torn, is not a checkpoint, or holds pickled objects.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no checkpoint at {path}")
    try:
        return torch.load(path, map_location=map_location, weights_only=True)
    except Exception as error:  # torch raises a dozen unrelated types here
        reason = str(error).splitlines()[0][:160] if str(error) else type(error).__name__
        if isinstance(error, pickle.UnpicklingError):  # torch would advise to run what the file holds
            reason = "it holds pickled objects, which could execute anything"
        raise ValueError(
            f"{path} cannot be read as a checkpoint of tensors and plain values ({reason}); "
            "for a file of another project use `zoo convert`"
        ) from error


def is_sound(path: Path, warn: bool = False) -> bool:
    """Whether a checkpoint is whole: its zip directory reads and its sha256, where noted, matches."""
    if path.is_dir():  # a sharded checkpoint: its folder was renamed last, so its presence means that it is whole
        return any(path.iterdir())
    reason = None
    try:
        with zipfile.ZipFile(path) as archive:
            if not archive.namelist():
                reason = "its zip directory is empty"
    except (zipfile.BadZipFile, OSError) as error:
        reason = str(error)
    hash_file = path.with_name(path.name + HASH_SUFFIX)
    if reason is None and hash_file.is_file():
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if hash_file.read_text(encoding="utf-8").split()[:1] != [digest]:
            reason = "its sha256 does not match"
    if reason and warn:
        log.warning("torn checkpoint %s (%s): using the one before it", path, reason)
    return reason is None


def find_checkpoints(folder: Path, pattern: str = "*.ckpt") -> list[Path]:
    """All checkpoints of a run folder, the most advanced first (by the step in the name, then by time)."""
    found = [path for path in folder.glob(pattern) if TEMPORARY_MARK not in path.name]
    return sorted(found, key=lambda path: (step_of(path), path.stat().st_mtime), reverse=True)


def step_of(path: Path) -> int:
    """The step (in batches) that a checkpoint's name carries, -1 when it has none."""
    for part in path.stem.split("-"):
        if part.startswith("step_") and part[5:].isdigit():
            return int(part[5:])
    return -1


def remove(path: Path) -> None:
    """Delete a checkpoint (file or shard folder) and its hash."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    path.with_name(path.name + HASH_SUFFIX).unlink(missing_ok=True)
