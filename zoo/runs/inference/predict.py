"""Prediction over many files by one process, or by several that share a folder of results.

Each process appends a row to its part of the manifest, `manifest.rank<i>-of-<n>.jsonl`, before and after each file.
When all files have an outcome, the parts become `manifest.jsonl`, one row a result.
"""

from __future__ import annotations

import errno
import glob
import hashlib
import json
import logging
import os
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.progress import track

from zoo import __version__
from zoo.common.atomic_files import TEMPORARY_MARK, delete_path
from zoo.common.environment import peak_memory_bytes, verbosity
from zoo.common.journal import Journal, begin_output, format_error
from zoo.common.locks import lock_folder
from zoo.common.reports import Row, write_report
from zoo.runs.checkpoints import file_digest
from zoo.runs.inference.base import Inference

log = logging.getLogger(__name__)

MANIFEST_NAME, SETTINGS_NAME, SUMMARY_NAME = "manifest.jsonl", "settings.json", "summary.json"
MAX_ATTEMPTS = 3  # of a file that kills its process
MIN_FREE_BYTES = 2**20  # below this a failed write is a full disk: libsndfile reports no error number


class InputFile(NamedTuple):
    """A file to compute, by its absolute path, and the path of its result below the output folder."""

    source: str
    target: str


def list_input_files(input: Path, output: Path, suffixes: Sequence[str], output_suffix: str) -> list[InputFile]:
    """List the files to compute, sorted by name, and log how many others are left out and why.

    Args:
        input: a file, or a folder whose tree is mirrored; results inside it are no inputs.
        suffixes: of the inputs, lower case with the dot.
        output_suffix: of the results. Results of `a.wav` and `a.flac` keep the suffix: `a.wav.wav`, `a.flac.wav`.

    Raises:
        FileNotFoundError, ValueError: there is no such input, or a result would overwrite an input or another result.
    """
    root = Path(os.path.realpath(input if input.is_dir() else input.parent))
    if not input.exists():
        raise FileNotFoundError(f"--input {input}: no such file or folder")
    if output.is_file() or (input.is_dir() and output.resolve() == root):
        raise ValueError(f"--output {output} is a file or the input folder itself; name another folder")
    stems, skipped = dict[str, str](), Counter[str]()
    for path in _walk(root, os.path.realpath(output), skipped) if input.is_dir() else [str(root / input.name)]:
        stem, suffix = os.path.splitext(path)
        if suffix.lower() in suffixes:
            stems[path] = stem
        else:
            skipped[suffix.lower() or "without suffix"] += 1
    reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(skipped.items()) if count)
    if not stems:
        raise ValueError(f"--input {input}: no file ends in {', '.join(suffixes)}; left out {reasons or 'nothing'}")
    if reasons:
        log.warning("%s: left out %s", input, reasons)
    namesakes = Counter(stems.values())
    files = [
        InputFile(path, os.path.relpath(path if namesakes[stem] > 1 else stem, root) + output_suffix)
        for path, stem in sorted(stems.items())
    ]
    counts = Counter([*(file.target for file in files), MANIFEST_NAME, SETTINGS_NAME, SUMMARY_NAME])
    counts.update(os.path.relpath(path, os.path.realpath(output)) for path in stems)
    if clashes := [file.target for file in files if counts[file.target] > 1]:
        raise ValueError(
            f"{output / clashes[0]} would overwrite an input or another result; rename the input or name another output"
        )
    return files


def _walk(root: Path, excluded: str, skipped: Counter[str]) -> Iterator[str]:
    """Yield the files below a folder, but hidden ones and those in a hidden or an excluded folder."""
    for folder, folders, names in os.walk(root, onerror=lambda error: skipped.update({"unreadable folder": 1})):
        skipped["linked folder"] += sum(os.path.islink(os.path.join(folder, name)) for name in folders)
        folders[:] = [name for name in folders if name[0] != "." and os.path.join(folder, name) != excluded]
        yield from (os.path.join(folder, name) for name in names if name[0] != ".")


