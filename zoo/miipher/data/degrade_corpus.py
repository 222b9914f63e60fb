"""Degrading a corpus off line into mirrored trees; the result does not depend on how it is run."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from rich.progress import track

from zoo.audio.augment import rooms
from zoo.audio.augment.degrade import Degrader
from zoo.audio.corpora.cache import build_cache
from zoo.audio.corpora.corpus import Corpus, cache_dir
from zoo.audio.corpora.layouts import CorpusKind, Utterance, list_utterances
from zoo.audio.io import files
from zoo.audio.parallel import map_in_processes
from zoo.common.checks import check_at_least
from zoo.common.journal import Journal, begin_output
from zoo.common.locks import writes_into

SPLITS = ("val", "train")
MAX_VAL_ITEMS = 600
QUIET_PEAK = 2.0**-6  # recordings below it (-36 dBFS) are written with 32 bits
Row = dict[str, Any]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class DegradationJob:
    """The copies to make of one utterance."""

    utterance: Utterance
    split: str  # "train" or "val"
    copies: tuple[tuple[str, int], ...]  # key of each copy and the seed of its randomness


@dataclass(frozen=True)
class DegradationWorker:
    """Carries out jobs, in any process."""

    degrader: Degrader
    noises: Corpus
    rirs: Sequence[np.ndarray]  # (T,)
    sample_rate: int  # in Hz, of all
    root: Path  # of the corpus, to which the manifest's sources are relative
    output: Path  # folder of the mirrored trees

    def settings(self) -> Row:
        """Describe what the copies depend on besides the jobs."""
        degrader = {**vars(self.degrader), **asdict(self.degrader.ranges)}
        degrader["codecs"] = self.degrader.ranges.codec_settings
        del degrader["ranges"]
        noise = _digest([self.noises.names, self.noises.lengths, self.noises.peaks])
        return {"degrader": json.loads(json.dumps(degrader)), "noise": noise, "rirs": _digest(self.rirs)}

    def work(self, job: DegradationJob) -> list[Row]:
        """Write the copies of an utterance; returns a row of the manifest for each.

        A result that cannot be written is an OSError: the next ones would fare no better.
        """
        utterance = job.utterance
        source = utterance.path.relative_to(self.root).as_posix()
        facts: Row = {"split": job.split, "source": source, "sample_rate": self.sample_rate}
        facts |= {"speaker": utterance.speaker, "language": utterance.language, "text": utterance.text}
        try:
            facts |= _state(utterance.path)
            clean = files.read_mono(utterance.path, self.sample_rate)
            clean = clean / max(1.0, float(np.abs(clean).max()))
            copies = [
                self.degrader.degrade(clean, self.sample_rate, np.random.default_rng(seed), self.noises, self.rirs)
                for _, seed in job.copies
            ]
        except (ValueError, OSError, RuntimeError) as error:
            cause = f"{type(error).__name__}: {error}"
            return [{"key": key, "status": "failed", "error": cause, **facts} for key, _ in job.copies]
        facts |= {"samples": len(clean)}
        rows = [
            {"key": key, "status": "done", "error": None, **facts, "degradation": copy.details}
            for (key, _), copy in zip(job.copies, copies, strict=True)
        ]
        self._write(self.output / job.split, [row["key"] for row in rows], clean, [copy.audio for copy in copies])
        return rows

    def _write(self, folder: Path, keys: Sequence[str], clean: np.ndarray, degraded: Sequence[np.ndarray]) -> None:
        """All copies of the clean recording are one file where the file system has hard links."""
        first = folder / "clean" / f"{keys[0]}.wav"
        files.write(first, clean, self.sample_rate, _subtype(clean))
        for key, copy in zip(keys, degraded, strict=True):
            target = folder / "clean" / f"{key}.wav"
            if target != first:
                target.unlink(missing_ok=True)
                try:
                    os.link(first, target)
                except OSError:
                    files.write(target, clean, self.sample_rate, _subtype(clean))
            files.write(folder / "degraded" / f"{key}.wav", copy, self.sample_rate, _subtype(copy))


def _subtype(audio: np.ndarray) -> str:
    """Choose the sample format: 16 bits would lose the precision of a quiet recording, which is scaled up later."""
    return "PCM_16" if np.abs(audio).max() >= QUIET_PEAK else "PCM_32"


def assign_copies(utterances: Sequence[Utterance], copies: int, seed: int, val_items: int) -> list[DegradationJob]:
    """Make the jobs of a corpus, shuffled; the first `val_items` are for validation.

    The seed of a copy follows from `seed`, its utterance's place in the corpus, and its number.
    """
    from zoo.training.resume import item_seed  # imports Lightning, which the workers do not need

    if val_items >= len(utterances):
        raise ValueError(f"val_items {val_items} leaves nothing of {len(utterances)} utterances for training; lower it")
    jobs = []
    for place, index in enumerate(np.random.default_rng(seed).permutation(len(utterances)).tolist()):
        name = utterances[index].name
        seeds = tuple((f"{name}_{copy}", item_seed(seed, copy, index)) for copy in range(copies))
        jobs.append(DegradationJob(utterances[index], "val" if place < val_items else "train", seeds))
    return jobs


def write_copies(worker: DegradationWorker, jobs: Sequence[DegradationJob], settings: Row, processes: int) -> Row:
    """Write the copies that are missing, with a row of the manifest each; returns counts, see `degrade`.

    ValueError for an output begun with other settings.
    """
    begin_output(worker.output, settings | worker.settings(), sweep=True)
    manifest = Journal(worker.output / "manifest.jsonl")
    rows = manifest.open()
    remaining = []
    for job in sorted(jobs, key=lambda job: SPLITS.index(job.split)):
        missing = [(key, seed) for key, seed in job.copies if not _is_written(worker.output, job, key, rows)]
        remaining += [replace(job, copies=tuple(missing))] if missing else []
    results = map_in_processes(worker.work, remaining, processes)
    for new_rows in track(results, "degraded copies", len(remaining), disable=not remaining):
        for row in new_rows:
            manifest.add(row)
        if new_rows[0]["status"] == "failed":
            log.warning("left out: %s", new_rows[0]["error"])
    keys = [key for job in jobs for key, _ in job.copies]
    failed = [row for row in manifest.close(keys) if row["status"] == "failed"]
    skipped = len(keys) - sum(len(job.copies) for job in remaining)
    counts = {"done": len(keys) - len(failed), "failed": len(failed), "skipped": skipped}
    return {**counts, "bad_files": len({row["source"] for row in failed})}


def _is_written(output: Path, job: DegradationJob, key: str, rows: Mapping[str, Row]) -> bool:
    """Whether a copy of the recording as it is now was written."""
    row, folder, state = rows.get(key, {}), output / job.split, _state(job.utterance.path)
    is_done = row.get("status") == "done" and all(row.get(name) == value for name, value in state.items())
    return is_done and all((folder / part / f"{key}.wav").is_file() for part in ("clean", "degraded"))


def _state(path: Path) -> Row:
    stat = path.stat()
    return {"size": stat.st_size, "mtime_ns": stat.st_mtime_ns}


def _digest(content: Any) -> str:
    """Hash noises or room responses."""
    digest = hashlib.sha256()
    for part in content:
        digest.update(part.tobytes() if isinstance(part, np.ndarray) else json.dumps(list(part)).encode())
    return digest.hexdigest()[:16]


@writes_into("output")
def degrade(
    clean: Path,
    output: Path,
    noise: Path | None = None,
    rir: Path | None = None,
    kind: CorpusKind = "auto",
    copies: int = 4,
    sample_rate: int = 22050,
    seed: int = 172957,
    val_items: int | None = None,
    workers: int = 0,
    recipe: Literal["miipher2_offline", "open_miipher"] = "miipher2_offline",
    degrader: Degrader | None = None,
    cache: Path = Path("runs/cache"),
) -> dict[str, int]:
    """Write degraded copies of a corpus as mirrored trees clean/ and degraded/, split into train and val.

    Files are mono, of 16 bits or, if quiet, 32. The same call again resumes after a kill and repeats failed files. The
    result does not depend on --workers.

    Args:
        clean: folder of clean speech.
        output: folder to write: train/ and val/, and manifest.jsonl with the facts of every copy.
        noise: folder of noise; noise made in code when not given.
        rir: folder of room impulse responses; made in code when not given.
        kind: layout of the corpus; auto detects it.
        copies: degraded copies of each utterance.
        sample_rate: of the degraded audio in Hz.
        seed: of the split and of all randomness.
        val_items: utterances of the shuffled corpus that go to val/; a tenth, at most 600, when not given.
        workers: processes; 0 works in this one.
        recipe: miipher2_offline (noise, reverb for half, a codec) or open_miipher (up to 3 of 4 steps in any order).
        degrader: settings of your own instead of the recipe, e.g. --degrader.steps '[reverb, noise, codec]'.
        cache: folder of the corpus caches, for the noise.

    Returns:
        Counts: done, failed, skipped (copies that were there), bad_files.
    """
    check_at_least(1, copies=copies, sample_rate=sample_rate)
    check_at_least(0, workers=workers, val_items=val_items or 0)
    if output.resolve().is_relative_to(clean.resolve()):
        raise ValueError(f"output {output} lies in the corpus {clean}; choose a folder outside")
    utterances = list_utterances(clean, kind)
    val_items = _default_val_items(clean, len(utterances)) if val_items is None else val_items
    jobs = assign_copies(utterances, copies, seed, val_items)
    if noise is None:
        noises: Corpus = rooms.SyntheticNoise(clips=24, sample_rate=sample_rate)
    else:
        folder = cache_dir(cache, noise, sample_rate)
        noises = build_cache(files.find_audio_files(noise), folder, sample_rate, root=noise)
    rirs = rooms.load_rirs(rir, sample_rate, 200)
    worker = DegradationWorker(degrader or getattr(Degrader, recipe)(), noises, rirs, sample_rate, clean, output)
    settings: Row = {"copies": copies, "sample_rate": sample_rate, "seed": seed, "val_items": val_items}
    settings["utterances"] = _digest([[utterance.name for utterance in utterances]])
    return write_copies(worker, jobs, settings, workers)


def _default_val_items(clean: Path, utterances: int) -> int:
    if utterances == 1:
        raise ValueError(f"{clean} holds one utterance: nothing would be left to train on")
    return min(MAX_VAL_ITEMS, utterances // 10 or 1)
