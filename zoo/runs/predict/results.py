"""The results in a folder: what made each, what is done, and who writes there.

A process appends a row to its part of the manifest, `manifest.rank<i>-of-<n>.jsonl`, before and after each file. The
process that ends last merges the parts into `manifest.jsonl`, one row a result, and writes `summary.json`.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import os
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import torch

from zoo.common.atomic_files import delete_temporary_files
from zoo.common.environment import peak_memory_bytes
from zoo.common.journal import Journal, begin_output, format_error, json_line
from zoo.common.locks import LOCK_INFO_NAME, LOCK_NAME, lock_folder
from zoo.common.reports import Row, write_report
from zoo.runs.inference.base import Inference
from zoo.runs.predict.input_files import RESERVED_NAMES, InputFile

log = logging.getLogger(__name__)

MANIFEST_NAME, SETTINGS_NAME, SUMMARY_NAME = RESERVED_NAMES
OUTCOMES = ("done", "failed")
MAX_ATTEMPTS = 3  # of a file that kills its process
VERSION_KEY = "zoo"  # of the settings: written, not compared
_LOCK_SECONDS = 120.0  # another process may merge a long manifest
_LEAST_FREE_BYTES = 2**20  # below this a failed write is taken for a full disk


def read_manifest(path: Path) -> list[Row]:
    """The rows of a manifest or a part of one; a line that a kill cut is left out, a missing file has none."""
    rows = Journal(path).read()
    return [row for row in rows if isinstance(row, dict) and {"source", "target", "status"} <= row.keys()]


def read_rows(output: Path) -> dict[str, Row]:
    """The last row of each result in a folder, by target, from the manifest and the parts of running processes."""
    paths = [output / MANIFEST_NAME, *sorted(output.glob("manifest.*.jsonl"))]
    return {row["target"]: row for path in paths for row in read_manifest(path)}


class Results:
    """The results of one process in a folder.

    Args:
        output: the folder.
        settings_id: of the settings, which each row names.
        part: name of the process's part of the manifest.
        rows: of earlier runs, by target.
        overwrite: compute also what is done.

    Attributes:
        totals: counts by outcome, and seconds.
    """

    def __init__(
        self, output: Path, settings_id: str, part: str, rows: Mapping[str, Row], overwrite: bool = False
    ) -> None:
        self.output, self.settings_id, self.overwrite = output, settings_id, overwrite
        self._path = output / f"manifest.{part}.jsonl"
        own = Journal(self._path, key="target").open() if self._path.exists() else {}
        self.rows = {**rows, **own}
        self._file: BinaryIO | None = None  # stays open: to open it twice for each file costs as much as a short file
        self.totals: Counter[str] = Counter(dict.fromkeys((*OUTCOMES, "skipped"), 0))

    def skip(self, file: InputFile) -> bool:
        """Whether a file is done: by these settings, of this content, and with its result in place."""
        row = self.rows.get(file.target)
        if row is None or self.overwrite or row["status"] != "done" or row.get("settings") != self.settings_id:
            return False
        try:
            os.stat(self.output / file.target)
            facts = os.stat(file.source)
            if (row["source"], row["size"], row["mtime_ns"]) != (file.source, facts.st_size, facts.st_mtime_ns):
                content = describe_input(file.source)
                if content["sha256"] != row["sha256"]:
                    return False
                self._append(row | {"source": file.source} | content)
        except OSError:
            return False
        self.totals["skipped"] += 1
        return True

    def compute(self, inference: Inference, file: InputFile) -> Row:
        """Compute a file and record the outcome.

        Returns:
            The row: `source`, `target` (below the folder), `status` ("done" or "failed"), `error` (None when done),
            `seconds`, `settings`, the input's `size`, `mtime_ns` and `sha256`, and the facts of `process_file`.

        Raises:
            OSError: when the disk is full.
            MemoryError: when the machine's memory is exhausted.
        """
        began = time.perf_counter()
        row: Row = {"source": file.source, "target": file.target, "settings": self.settings_id}
        facts: Mapping[str, Any] = {}
        error = None
        try:
            row |= describe_input(file.source)
            attempt = self._count_attempts(row)
            if attempt >= MAX_ATTEMPTS:
                row["attempt"] = attempt
                raise ChildProcessError(f"{attempt} processes died at this file, of a crash or of too little memory")
            facts = self._attempt(inference, file, row, attempt)
        except (torch.AcceleratorError, MemoryError):
            raise  # the device or the memory is lost for the next files, too
        except Exception as caught:
            if isinstance(caught, OSError) and self._disk_is_full(caught):
                raise OSError(
                    errno.ENOSPC, f"no room for {self.output / file.target}: free some and run the same command again"
                ) from caught
            if isinstance(caught, torch.OutOfMemoryError):
                torch.cuda.empty_cache()  # one file may be too long for the device, the next one is not
            error = format_error(caught)
            log.warning("%s failed: %s", file.source, error)
        status, seconds = "failed" if error else "done", time.perf_counter() - began
        row |= {"status": status, "error": error, "seconds": round(seconds, 6)}
        row = {**row, **facts, **row}  # in this order, and no fact hides what the row says
        self._append(row)
        self.totals[status] += 1
        if not error:
            self._add_seconds(seconds, row.get("audio_seconds"))
        return row

    def close(self) -> None:
        """Close the part of the manifest."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _append(self, row: Row) -> None:
        self._file = self._file or self._path.open("ab")
        self._file.write(json_line(row))
        self._file.flush()

    def _attempt(self, inference: Inference, file: InputFile, row: Row, attempt: int) -> Mapping[str, Any]:
        target = self.output / file.target
        last = self.rows.get(file.target, {})
        if last.get("status") == "done" and last["source"] != file.source:
            log.warning("%s replaces the result of %s", file.source, last["source"])
        self._append(row | {"status": "started", "attempt": attempt + 1})
        if not target.parent.is_dir():
            target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)  # a result of other settings or of another content
        try:
            facts = inference.process_file(Path(file.source), target)
        except (KeyboardInterrupt, SystemExit):  # not the file's fault
            self._append(row | {"status": "interrupted", "attempt": attempt})
            raise
        if not target.exists():
            raise RuntimeError(f"{type(inference).__name__}.process_file wrote no {target}")
        return facts

    def _count_attempts(self, row: Row) -> int:
        """How many processes died at a file of this content; one that failed by that gets one more try in each call."""
        last = self.rows.get(row["target"], {})
        if any(last.get(key) != row[key] for key in ("settings", "sha256")):
            return 0
        attempts = last.get("attempt", 0)
        return min(attempts, MAX_ATTEMPTS - 1) if last["status"] == "failed" else attempts

    def _add_seconds(self, seconds: float, audio_seconds: float | None) -> None:
        sums = {"seconds": seconds}
        if audio_seconds is not None:
            sums |= {"audio_seconds": float(audio_seconds), "timed_seconds": seconds}
        self.totals.update(sums)

    def _disk_is_full(self, error: OSError) -> bool:
        # libsndfile reports a full disk without its number
        return error.errno in (errno.ENOSPC, errno.EDQUOT) or shutil.disk_usage(self.output).free < _LEAST_FREE_BYTES