def predict_files(
    inference: Inference,
    files: Sequence[InputFile],
    output: Path,
    settings: Mapping[str, Any],
    overwrite: bool = False,
    rank: int = 0,
    world_size: int = 1,
    precision: str = "32-true",
) -> Row:
    """Compute every world_size-th file from the rank-th on, but finished ones; `files` are those of all processes.

    Args:
        settings: what results depend on besides their inputs: `checkpoint`, its digest, options and precision.
        overwrite: compute finished files too, and replace other settings.
        precision: 32-true, bf16-mixed or 16-mixed.

    Returns:
        Counts and times of this process, see `Results.finish`. Errors are those of `lock_folder`, `open_results` and
        `process`.
    """
    share, part = files[rank::world_size], f"rank{rank}-of-{world_size}"
    with lock_folder(output, "predict", part=part), torch.inference_mode(), autocast(inference.device, precision):
        results = open_results(output, settings, part, overwrite)
        results.refuse_other_inputs(share)
        for file in track(share, "predict", disable=not share or rank > 0 or verbosity() == "quiet"):
            results.process(inference, file)
    return {**results.finish(files), "peak_memory_gib": round(peak_memory_bytes(inference.device) / 2**30, 3)}


class Results:
    """The results of one process in a folder: its part of the manifest, and earlier rows by target."""

    def __init__(self, output: Path, part: str, rows: Mapping[str, Row], overwrite: bool = False) -> None:
        self.output, self.rows, self.overwrite = output, rows, overwrite
        self.processed: list[Row] = []
        self.skipped = 0
        self._journal = Journal(part_path(output, part))

    def refuse_other_inputs(self, files: Sequence[InputFile]) -> None:
        """Raise ValueError when a file would replace the result of another file that still exists."""
        for file in files if not self.overwrite else ():
            row = self.rows.get(file.target)
            if row is None or row["status"] != "done" or row["source"] == file.source:
                continue
            both = (Path(row["source"]), self.output / file.target)
            if all(path.exists() for path in both) and not self.is_done(file):
                raise ValueError(
                    f"{self.output / file.target} is the result of {row['source']}, not of {file.source}; "
                    "name another output, or use --overwrite true"
                )

    def process(self, inference: Inference, file: InputFile) -> None:
        """Compute a file unless it is finished, and record the outcome.

        Raises an OSError when the disk is full; a MemoryError or AcceleratorError, as the next files would fail, too.
        """
        if self.is_done(file):
            self.skipped += 1
            return
        start = time.perf_counter()
        row: Row = {"source": file.source, "target": file.target}
        facts: Mapping[str, Any] = {}
        outcome: Row = {"status": "done", "error": None}
        try:
            row |= describe_input(file.source, [*map(str, inference.more_files(Path(file.source)))], former={})
            facts = self._compute(inference, file, row)
        except (torch.AcceleratorError, MemoryError):
            raise
        except Exception as error:
            if isinstance(error, OSError) and self._is_disk_full(error):
                message = f"no room for {self.output / file.target}: free some and run the same command again"
                raise OSError(errno.ENOSPC, message) from error
            if isinstance(error, torch.OutOfMemoryError):
                torch.cuda.empty_cache()  # the next file may be shorter
            outcome = {"status": "failed", "error": format_error(error)}
            log.warning("%s failed: %s", file.source, outcome["error"])
        outcome["seconds"] = round(time.perf_counter() - start, 6)
        row = {**row, **outcome, **facts, **row, **outcome}  # the facts replace nothing
        self._journal.append(row)
        self.processed.append(row)

    def finish(self, files: Sequence[InputFile]) -> Row:
        """Merge the manifest when all files have an outcome; return `summarize` of this process, and `missing`."""
        parts = list(self.output.glob("manifest.*.jsonl"))
        rows = read_rows(self.output) | {row["target"]: row for row in self.processed}
        missing = sum(rows.get(file.target, {}).get("status") not in ("done", "failed") for file in files)
        if not missing:
            Journal(self.output / MANIFEST_NAME).write(rows[target] for target in sorted(rows))
            write_report(self.output, {SUMMARY_NAME: summarize(list(rows.values()))})
            for path in parts:
                path.unlink(missing_ok=True)  # another process may end at this moment, too
        return summarize(self.processed, skipped=self.skipped) | ({"missing": missing} if missing else {})

    def is_done(self, file: InputFile) -> bool:
        """Whether there is a result of the file's content."""
        row = self.rows.get(file.target, {})
        try:
            is_done = not self.overwrite and row.get("status") == "done" and (self.output / file.target).exists()
            return is_done and describe_input(file.source, row.get("more_files", []), row)["sha256"] == row["sha256"]
        except OSError:
            return False

    def _compute(self, inference: Inference, file: InputFile, row: Row) -> Mapping[str, Any]:
        last, target = self.rows.get(file.target, {}), self.output / file.target
        attempt = last["attempt"] if last.get("status") == "started" and last["sha256"] == row["sha256"] else 0
        if last.get("status") in ("started", "interrupted"):  # by a process that was killed
            for path in target.parent.glob(f".{glob.escape(target.name)}{TEMPORARY_MARK}*"):
                delete_path(path)
        if attempt >= MAX_ATTEMPTS:
            raise ChildProcessError(f"{attempt} processes died at this file, of a crash or of too little memory")
        self._journal.append(row | {"status": "started", "attempt": attempt + 1})
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)  # a result of other settings or of another content
        try:
            facts = inference.process_file(Path(file.source), target)
        except (KeyboardInterrupt, SystemExit):
            self._journal.append(row | {"status": "interrupted"})
            raise
        if not target.exists():
            raise RuntimeError(f"{type(inference).__name__}.process_file wrote no {target}")
        return facts

    def _is_disk_full(self, error: OSError) -> bool:
        return error.errno in (errno.ENOSPC, errno.EDQUOT) or shutil.disk_usage(self.output).free < MIN_FREE_BYTES


