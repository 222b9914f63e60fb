"""Checkpoints: written aside, synced and renamed; verified before use; never unpickled.

A checkpoint is a file, or, where the weights are in shards, a folder: `state.pt` holds everything else, a safetensors
file of each process its parts of the tensors (as `torch.distributed.checkpoint` writes them for Hugging Face, so there
is no pickled index), and `sha256` the hashes of all of them. Read here, both are the same dictionary.

Imported without torch by what only looks at run folders.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import math
import os
import pickle
import re
import shutil
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from zoo.common import atomic
from zoo.common.atomic import TEMPORARY_MARK, replacing, write_atomic

log = logging.getLogger(__name__)

HASH_SUFFIX = ".sha256"
STATE_NAME = "state.pt"
HASHES_NAME = "sha256"
_SHARDED = "sharded tensor"  # key of what stands in state.pt for a tensor: its name, shape and dtype
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
    with replacing(path) as temporary:
        with temporary.open("wb") as file:
            write(file)
        # noted before the file is there, and beside that of the file it replaces: a kill leaves none without a hash
        _note(hash_file, [digest, *former])
        if path.is_dir():  # the same step in shards
            os.replace(path, _leaving(path))
    atomic.remove(_leaving(path))
    if former:
        _note(hash_file, [digest])


def _leaving(path: Path) -> Path:
    """The hidden name under which a folder is deleted."""
    return path.with_name(f".{path.name}{TEMPORARY_MARK}removed")


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


def load_checkpoint(
    path: Path, map_location: Any = "cpu", mapped: bool = False, empty: Callable[..., Any] | None = None
) -> dict[str, Any]:
    """Read one of our checkpoints; holds tensors and primitives only, so nothing in it can execute.

    Parts are described under their public names, also in a file that has former ones.

    Args:
        mapped: leave tensors on disk until they are used, for a look at the other values; those of a folder are then
            on the device `meta`.
        empty: makes the tensors (of a shape and a dtype) that those of a folder are read into; by default whole ones.

    Raises:
        FileNotFoundError: when there is no such checkpoint.
        ValueError: when the file is torn, is not a checkpoint, or holds pickled objects.
    """
    import torch

    from zoo.runs.descriptions import check_weights, described

    path = Path(path)
    file = path / STATE_NAME if is_folder(path) else path
    if not file.is_file():
        raise FileNotFoundError(f"no checkpoint at {path}" if file == path else f"{path} holds no {STATE_NAME}")
    try:
        content = torch.load(file, map_location=map_location, weights_only=True, mmap=mapped)
        if file != path:
            content = _with_shards(content, path, map_location, mapped, empty)
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
    reason = folder_damage(path) if path.is_dir() else _file_damage(path)
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


def is_folder(path: Path) -> bool:
    """Whether a path is a checkpoint of several files, and not a run."""
    return path.suffix == ".ckpt" and path.is_dir()


def folder_damage(path: Path) -> str | None:
    """Which file of a checkpoint folder is not as it was written, or None; one without hashes needs files at all."""
    if not (path / HASHES_NAME).is_file():
        if (path / STATE_NAME).exists():
            return f"{HASHES_NAME} is missing"
        return None if any(path.iterdir()) else "it is empty"
    try:
        lines = [line.split("  ", 1) for line in (path / HASHES_NAME).read_text(encoding="utf-8").splitlines()]
        noted = {name: digest for digest, name in lines}
    except ValueError:
        return f"{HASHES_NAME} cannot be read"
    files = {file.relative_to(path).as_posix() for file in path.rglob("*") if file.is_file()} - {HASHES_NAME}
    if different := sorted(files ^ noted.keys()):
        return f"{different[0]} is {'missing' if different[0] in noted else 'not of it'}"
    broken = (name for name, digest in noted.items() if _sha256(path / name) != digest)
    return next((f"{name} is damaged: its sha256 does not match" for name in broken), None)


def seal(aside: Path, path: Path, digests: Mapping[str, str] | None = None) -> None:
    """Note the hashes of a folder that was written aside, and let it appear under its name.

    Args:
        digests: sha256 of its files by name; computed when not given.

    Raises:
        OSError: when the disk is full; the folder stays aside.
    """
    if digests is None:
        names = sorted(file.relative_to(aside).as_posix() for file in aside.rglob("*") if file.is_file())
        digests = {name: _sha256(aside / name) for name in names}
    text = "".join(f"{digest}  {name}\n" for name, digest in digests.items())
    write_atomic(aside / HASHES_NAME, lambda file: file.write(text.encode()))
    atomic.replace_folder(aside, path)


def save_sharded(checkpoint: dict[str, Any], path: Path, group: Any = None) -> None:
    """Write a checkpoint whose tensors may be DTensors as a folder; called by all processes, which end alike.

    Args:
        checkpoint: the same on every process but for the parts; of what is not in parts, rank zero's is written.
        group: a process group of the CPU (gloo), its own where this runs in a thread.

    Raises:
        OSError: when a process could not write; nothing saved before is lost.
    """
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp

    shards: dict[str, Any] = {}
    rest = _without_shards(checkpoint, "", shards)
    aside = path.with_name(f".{path.name}{TEMPORARY_MARK}shards")
    rank = dist.get_rank(group)
    digests: dict[str, str] = {}
    problem: str | None = None
    try:
        if rank == 0:
            atomic.remove(aside)
            aside.mkdir(parents=True)
            write_atomic(aside / STATE_NAME, lambda file: torch.save(rest, file))
    except (OSError, RuntimeError) as error:  # torch's zip writer hides a full disk in a RuntimeError
        problem = f"rank {rank}: {error}"
    _agree(problem, path, group)
    try:
        writer = dcp.HuggingFaceStorageWriter(str(aside), save_distributed=True)
        dcp.save(shards, storage_writer=writer, process_group=group)
        own = [*aside.glob(f"shard-{rank + 1:05d}-*"), *([aside / STATE_NAME] if rank == 0 else [])]
        digests = {file.name: _sha256(file) for file in own}
    except (OSError, dcp.CheckpointException) as error:
        problem = f"rank {rank}: {' '.join(str(error).split())[-300:]}"
    for part in _agree(problem, path, group, digests):
        digests |= part
    if rank == 0:
        try:
            seal(aside, path, digests)
        except OSError as error:
            problem = f"rank 0: {error}"
    _agree(problem, path, group)


def _agree(problem: str | None, path: Path, group: Any, digests: Mapping[str, str] | None = None) -> list[Any]:
    """Raise on every process what went wrong on one; returns what each of them has to say otherwise."""
    import torch.distributed as dist

    said: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(said, (problem, digests), group=group)
    if found := next((each for each, _ in said if each), None):
        free = shutil.disk_usage(path.parent).free / 2**20 if path.parent.is_dir() else 0
        raise OSError(f"could not write {path} ({found}): disk full? ({free:.0f} MiB free)")
    return [each for _, each in said]


def _without_shards(value: Any, name: str, shards: dict[str, Any]) -> Any:
    """A copy of nested containers with names, shapes and dtypes in the place of DTensors, which are collected."""
    if hasattr(value, "full_tensor"):
        shards[name] = value.detach()
        return {_SHARDED: name, "shape": list(value.shape), "dtype": str(value.dtype).removeprefix("torch.")}
    if isinstance(value, Mapping):
        return {key: _without_shards(each, f"{name}/{key}", shards) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_without_shards(each, f"{name}/{index}", shards) for index, each in enumerate(value))
    return value


def _places(value: Any) -> Iterator[dict[str, Any]]:
    """What stands for tensors in nested containers."""
    if isinstance(value, dict) and _SHARDED in value:
        yield value
    elif isinstance(value, dict | list | tuple):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _places(each)


def _filled(value: Any, tensors: Mapping[str, Any]) -> Any:
    if isinstance(value, dict):
        if _SHARDED in value:
            return tensors[value[_SHARDED]]
        return {key: _filled(each, tensors) for key, each in value.items()}
    return type(value)(_filled(each, tensors) for each in value) if isinstance(value, list | tuple) else value


def _with_shards(
    content: Any, path: Path, map_location: Any, mapped: bool, empty: Callable[..., Any] | None
) -> dict[str, Any]:
    """Read the tensors that a folder's `state.pt` names, each process what it holds of them.

    Raises:
        ValueError: when they are not all there, or would be larger than the files.
    """
    import torch
    import torch.distributed.checkpoint as dcp

    reader = dcp.HuggingFaceStorageReader(str(path))
    try:
        there: dict[str, Any] = dict(reader.read_metadata().state_dict_metadata)
    except Exception as error:  # safetensors and json raise their own
        raise ValueError(f"its shards cannot be read: {error}") from error
    tensors: dict[str, Any] = {}
    for place in _places(content):
        name, shape = str(place[_SHARDED]), place.get("shape")
        found = there.get(name)
        if found is None or shape != list(found.size) or place.get("dtype") != str(found.properties.dtype)[6:]:
            raise ValueError(f"its shards hold no {name} of the shape {shape}")
        if sum(math.prod(tuple(chunk.sizes)) for chunk in found.chunks) != math.prod(shape):
            raise ValueError(f"its shards hold a part of {name} only")
        make = (lambda *size, dtype: torch.empty(*size, dtype=dtype, device="meta")) if mapped else empty or torch.empty
        tensors[name] = make(shape, dtype=found.properties.dtype)
    if tensors and not mapped:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # that is meant
            dcp.load(tensors, storage_reader=reader, no_dist=True)
        if empty is None:
            tensors = {name: tensor.to(map_location) for name, tensor in tensors.items()}
    return _filled(content, tensors)


def find_checkpoints(folder: Path, pattern: str = "*.ckpt") -> list[Path]:
    """All checkpoints of a run folder, the most advanced first (by the step in the name, then by time)."""
    found = []
    for path in folder.glob(pattern):
        if TEMPORARY_MARK not in path.name:
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
    """Delete a checkpoint (file or shard folder) and its hash."""
    if path.is_dir():
        atomic.remove(_leaving(path))
        os.replace(path, _leaving(path))  # a kill leaves no half of it
        shutil.rmtree(_leaving(path))
    else:
        path.unlink(missing_ok=True)
    _hash_file(path).unlink(missing_ok=True)
