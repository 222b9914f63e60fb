"""Unpacking, once and for good: archives of corpora, and shards into mirrored trees that are read like any other."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.progress import track

from zoo.audio.io import files, stores
from zoo.audio.io.archives import SUFFIXES, read_tar, read_zip
from zoo.audio.io.shards import CLEAN, DEGRADED, Sample, ShardReader, read_shard
from zoo.audio.io.stores import Patience, Place, StoreError
from zoo.common.atomic import replacing, sweep_temporaries, write_atomic

_RECORDS = ".unpacked"  # folder with one file per shard that has been unpacked
_SHOWN = 5  # names in a message
_LOG = logging.getLogger(__name__)


def unpack_archive(archive: str | os.PathLike[str], folder: str | os.PathLike[str], progress: bool = True) -> int:
    """Unpack an archive that ends in one of `SUFFIXES`; returns the number of its files.

    A killed call is taken up again: what is there with the same size is left alone, and no file is ever half-written.

    Raises:
        ValueError: unknown suffix, or the archive is cut, damaged or unsafe.
    """
    archive, folder = Path(archive), Path(folder)
    if not archive.is_file():
        raise FileNotFoundError(f"{archive}: no such archive")
    if not archive.name.endswith(SUFFIXES):
        raise ValueError(f"{archive}: expected an archive ending in {', '.join(SUFFIXES)}")
    members = read_zip(archive) if archive.suffix == ".zip" else read_tar(archive)
    count = 0
    for member in track(members, description=f"unpacking {archive.name}", disable=not progress):
        count += 1
        target = folder / member.name
        if target.is_file() and target.stat().st_size == member.size:
            continue
        with replacing(target) as temporary, temporary.open("wb") as file:
            shutil.copyfileobj(member, file)
    return count


def unpack_shards(
    shards: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    folder: str | os.PathLike[str],
    progress: bool = True,
) -> dict[str, Any]:
    """Unpack the pairs of shards into `folder/clean/<key>.wav` (or `.flac`) and `folder/degraded/<key>.wav`.

    For what reads folders of audio; `zoo.audio.corpora.sharded` trains from shards where they lie. A killed call is
    taken up again: shards that are done are skipped, files that are whole are kept. The json of a sample becomes
    `folder/facts/<key>.json`.

    Args:
        shards: see `zoo.audio.io.shards.expand`.

    Returns:
        Facts: `shards`, `pairs`, and `bad`: cause by key of the samples that were left out.

    Raises:
        ValueError: a shard is cut, damaged or unsafe, two shards hold the same key, or no pair is sound.
    """
    folder = Path(folder)
    sweep_temporaries(folder)
    paths = ShardReader(shards).paths
    owner: dict[str, Place] = {}
    bad: dict[str, str] = {}
    for path in track(paths, description="unpacking shards", disable=not progress):
        bad |= _unpack_shard(path, folder, owner)
    for cause in list(bad.values())[:_SHOWN]:
        _LOG.warning("left out: %s", cause)
    if len(bad) == len(owner):
        raise ValueError(f"{shards}: none of {len(owner)} samples is a sound pair: {next(iter(bad.values()), 'empty')}")
    return {"shards": len(paths), "pairs": len(owner) - len(bad), "bad": bad}


def _unpack_shard(path: Place, folder: Path, owner: dict[str, Place]) -> dict[str, str]:
    """Unpack one shard unless that was done; enters its keys into `owner` and returns the causes of bad samples."""
    if isinstance(path, Path):
        facts = path.stat()
        identity: list[str | int] = [str(path.resolve()), facts.st_size, facts.st_mtime_ns]
    else:
        (answer,) = stores.facts([path], Patience())
        if isinstance(answer, StoreError):
            raise answer
        identity = [str(path), *answer]
    digest = hashlib.blake2b(str(identity[0]).encode(), digest_size=4).hexdigest()
    record = folder / _RECORDS / f"{path.name}-{digest}.json"
    bad: dict[str, str] = {}
    if record.is_file():
        known = json.loads(record.read_text(encoding="utf-8"))
        if known["shard"] == identity:
            for key in known["keys"]:
                _claim(key, path, owner)
            return known["bad"]
    keys = []
    for sample in read_shard(path):
        _claim(sample.key, path, owner)
        keys.append(sample.key)
        try:
            _unpack_pair(sample, folder)
        except ValueError as error:
            bad[sample.key] = str(error)
    _write_json(record, {"shard": identity, "keys": keys, "bad": bad})
    return bad


def _claim(key: str, path: Place, owner: dict[str, Place]) -> None:
    if key in owner:
        raise ValueError(f"{owner[key]} and {path} both hold a sample {key!r}; unpack them into folders of their own")
    owner[key] = path


def _unpack_pair(sample: Sample, folder: Path) -> None:
    facts = sample.facts()
    clean, degraded = sample.member(CLEAN), sample.member(DEGRADED)
    wanted = {
        folder / "clean" / f"{sample.key}{Path(clean).suffix}": sample.members[clean],
        folder / "degraded" / f"{sample.key}{Path(degraded).suffix}": sample.members[degraded],
    }
    if all(target.is_file() and target.read_bytes() == data for target, data in wanted.items()):
        return
    with ExitStack() as stack:  # both appear, or none
        for target, data in wanted.items():
            temporary = stack.enter_context(replacing(target))
            temporary.write_bytes(data)
            try:
                files.info(temporary)
            except files.AudioFileError as error:
                cause = str(error).replace(str(temporary), f"sample {sample.key!r}, {target.parent.name}")
                raise ValueError(f"{sample.shard}: {cause}") from error
    if facts:
        _write_json(folder / "facts" / f"{sample.key}.json", facts)


def _write_json(path: Path, content: dict[str, Any]) -> None:
    write_atomic(path, lambda file: file.write(json.dumps(content, ensure_ascii=False).encode()))
