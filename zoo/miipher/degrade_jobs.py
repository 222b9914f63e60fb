"""Degrading one utterance after the other, in this process or in several, with the same result."""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import shutil
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.io import wavfile

from zoo.atomic import replacing
from zoo.audio import files
from zoo.audio.corpora import Utterance
from zoo.audio.corpus import Corpus
from zoo.audio.degrade import Degrader
from zoo.audio.shards import AUDIO_SUFFIXES, CLEAN, DEGRADED
from zoo.audio.workers import begin_worker

Row = dict[str, Any]
Result = tuple[Row, dict[str, bytes]]  # a line of the manifest, and the members of the sample


@dataclass(frozen=True)
class Job:
    """The copies to make of one utterance.

    Attributes:
        utterance: The clean recording.
        split: "train" or "val".
        copies: Key of each copy and the seed of its randomness.
    """

    utterance: Utterance
    split: str
    copies: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Workbench:
    """All that a process needs to carry out jobs.

    Attributes:
        degrader: What degrades.
        noises: Noise at `sample_rate`, or None.
        rirs: Room impulse responses (T,) at `sample_rate`, or None.
        sample_rate: Of what is written, in Hz.
        root: Folder of the corpus, to which the manifest's sources are relative.
        tree: Folder of the mirrored trees; None hands back the members of shards.
    """

    degrader: Degrader
    noises: Corpus | None
    rirs: Sequence[np.ndarray] | None
    sample_rate: int
    root: Path
    tree: Path | None

    def work(self, job: Job) -> list[Result]:
        """Make the copies of an utterance.

        Args:
            job: What to make.

        Returns:
            One row of the manifest per copy, with the members of its sample (empty in a tree, or when it failed).

        Raises:
            OSError: The result cannot be written: the next ones would fare no better.
        """
        utterance = job.utterance
        source = utterance.path.relative_to(self.root).as_posix()
        facts: Row = {"split": job.split, "source": source, "sample_rate": self.sample_rate}
        facts |= {"speaker": utterance.speaker, "language": utterance.language, "text": utterance.text}
        try:
            clean = files.read_mono(utterance.path, self.sample_rate)
            clean = clean / max(1.0, float(np.abs(clean).max()))
            made = [
                self.degrader.degrade(clean, self.sample_rate, np.random.default_rng(seed), self.noises, self.rirs)
                for _, seed in job.copies
            ]
        except (ValueError, OSError, RuntimeError) as error:
            cause = f"{type(error).__name__}: {error}"
            return [({"key": key, "status": "failed", "error": cause, **facts}, {}) for key, _ in job.copies]
        facts |= {"samples": len(clean)}
        rows = [
            {"key": key, "status": "done", "error": None, **facts, "degradation": twin.facts}
            for (key, _), twin in zip(job.copies, made, strict=True)
        ]
        twins = [twin.audio for twin in made]
        if self.tree is not None:
            self._write(self.tree / job.split, [row["key"] for row in rows], clean, twins)
            return [(row, {}) for row in rows]
        original = self._original(utterance.path, clean)
        return [
            (row, {**original, f"{DEGRADED}.wav": _wav(twin, self.sample_rate), "json": to_json(row)})
            for row, twin in zip(rows, twins, strict=True)
        ]

    def _write(self, folder: Path, keys: Sequence[str], clean: np.ndarray, twins: Sequence[np.ndarray]) -> None:
        """All copies of the clean recording are one file where the file system has hard links."""
        first = folder / "clean" / f"{keys[0]}.wav"
        files.write(first, clean, self.sample_rate)
        for key, twin in zip(keys, twins, strict=True):
            target = folder / "clean" / f"{key}.wav"
            if target != first:
                target.unlink(missing_ok=True)
                try:
                    os.link(first, target)
                except OSError:
                    with replacing(target) as temporary:
                        shutil.copyfile(first, temporary)
            files.write(folder / "degraded" / f"{key}.wav", twin, self.sample_rate)

    def _original(self, path: Path, clean: np.ndarray) -> dict[str, bytes]:
        suffix = path.suffix.lower()
        if suffix in AUDIO_SUFFIXES:
            return {CLEAN + suffix: path.read_bytes()}
        return {f"{CLEAN}.wav": _wav(clean, self.sample_rate)}


def plan(utterances: Sequence[Utterance], copies: int, seed: int, val_items: int) -> list[Job]:
    """Shuffle and split a corpus.

    Args:
        utterances: In their own order, from which the seeds of the copies follow.
        copies: Of each utterance.
        seed: Of the order and of the copies' seeds.
        val_items: The first so many of the shuffled utterances are for validation.

    Returns:
        Jobs, those of validation first.

    Raises:
        ValueError: Nothing is left for training.
    """
    from zoo.training.resume import item_seed  # imports Lightning, which the workers do not need

    if val_items >= len(utterances):
        raise ValueError(f"val_items {val_items} leaves nothing of {len(utterances)} utterances for training; lower it")
    jobs = []
    for place, index in enumerate(np.random.default_rng(seed).permutation(len(utterances)).tolist()):
        name = utterances[index].name
        made = tuple((f"{name}_{copy}", item_seed(seed, copy, index)) for copy in range(copies))
        jobs.append(Job(utterances[index], "val" if place < val_items else "train", made))
    return jobs


def results(jobs: Sequence[Job], bench: Workbench, workers: int) -> Iterator[list[Result]]:
    """Carry out jobs.

    Args:
        jobs: What to make.
        bench: What they need.
        workers: Processes; 0 works in this one.

    Yields:
        Results in the order of the jobs; few wait at a time, because those of shards hold audio.

    Raises:
        OSError: A result cannot be written, or a worker died.
    """
    if workers == 0 or len(jobs) < 2:
        yield from map(bench.work, jobs)
        return
    context = multiprocessing.get_context("spawn")  # a fork of a process with torch's threads may hang
    with ProcessPoolExecutor(min(workers, len(jobs)), context, _settle_in, (bench,)) as pool:
        waiting: deque[Future[list[Result]]] = deque()
        try:
            for job in jobs:
                waiting.append(pool.submit(_work, job))
                if len(waiting) > 2 * workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except BrokenExecutor as error:
            raise ChildProcessError(
                "a worker died, is the memory full? Run the same command again with fewer --workers: it goes on"
            ) from error
        finally:
            pool.shutdown(cancel_futures=True)


_bench: Workbench | None = None  # of a worker process


def _settle_in(bench: Workbench) -> None:
    global _bench
    _bench = bench
    begin_worker()


def _work(job: Job) -> list[Result]:
    assert _bench is not None
    return _bench.work(job)


def to_json(row: Row) -> bytes:
    """One line, without its end."""
    return json.dumps(row, ensure_ascii=False).encode()


def _wav(audio: np.ndarray, sample_rate: int) -> bytes:
    """A float wav; libsndfile's would hold the time of day, and two runs would differ."""
    buffer = io.BytesIO()
    wavfile.write(buffer, sample_rate, audio.astype(np.float32))
    return buffer.getvalue()
