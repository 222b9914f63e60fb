"""What a bulk run did, as JSON lines: parts that processes append to, and the manifest that they are merged into."""

from __future__ import annotations

import itertools
import json
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from zoo.common.atomic import BINARY, read_at, write_atomic
from zoo.common.report import Row
from zoo.common.work import json_line
from zoo.runs.jobs.order import in_order

MANIFEST_NAME = "manifest.jsonl"
SUMMARY_NAME = "summary.json"
RANK_MANIFESTS = "manifest.rank*.jsonl"
STATES = ("done", "failed", "skipped")
_SYNC_SECONDS = 1.0
_NEEDED = {"source", "target", "status"}


def read_manifest(path: Path) -> list[Row]:
    """Read the rows of a manifest; lines that a kill tore are left out, a missing file has none."""
    return [row for _, row in read_rows(path)]


def read_rows(path: Path) -> Iterator[tuple[bytes, Row]]:
    """Go through (line, row) of a manifest like `read_manifest`."""
    if not path.is_file():
        return
    with path.open("rb") as file:
        for line in file:
            try:
                row = json.loads(line.decode(errors="replace"))
            except json.JSONDecodeError:
                continue
            if isinstance(row, dict) and _NEEDED <= row.keys():
                yield line, row


class Record:
    """A part of the manifest that one process appends to.

    A row is the kernel's at once, so a kill costs none; it is on the disk after a second, so a power failure costs the
    facts of the last files, which count as skipped then.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None
        self._synced = 0.0

    def append(self, *rows: Row) -> None:
        """Add rows.

        Raises:
            OSError: when the disk is full.
        """
        data = b"".join(map(json_line, rows))
        if self._descriptor is None:
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | BINARY, 0o666)
            size = os.fstat(self._descriptor).st_size
            if size and read_at(self._descriptor, 1, size - 1) != b"\n":
                data = b"\n" + data  # after a line that a kill tore
        while data:
            data = data[os.write(self._descriptor, data) :]
        if time.monotonic() - self._synced > _SYNC_SECONDS:
            os.fsync(self._descriptor)
            self._synced = time.monotonic()

    def close(self) -> None:
        """Have all rows on the disk."""
        if self._descriptor is not None:
            os.fsync(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = None


def merge(target: Path, parts: Sequence[Path]) -> None:
    """Merge parts into a manifest sorted by source, a row for each; of several rows the last counts.

    But what was done and is skipped now keeps the row of the computation, which says more.

    Raises:
        OSError: when the disk is full; the old manifest is untouched.
    """
    rows = (
        (row["source"], number, line)
        for number, path in enumerate((target, *parts))
        for line, row in read_rows(path)
    )  # fmt: skip
    ordered = in_order(((source, number, place, line) for place, (source, number, line) in enumerate(rows)),
                       target.parent)  # fmt: skip
    groups = itertools.groupby(ordered, key=lambda item: item[0])
    write_atomic(target, lambda file: file.writelines(_last_of([item[3] for item in group]) for _, group in groups))


def _last_of(lines: list[bytes]) -> bytes:
    kept = lines[0]
    for line in lines[1:]:
        old, row = json.loads(kept), json.loads(line)
        known = old["status"] == "done" and row["target"] in (None, old["target"])
        if not (known and row["status"] == "skipped"):
            kept = line
    return kept.rstrip(b"\n") + b"\n"


def count(parts: Iterable[Path]) -> Row:
    """Counts of each state, `seconds` of work, and where facts hold them `audio_seconds`; see `BulkRun.finish`."""
    counts, timed = Counter[str](), False
    seconds = audio = timed_seconds = 0.0
    for path in parts:
        for _, row in read_rows(path):
            counts[row["status"]] += 1
            if row["status"] == "done":
                seconds += row["seconds"]
                if "audio_seconds" in row:
                    timed = True
                    audio += row["audio_seconds"]
                    timed_seconds += row["seconds"]
    summary: Row = {state: counts[state] for state in STATES}
    summary["seconds"] = round(seconds, 3)
    if timed:
        summary["audio_seconds"] = round(audio, 3)
        summary["real_time_factor"] = round(timed_seconds / max(audio, 1e-9), 6)
    return summary


def add(summaries: Sequence[Row]) -> Row:
    """The summary of several shards together."""
    total: Row = {state: sum(each[state] for each in summaries) for state in STATES}
    total["seconds"] = round(sum(each["seconds"] for each in summaries), 3)
    timed = [each for each in summaries if "audio_seconds" in each]
    if timed:
        total["audio_seconds"] = round(sum(each["audio_seconds"] for each in timed), 3)
        seconds = sum(each["real_time_factor"] * each["audio_seconds"] for each in timed)
        total["real_time_factor"] = round(seconds / max(total["audio_seconds"], 1e-9), 6)
    total["peak_memory_gib"] = max(each["peak_memory_gib"] for each in summaries)
    return total
