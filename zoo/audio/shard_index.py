"""Which shards there are: folders with an index, brace patterns and lists."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from zoo.audio.archives import TAR_SUFFIXES

INDEX_NAME = "index.json"
_BRACES = re.compile(r"\{([^{}]*)\}")


def expand(shards: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> list[Path]:
    """List shard files.

    Args:
        shards: A file, a folder (what its index names, or all tars in it), a brace pattern
            (`name-{000000..000012}.tar`, `{a,b}.tar`), or a list of these.

    Returns:
        Existing files in order.

    Raises:
        FileNotFoundError: A file does not exist, or a folder holds no shard.
        ValueError: A malformed pattern or index, or the same shard twice.
    """
    given = [shards] if isinstance(shards, str | os.PathLike) else list(shards)
    found: list[Path] = []
    for path in (Path(name) for entry in given for name in _braces(os.fspath(entry))):
        if not path.is_dir():
            found.append(path)
            continue
        tars = (p.name for p in path.iterdir() if p.name.endswith(TAR_SUFFIXES) and not p.name.startswith("."))
        names = list(read_index(path)) or sorted(tars)
        if not names:
            raise FileNotFoundError(f"{path}: no shards here, expected files ending in {', '.join(TAR_SUFFIXES)}")
        found += [path / name for name in names]
    for path in found:
        if not path.is_file():
            raise FileNotFoundError(f"{path}: no such shard")
    if len(set(found)) < len(found):
        raise ValueError(f"{shards}: names the same shard twice")
    return found


def _braces(pattern: str) -> list[str]:
    match = _BRACES.search(pattern)
    if match is None:
        return [pattern]
    choices = match[1].split(",")
    first, dots, last = match[1].partition("..")
    if dots:
        if not (first.isdecimal() and last.isdecimal() and int(first) <= int(last)):
            raise ValueError(f"{pattern}: expected a rising range like {{000000..000012}}, found {match[0]}")
        choices = [f"{number:0{len(first)}d}" for number in range(int(first), int(last) + 1)]
    return [name for choice in choices for name in _braces(pattern[: match.start()] + choice + pattern[match.end() :])]


def read_index(folder: Path) -> dict[str, dict[str, Any]]:
    """Read the `index.json` of a folder.

    Args:
        folder: Folder of shards.

    Returns:
        Per shard `name`, `samples`, `bytes`, `sha256` and `last_key`, in order, by name; empty without an index.

    Raises:
        ValueError: The file is no index.
    """
    path = folder / INDEX_NAME
    if not path.is_file():
        return {}
    try:
        return {entry["name"]: entry for entry in json.loads(path.read_text(encoding="utf-8"))["shards"]}
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: no index of shards ({error!r}); delete it to read the shards without it") from error


def check_size(path: Path, entry: Mapping[str, Any] | None) -> None:
    """Compare a shard with its entry in the index, if it has one.

    Raises:
        ValueError: It has another size.
    """
    found = path.stat().st_size if path.is_file() else 0
    if entry is not None and found != entry["bytes"]:
        raise ValueError(f"{path}: cut or altered, it has {found} bytes where {INDEX_NAME} says {entry['bytes']}")
