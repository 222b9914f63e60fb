"""Checkpoints: written aside, synced and renamed; verified before use; never unpickled.

Imported without torch by what only looks at run folders.
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
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

from zoo.common.atomic_files import TEMPORARY_MARK, replace_atomically, write_atomic

log = logging.getLogger(__name__)

HASH_SUFFIX = ".sha256"
_DIGEST = re.compile("[0-9a-f]{64}")


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
    """Write a checkpoint atomically, after its sha256 in `<name>.sha256` beside it.

    Raises:
        OSError: when the disk is full (also where torch reports that as a RuntimeError); nothing saved before is lost.
    """
    import torch

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

    hash_file = _hash_file(path)
    former = (_noted(hash_file) or [_sha256(path)]) if path.is_file() else []
    with replace_atomically(path) as temporary:
        with temporary.open("wb") as file:
            write(file)
        # noted before the file is there, and beside that of the file it replaces: a kill leaves none without a hash
        _note(hash_file, [digest, *former])
    if former:
        _note(hash_file, [digest])


def _hash_file(path: Path) -> Path:
    return path.with_name(path.name + HASH_SUFFIX)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _note(hash_file: Path, digests: Sequence[str]) -> None:
    lines = "".join(f"{digest}  {hash_file.name.removesuffix(HASH_SUFFIX)}\n" for digest in digests)
    write_atomic(hash_file, lambda file: file.write(lines.encode()))


def _noted(hash_file: Path) -> list[str]:
    """The hashes that a checkpoint may have: several after a kill in a renaming, none if they cannot be read."""
    try:
        digests = [line.split()[0] for line in hash_file.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, ValueError):
        return []
    return digests if all(_DIGEST.fullmatch(digest) for digest in digests) else []


def load_checkpoint(path: Path, map_location: Any = "cpu", mapped: bool = False) -> dict[str, Any]:
    """Read one of our checkpoints; holds tensors and primitives only, so nothing in it can execute.

    Parts are described under their public names, also in a file that has former ones.

    Args:
        mapped: leave tensors on disk until they are used, for a look at the other values.

    Raises:
        FileNotFoundError: when there is no such checkpoint.
        ValueError: when the file is torn, is not a checkpoint, or holds pickled objects.
    """
    import torch

    from zoo.runs.descriptions import check_weights, described

    path = Path(path)
    if path.is_dir():
        raise ValueError(f"{path} is a folder; a checkpoint is one file")
    if not path.is_file():
        raise FileNotFoundError(f"no checkpoint at {path}")
    try:
        content = torch.load(path, map_location=map_location, weights_only=True, mmap=mapped)
        if isinstance(content, dict) and "zoo" in content:
            content["zoo"] = described(content["zoo"])
            check_weights(content)
        return content
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


def is_sound(path: Path, warn: bool = False) -> bool:
    """Whether a checkpoint is whole: its sha256, where noted, matches, else every entry of the zip its own checksum."""
    reason = _file_damage(path)
    if reason and warn:
        log.warning("torn checkpoint %s (%s): using the one before it", path, reason)
    return reason is None


def _file_damage(path: Path) -> str | None:
    hash_file = _hash_file(path)
    digests = _noted(hash_file)
    if not digests:
        what = f"its hash file {hash_file.name} cannot be read" if hash_file.exists() else "no hash file beside it"
        log.warning("%s: %s, so the whole file is read and its own checksums are compared", path, what)
    try:
        with zipfile.ZipFile(path) as archive:
            broken = None if digests else archive.testzip()
            reason = f"its entry {broken} is damaged" if broken else None if archive.namelist() else "its zip is empty"
    except (ValueError, zipfile.BadZipFile, OSError) as error:
        reason = str(error)
    if reason is None and digests and _sha256(path) not in digests:
        reason = "its sha256 does not match"
    return reason


def find_checkpoints(folder: Path, pattern: str = "*.ckpt") -> list[Path]:
    """All checkpoints of a run folder, the most advanced first (by the step in the name, then by time)."""
    found = []
    for path in folder.glob(pattern):
        if TEMPORARY_MARK not in path.name and not path.is_dir():
            with contextlib.suppress(FileNotFoundError):  # pruned just now, or a link to nothing
                found.append((step_of(path), path.stat().st_mtime, path))
    return [path for _, _, path in sorted(found, reverse=True)]


def step_of(path: Path) -> int:
    """The step (in batches) that a checkpoint's name carries, -1 when it has none."""
    for part in path.stem.split("-"):
        if part.startswith("step_") and part[5:].isdigit():
            return int(part[5:])
    return -1


def score_of(path: Path) -> float:
    """The metric value in the name of a best checkpoint, NaN when it has none."""
    try:
        return float(path.name.removesuffix(".ckpt").split("-", 2)[2])
    except (IndexError, ValueError):
        return math.nan


def best_checkpoint(folder: Path, mode: str) -> Path | None:
    """The best of a run folder's best checkpoints.

    Args:
        mode: "min" or "max".
    """
    sign = 1.0 if mode == "min" else -1.0
    scored = [path for path in find_checkpoints(folder, "best-step_*.ckpt") if not math.isnan(score_of(path))]
    return min(scored, key=lambda path: sign * score_of(path), default=None)


def remove(path: Path) -> None:
    """Delete a checkpoint and its hash."""
    path.unlink(missing_ok=True)
    _hash_file(path).unlink(missing_ok=True)
