"""Results in tar shards instead of files: every shard appears with its rows when it is whole."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from zoo.audio.io.shards import ShardWriter, check_size, read_index
from zoo.common.atomic import write_atomic
from zoo.common.report import Row
from zoo.common.work import json_line
from zoo.runs.jobs.manifest import Record, read_rows
from zoo.runs.jobs.order import Digests

TAR_FOLDERS = "tars.*"
_MOST_BYTES = 2**28  # of a shard's members, which wait in memory
_UNSAFE = re.compile(rb"[^A-Za-z0-9_/ !#$&'()+,;=@^`{}~\[\]\x80-\xff-]")


def key_of(target: str) -> str:
    """Name a result as a sample: the target without suffix, what a shard cannot hold in a key as %XX, like a dot."""
    stem = os.fsencode(os.path.splitext(target)[0])
    try:
        stem.decode()
        return _UNSAFE.sub(lambda found: b"%%%02X" % found[0][0], stem).decode()
    except UnicodeDecodeError:
        return re.sub(rb"[^A-Za-z0-9_/-]", lambda found: b"%%%02X" % found[0][0], stem).decode()


def extension_of(name: str, stem: str) -> str:
    """Name a file as part of a sample: `a.wav` beside the stem `a` as `wav`."""
    return re.sub(r"[^A-Za-z0-9_.]", "_", name.removeprefix(stem).strip(".")) or "result"


class TarOutput:
    """Collects results and writes each `size` of them, or 256 MiB, as a shard of this process.

    A shard's rows are written first, beside it, then the tar, then its entry in `index.json`: what the index names is
    done, and nothing else. A kill costs the samples that wait in memory.

    Args:
        folder: of this process, below the output.
        size: results of a shard, > 0.
        record: gets the rows when their shard is whole.
    """

    def __init__(self, folder: Path, size: int, record: Record) -> None:
        self._folder, self._size, self._record = folder, size, record
        self._writer = ShardWriter(folder, "results", sys.maxsize, sys.maxsize)
        self._number = len(read_index(folder))
        self._waiting: list[tuple[str, Mapping[str, bytes], Row]] = []
        self._bytes = 0

    def add(self, row: Row, results: Mapping[str, bytes]) -> None:
        """Take a result; the row's target is its place as a file.

        Args:
            results: bytes by extension, that of the target first.

        Raises:
            OSError: when the disk is full.
        """
        self._waiting.append((key_of(row["target"]), results, row))
        self._bytes += sum(map(len, results.values()))
        if len(self._waiting) >= self._size or self._bytes >= _MOST_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write what waits."""
        if not self._waiting:
            return
        name = f"results-{self._number:06d}"
        rows = [
            row | {"target": f"{self._folder.name}/{name}.tar/{key}.{next(iter(results))}"}
            for key, results, row in self._waiting
        ]
        write_atomic(self._folder / f"{name}.jsonl", lambda file: file.writelines(map(json_line, rows)))
        with self._writer:
            for key, results, _ in self._waiting:
                self._writer.write(key, results)
        self._record.append(*rows)
        self._number += 1
        self._waiting, self._bytes = [], 0


def sweep_tars(output: Path, prefix: str = "") -> None:
    """Delete what a kill left between a shard and its entry in the index.

    Args:
        prefix: of the processes that write nothing now, after `tars.`.
    """
    for folder in output.glob(TAR_FOLDERS.replace("*", f"{prefix}*")):
        known = {name.removesuffix(".tar") for name in read_index(folder)}
        for path in folder.glob("results-*"):
            if path.stem not in known:
                path.unlink()


def row_files(output: Path) -> Iterator[Path]:
    """The rows of every whole shard below an output folder.

    Raises:
        ValueError: when a shard was altered since it was written.
    """
    for folder in sorted(output.glob(TAR_FOLDERS)):
        for name, entry in read_index(folder).items():
            path = (folder / name).with_suffix(".jsonl")
            try:
                check_size(folder / name, entry)
                if not path.is_file():
                    raise ValueError(f"{path}: lost, it says what {name} holds")
            except ValueError as error:
                raise ValueError(f"{error}; put it back, or delete {folder} to have it computed again") from error
            yield path


def done_keys(output: Path) -> Digests:
    """The keys, see `key_of`, of all results in whole shards."""
    found = Digests()
    for path in row_files(output):
        for _, row in read_rows(path):
            found.add(row["target"].partition(".tar/")[2].partition(".")[0].encode())
    return found