def open_results(output: Path, settings: Mapping[str, Any], part: str, overwrite: bool = False) -> Results:
    """Begin or resume one part of a folder of results; ValueError when the folder has results of other settings."""
    path, settings = output / SETTINGS_NAME, {**settings, "zoo": __version__}
    previous = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    if overwrite and "checkpoint" in previous and {**settings, "zoo": previous.get("zoo")} != previous:
        for manifest in output.glob("manifest*.jsonl"):
            manifest.unlink()
        write_report(output, {SETTINGS_NAME: settings})
    try:
        begin_output(output, settings, SETTINGS_NAME, notes=("zoo",))
    except ValueError as error:
        raise ValueError(f"{error}{', or use --overwrite true' if 'checkpoint' in previous else ''}") from None
    return Results(output, part, read_rows(output), overwrite)


def part_path(output: Path, part: str) -> Path:
    """Return the path of a part of the manifest."""
    return output / f"manifest.{part}.jsonl"


def read_manifest(path: Path) -> list[Row]:
    """Read the rows of a manifest or a part of one; none when it is missing."""
    rows = Journal(path).read()
    return [row for row in rows if isinstance(row, dict) and {"source", "target", "status"} <= row.keys()]


def read_rows(output: Path) -> dict[str, Row]:
    """Read the last row of each result in a folder, by target; of several parts that of the one written last."""
    parts = [read_manifest(path) for path in sorted(output.glob("manifest.*.jsonl"), key=_modification_time)]
    merged = read_manifest(output / MANIFEST_NAME)  # read last: a process that ends moves rows to it
    return {row["target"]: row for rows in (merged, *parts) for row in rows}


def _modification_time(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:  # of a process that has ended since
        return 0.0


def summarize(rows: Sequence[Row], **counts: int) -> Row:
    """Count rows that are `done` and `failed`, and sum the `seconds` of work and of audio of those done."""
    done = [row for row in rows if row["status"] == "done"]
    summary: Row = {"done": len(done), "failed": sum(row["status"] == "failed" for row in rows), **counts}
    summary["seconds"] = round(sum(row["seconds"] for row in done), 3)
    audio_seconds = sum(float(row.get("audio_seconds", 0)) for row in done)
    if audio_seconds:
        factor = round(summary["seconds"] / audio_seconds, 4)
        summary |= {"audio_seconds": round(audio_seconds, 3), "real_time_factor": factor}
    return summary


def describe_input(source: str, more_files: Sequence[str], former: Row) -> Row:
    """Return size and modification time of a file, and the sha256 of it with the files that it names.

    `former` is an earlier row, whose sha256 may still hold where the file names no other.
    """
    stat = os.stat(source)
    row: Row = {"source": source, "size": stat.st_size, "mtime_ns": stat.st_mtime_ns}
    if more_files:
        digests = "".join(file_digest(Path(path)) for path in (source, *more_files))
        return {**row, "more_files": more_files, "sha256": hashlib.sha256(digests.encode()).hexdigest()}
    return {**row, "sha256": former["sha256"] if row.items() <= former.items() else file_digest(Path(source))}


def content_digest(path: Path) -> str:
    """Return the sha256 of a file, or of the names and contents of all files below a folder but model cards."""
    if path.is_file():
        return file_digest(path)
    names = sorted(file.relative_to(path).as_posix() for file in path.rglob("*") if file.is_file())
    lines = [f"{name} {file_digest(path / name)}\n" for name in names if not name.endswith(".md")]
    return hashlib.sha256("".join(lines).encode(errors="surrogateescape")).hexdigest()


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """Return the context of a precision: 32-true, bf16-mixed or 16-mixed."""
    dtype = torch.float16 if precision == "16-mixed" else torch.bfloat16
    return torch.autocast(device.type, dtype, enabled=precision != "32-true")
