"""Checkpoints: written atomically with a hash, verified before use, never unpickled.

This module imports torch only where it reads or writes one, so that listing run folders stays fast.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import math
import pickle
import re
import shutil
import zipfile
from pathlib import Path
from typing import Any

from zoo.common.atomic_files import replace_atomically, write_atomic

log = logging.getLogger(__name__)

HASH_SUFFIX = ".sha256"
_DIGEST = re.compile(r"[0-9a-f]{64}\b")


def save_checkpoint(checkpoint: dict[str, Any], path: Path) -> None:
    """Write a checkpoint atomically, then its sha256 to `<name>.sha256`; without a hash its own checksums verify it.

    Raises an OSError when the disk is full, also where torch reports that as a RuntimeError; nothing saved before is
    lost.
    """
    import torch

    with replace_atomically(path) as temporary:
        try:
            with temporary.open("wb") as file:
                torch.save(checkpoint, file)
        except RuntimeError as error:
            # torch's zip writer hides ENOSPC behind "enforce fail at inline_container.cc"
            free = shutil.disk_usage(path.parent).free
            if "inline_container" in str(error) or "PytorchStreamWriter" in str(error):
                raise OSError(f"could not write {path}: disk full? ({free / 2**20:.0f} MiB free)") from error
            raise
        digest = file_digest(temporary)
        _hash_file(path).unlink(missing_ok=True)  # it belongs to the file that is replaced now
    write_atomic(_hash_file(path), lambda file: file.write(f"{digest}  {path.name}\n".encode()))


def _hash_file(path: Path) -> Path:
    return path.with_name(path.name + HASH_SUFFIX)


def file_digest(path: Path) -> str:
    """Return the sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def load_checkpoint(path: Path, map_location: Any = "cpu", mmap: bool = False) -> dict[str, Any]:
    """Read a checkpoint of the zoo: tensors (with `mmap` left on disk) and plain values only, so nothing can execute.

    Raises:
        FileNotFoundError: there is no such checkpoint.
        ValueError: the file is corrupt, is no checkpoint, has an older format, or holds pickled objects.
    """
    import torch

    from zoo.runs.model_description import check_weights, validate_description, validate_records

    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file; a checkpoint is one file (*.ckpt)")
    try:
        content = torch.load(path, map_location=map_location, weights_only=True, mmap=mmap)
    except (MemoryError, OSError):
        raise
    except Exception as error:  # damaged files make torch fail in many ways
        reason = str(error).rpartition("WeightsUnpickler error: ")[2].strip().partition("\n")[0]
        if isinstance(error, pickle.UnpicklingError):
            reason = f"it holds pickled objects: {reason}"
        raise ValueError(
            f"{path} cannot be read as a checkpoint of tensors and plain values ({reason:.300}); "
            "for a file of another project use `zoo convert`"
        ) from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds a {type(content).__name__}, and is no checkpoint")
    if "zoo" in content:
        try:
            validate_description(content["zoo"])
            validate_records(content.get("frozen", {}))
            check_weights(content)
        except ValueError as error:
            raise ValueError(f"{path} cannot be loaded: {error}") from error
    return content


def is_valid_checkpoint(path: Path) -> bool:
    """Tell whether a checkpoint is complete: by its sha256 where there is one, else by the checksums of its zip."""
    return _find_damage(path) is None


def _find_damage(path: Path) -> str | None:
    hash_file = _hash_file(path)
    match = _DIGEST.match(hash_file.read_text(encoding="utf-8", errors="replace")) if hash_file.is_file() else None
    if match is None:
        log.warning("%s: no hash in %s, so the checksums of the whole file are compared", path, hash_file.name)
    try:
        with zipfile.ZipFile(path) as archive:
            corrupt = archive.testzip() if match is None else None
            if corrupt or not archive.namelist():
                return f"its entry {corrupt} is damaged" if corrupt else "its zip is empty"
        return "its sha256 does not match" if match is not None and file_digest(path) != match[0] else None
    except (ValueError, zipfile.BadZipFile, OSError) as error:
        return str(error)


def find_checkpoint(path: Path) -> Path:
    """Find a checkpoint, or the newest valid one of a run folder; corrupt ones are logged and passed over.

    Raises:
        FileNotFoundError: there is none.
        ValueError: the file, or every checkpoint of the folder, is corrupt.
    """
    if path.is_file():
        if not is_valid_checkpoint(path):
            raise ValueError(f"{path} is corrupt: its contents do not match their checksums; use another one")
        return path
    if not path.is_dir():
        raise FileNotFoundError(f"no checkpoint or run folder at {path}")
    candidates = find_checkpoints(path)
    if not candidates:
        raise FileNotFoundError(f"no checkpoint (*.ckpt) in the folder {path}")
    for candidate in candidates:
        if (reason := _find_damage(candidate)) is None:
            return candidate
        log.warning("corrupt checkpoint %s (%s): using the one before it", candidate, reason)
    raise ValueError(f"every checkpoint in {path} is corrupt: {', '.join(each.name for each in candidates)}")


def find_checkpoints(folder: Path, pattern: str = "*.ckpt") -> list[Path]:
    """List the checkpoints of a run folder, the most advanced first (by the step in the name, then by time).

    Of one step, the best checkpoints come last: theirs may be a validation between accumulated batches.
    Names that cannot be printed (other bytes than UTF-8) are left out.
    """
    entries = []
    for path in folder.glob(pattern):
        if path.name.isprintable() and path.is_file():
            with contextlib.suppress(FileNotFoundError):  # deleted just now
                entries.append((parse_step(path), not path.name.startswith("best-"), path.stat().st_mtime, path))
    return [path for *_, path in sorted(entries, reverse=True)]


def best_checkpoint(folder: Path, mode: str) -> Path | None:
    """Return the best of a run folder's best checkpoints by the score in the name; `mode` is "min" or "max"."""
    scored = [path for path in find_checkpoints(folder, "best-step_*.ckpt") if not math.isnan(parse_score(path))]
    return (min if mode == "min" else max)(scored, key=parse_score, default=None)


def parse_step(path: Path) -> int:
    """Return the step (in batches) in a checkpoint's name, -1 without one."""
    match = re.search(r"(?:^|-)step_(\d+)(?:-|$)", path.stem)
    return int(match[1]) if match else -1


def read_step(path: Path) -> int:
    """Return the step of a checkpoint: that of its name, or of its content where it was renamed."""
    step = parse_step(path)
    return step if step >= 0 else int(load_checkpoint(path, mmap=True).get("global_step", 0))


def parse_score(path: Path) -> float:
    """Return the metric value in the name of a best checkpoint, NaN without one."""
    try:
        return float(path.name.removesuffix(".ckpt").split("-", 2)[2])
    except (IndexError, ValueError):
        return math.nan


def delete_checkpoint(path: Path) -> None:
    """Delete a checkpoint and its hash."""
    path.unlink(missing_ok=True)
    _hash_file(path).unlink(missing_ok=True)