class SharedResults(Results):
    """The results of one of several processes that share a folder; made by `open_results`.

    Args:
        rank: of the process, 0 to world_size - 1.
        part_lock: held until `finish`.
        kwargs: of `Results`.
    """

    def __init__(self, rank: int, world_size: int, part_lock: contextlib.ExitStack, **kwargs: Any) -> None:
        super().__init__(part=_part_name(rank, world_size), **kwargs)
        self._rank, self._world_size, self._part_lock = rank, world_size, part_lock

    def finish(self, files: Sequence[InputFile], device: torch.device | None = None) -> Row:
        """Sum up, and merge the parts of the manifest if no other process runs; see `predict_files`."""
        memory = round(peak_memory_bytes(device or torch.device("cpu")) / 2**30, 3)
        totals = {**self.totals, "peak_memory_gib": memory}
        self.close()
        with _lock_folder(self.output):
            self._part_lock.close()
            rows = read_rows(self.output) if running_parts(self.output) else merge_parts(self.output)
            write_report(self.output, {_summary_name(self._rank, self._world_size): totals})
            paths = [self.output / _summary_name(rank, self._world_size) for rank in range(self._world_size)]
            complete = all(path.is_file() for path in paths)
            parts = [json.loads(path.read_text(encoding="utf-8")) for path in paths] if complete else [totals]
            summary = summarize_parts(parts)
            outcomes = [row for row in rows.values() if row["status"] in OUTCOMES and self._is_current(row)]
            missing = {file.target for file in files} - {row["target"] for row in outcomes}
            if missing:
                summary["missing"] = len(missing)
            if complete:
                write_report(self.output, {SUMMARY_NAME: summary}, indent=2)
                for path in paths:
                    path.unlink()
        if complete and (outdated := sum(not self._is_current(row) for row in rows.values())):
            log.warning("%s: %d results are of other settings, and none of these inputs", self.output, outdated)
        return summary

    def _is_current(self, row: Row) -> bool:
        return row.get("settings") == self.settings_id


