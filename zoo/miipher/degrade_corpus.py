"""Degrading a corpus off line into mirrored trees or shards; the result does not depend on how it is run."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any, Literal

import numpy as np
from rich.progress import track

from zoo.atomic import sweep_temporaries, write_atomic
from zoo.audio.corpora import CorpusKind, read_corpus
from zoo.audio.corpus import Corpus
from zoo.audio.degrade import Degrader
from zoo.audio.shards import ShardWriter
from zoo.miipher.degrade_jobs import Job, Result, Row, Workbench, plan, results, to_json
from zoo.training import folders

SPLITS = ("val", "train")
MANIFEST_NAME = "manifest.jsonl"
OutputFormat = Literal["tree", "shards"]
_LOG = logging.getLogger(__name__)


def degrade_corpus(
    clean: str | os.PathLike[str],
    output: str | os.PathLike[str],
    degrader: Degrader,
    noises: Corpus | None,
    rirs: Sequence[np.ndarray] | None,
    kind: CorpusKind = "auto",
    copies: int = 4,
    format: OutputFormat = "tree",
    sample_rate: int = 22050,
    seed: int = 172957,
    val_items: int = 600,
    workers: int = 0,
    max_samples: int = 1000,
    compress: bool = False,
    progress: bool = True,
) -> dict[str, int]:
    """Write degraded copies of a corpus as mirrored trees or as shards.

    A tree has `OUTPUT/{train,val}/clean/<key>.wav` beside `.../degraded/<key>.wav`, both mono, 16 bit and of equal
    length. Shards `OUTPUT/{train,val}/<split>-000000.tar` hold `<key>.speech.wav` (the bytes of the original),
    `<key>.degraded_speech.wav` (mono, 32 bit float) and `<key>.json`. A key is the utterance's name, `_` and the number
    of the copy. The randomness of a copy follows from the seed, the utterance's place in the sorted corpus and the
    copy's number alone. A killed call is taken up again by the same call.

    Args:
        clean: Folder of the corpus.
        output: Folder to write, also `manifest.jsonl`: a line of facts per copy.
        degrader: What degrades.
        noises: Noise at `sample_rate`, or None.
        rirs: Room impulse responses (T,) float32 at `sample_rate`, or None.
        kind: Layout of the corpus.
        copies: Degraded copies of each utterance, >= 1.
        format: "tree" or "shards".
        sample_rate: Of the degraded audio (and of the clean audio in a tree), in Hz.
        seed: Of the split and of all randomness.
        val_items: Utterances of the shuffled corpus that become `val`, >= 0.
        workers: Processes; 0 works in this one. The result does not depend on it.
        max_samples: Samples of a shard.
        compress: Write `.tar.gz`.
        progress: Show a progress bar.

    Returns:
        Counts: `done` and `failed` copies, `skipped` ones that earlier calls made, `bad_files` that failed.

    Raises:
        FileNotFoundError: There is no corpus.
        ValueError: An option out of range, no training utterance left, or `output` was begun with other settings.
        OSError: The disk is full or a worker died; the same call goes on.
    """
    clean, output = Path(clean), Path(output)
    if copies < 1 or workers < 0 or val_items < 0 or sample_rate < 1:
        raise ValueError(
            "expected copies >= 1, workers >= 0, val_items >= 0 and sample_rate > 0, got "
            f"{copies}, {workers}, {val_items}, {sample_rate}"
        )
    if output.resolve().is_relative_to(clean.resolve()):
        raise ValueError(f"output {output} lies in the corpus {clean}; choose a folder outside")
    utterances = read_corpus(clean, kind)
    jobs = plan(utterances, copies, seed, val_items)
    settings: Row = {
        **{"format": format, "copies": copies, "sample_rate": sample_rate, "seed": seed, "val_items": val_items},
        "utterances": _digest([[utterance.name for utterance in utterances]]),
        "degrader": json.loads(json.dumps(vars(degrader))),
        "noise": _digest(noises and [noises.names, noises.lengths, noises.peaks]),
        "rirs": _digest(rirs),
    }
    if format == "shards":
        settings |= {"max_samples": max_samples, "compress": compress}
    folders.begin_output(output, settings)
    sweep_temporaries(output)
    bench = Workbench(degrader, noises, rirs, sample_rate, clean, output if format == "tree" else None)
    manifest = Manifest(output / MANIFEST_NAME)
    left = 0
    with manifest:
        for split in SPLITS:
            writer = None
            if format == "shards":
                writer = ShardWriter(output / split, split, max_samples=max_samples, compress=compress)
            todo = _remaining([job for job in jobs if job.split == split], manifest.rows, output, writer)
            left += sum(len(job.copies) for job in todo)
            with writer or nullcontext():
                for made in track(results(todo, bench, workers), split, len(todo), disable=not (progress and todo)):
                    _keep(made, manifest, writer)
    keys = [key for job in jobs for key, _ in job.copies]
    rows = manifest.finish(keys)
    failed = [row for row in rows if row["status"] == "failed"]
    bad_files = len({row["source"] for row in failed})
    skipped = len(keys) - left
    return {"done": len(rows) - len(failed), "failed": len(failed), "skipped": skipped, "bad_files": bad_files}


def _keep(made: Sequence[Result], manifest: Manifest, writer: ShardWriter | None) -> None:
    for row, members in made:
        if writer is not None and members:
            writer.write(row["key"], members)
        manifest.add(row)
    if made[0][0]["status"] == "failed":
        _LOG.warning("left out: %s", made[0][0]["error"])


def _remaining(jobs: Sequence[Job], rows: Mapping[str, Row], output: Path, writer: ShardWriter | None) -> list[Job]:
    """What is left of a split: in a tree the copies without row or file, in shards those behind the last whole one."""
    left = []
    in_whole_shard = writer is not None and writer.last_key is not None
    for job in jobs:
        todo = []
        for key, seed in job.copies:
            if writer is None:
                pair = (output / job.split / part / f"{key}.wav" for part in ("clean", "degraded"))
                is_done = rows.get(key, {}).get("status") == "done" and all(path.is_file() for path in pair)
            else:
                is_done = in_whole_shard
                in_whole_shard = in_whole_shard and key != writer.last_key
            if not is_done:
                todo.append((key, seed))
        if todo:
            left.append(Job(job.utterance, job.split, tuple(todo)))
    return left


class Manifest:
    """A line of facts per copy, appended at once, so that it survives a kill; the last line of a key counts.

    Args:
        path: JSONL file.

    Attributes:
        rows: By key, what earlier calls wrote; a line that a kill tore is left out.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.rows: dict[str, Row] = {}
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else ():
            with suppress(ValueError, KeyError, TypeError):
                row = json.loads(line)
                self.rows[row["key"]] = row

    def __enter__(self) -> Manifest:
        self._rewrite(list(self.rows.values()))
        self._file = self._path.open("ab")
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def add(self, row: Row) -> None:
        """Append a row."""
        self.rows[row["key"]] = row
        self._file.write(to_json(row) + b"\n")
        self._file.flush()

    def finish(self, keys: Sequence[str]) -> list[Row]:
        """Write the rows in the order of `keys` and return them."""
        rows = [self.rows[key] for key in keys if key in self.rows]
        self._rewrite(rows)
        return rows

    def _rewrite(self, rows: list[Row]) -> None:
        write_atomic(self._path, lambda file: file.writelines(to_json(row) + b"\n" for row in rows))


def _digest(content: Any) -> str | None:
    """Tells two materials apart; None for no material."""
    if content is None:
        return None
    digest = hashlib.sha256()
    for part in content:
        digest.update(part.tobytes() if isinstance(part, np.ndarray) else json.dumps(list(part)).encode())
    return digest.hexdigest()[:16]