@contextlib.contextmanager
def open_results(
    output: Path, settings: Mapping[str, Any], overwrite: bool = False, rank: int = 0, world_size: int = 1
) -> Iterator[SharedResults]:
    """Begin, or resume, a folder of results, and keep other processes from the same work; see `predict_files`."""
    if (output / LOCK_INFO_NAME).exists():
        with lock_folder(output, "predict"):  # refuses while another command writes there
            pass
    with contextlib.ExitStack() as part_lock:
        with _lock_folder(output):
            name = _part_name(rank, world_size)
            others = running_parts(output)
            if name in others or any(not other.endswith(f"-of-{world_size}") for other in others):
                raise ValueError(
                    f"{output} is being written by another `zoo predict` ({', '.join(others)}): wait or stop it"
                )
            _begin_settings(output, settings, overwrite and not others)
            part_lock.enter_context(_lock_file(output / f"{LOCK_NAME}.{name}", 0, f"{output} is being written"))
            for path in output.glob("summary.rank*.json"):
                if path.name == _summary_name(rank, world_size) or not path.stem.endswith(f"-of-{world_size}"):
                    path.unlink()
            if not others and (stale := delete_temporary_files(output)):
                log.info("removed %d half-written files that a killed run left in %s", len(stale), output)
            rows = read_rows(output) if others else merge_parts(output)
        yield SharedResults(
            rank,
            world_size,
            part_lock,
            output=output,
            settings_id=_settings_id(settings),
            rows=rows,
            overwrite=overwrite,
        )


def _begin_settings(output: Path, settings: Mapping[str, Any], overwrite: bool) -> None:
    """Write the settings into a new folder, or compare them with those of its results."""
    path = output / SETTINGS_NAME
    before = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    has_results = "checkpoint" in before if before else (output / MANIFEST_NAME).is_file()
    if overwrite and has_results:
        write_report(output, {SETTINGS_NAME: settings})
        return
    try:
        begin_output(output, settings, SETTINGS_NAME, notes=(VERSION_KEY,))
    except ValueError as error:
        raise ValueError(f"{error}{', or use --overwrite true' if has_results else ''}") from None


def merge_parts(output: Path) -> dict[str, Row]:
    """Merge the parts of the manifest that processes left; returns all rows by target."""
    rows = read_rows(output)
    if parts := sorted(output.glob("manifest.*.jsonl")):
        merged = Journal(output / MANIFEST_NAME, key="target")
        merged.write(rows[target] for target in sorted(rows))
        for path in parts:
            path.unlink()
    return rows


def running_parts(output: Path) -> list[str]:
    """Names of the parts whose processes run; the locks of killed ones are deleted."""
    from filelock import FileLock, Timeout

    running = []
    for path in sorted(output.glob(f"{LOCK_NAME}.rank*")):
        try:
            with FileLock(path, timeout=0):
                path.unlink(missing_ok=True)
        except Timeout:
            running.append(path.name.removeprefix(f"{LOCK_NAME}."))
    return running


def summarize_parts(parts: Sequence[Mapping[str, Any]]) -> Row:
    """The summary of the totals of several processes."""
    sums: Counter[str] = Counter()
    for part in parts:
        sums.update({key: value for key, value in part.items() if key != "peak_memory_gib"})
    summary: Row = {key: sums[key] for key in (*OUTCOMES, "skipped")}
    summary["seconds"] = round(sums["seconds"], 3)
    if "audio_seconds" in sums:
        summary["audio_seconds"] = round(sums["audio_seconds"], 3)
        summary["real_time_factor"] = round(sums["timed_seconds"] / max(sums["audio_seconds"], 1e-9), 6)
    summary["peak_memory_gib"] = max(part["peak_memory_gib"] for part in parts)
    return summary


def describe_input(source: str) -> Row:
    """The size, time of change and sha256 of a file."""
    facts = os.stat(source)
    return {"size": facts.st_size, "mtime_ns": facts.st_mtime_ns, "sha256": file_digest(Path(source))}


def file_digest(path: Path) -> str:
    """The sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _settings_id(settings: Mapping[str, Any]) -> str:
    compared = {key: value for key, value in settings.items() if key != VERSION_KEY}
    return hashlib.sha256(json.dumps(compared, sort_keys=True).encode()).hexdigest()[:16]


def _part_name(rank: int, world_size: int) -> str:
    return f"rank{rank}-of-{world_size}"


def _summary_name(rank: int, world_size: int) -> str:
    return f"summary.{_part_name(rank, world_size)}.json"


def _lock_folder(output: Path) -> contextlib.AbstractContextManager[None]:
    return _lock_file(
        output / LOCK_NAME, _LOCK_SECONDS, f"{output} is being written by another process: wait or stop it"
    )


@contextlib.contextmanager
def _lock_file(path: Path, seconds: float, message: str) -> Iterator[None]:
    """Hold a lock file, on every rank; `zoo.common.locks` locks on the first alone."""
    from filelock import FileLock, Timeout

    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path, timeout=seconds)
    try:
        lock.acquire()
    except Timeout as error:
        raise ValueError(message) from error
    try:
        yield
    finally:
        path.unlink(missing_ok=True)  # while it is held: one that waits for it finds it gone, and makes a new one
        lock.release()
