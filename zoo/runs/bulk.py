"""Bulk inference that may be killed at any point and run again: `zoo predict` over a file or a folder tree."""

from __future__ import annotations

import contextlib
import errno
import logging
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import lightning as L
import torch

from zoo.audio.io.archives import TAR_SUFFIXES, Member, read_tar
from zoo.audio.io.files import walk
from zoo.audio.io.shards import AUDIO_SUFFIXES, CLEAN, DEGRADED
from zoo.common.atomic import sweep_temporaries
from zoo.common.hardware import peak_memory_bytes
from zoo.common.report import Row, write_report
from zoo.common.work import Journal
from zoo.runs.inference import Inference

log = logging.getLogger(__name__)

WALK_SUFFIXES = tuple(sorted({Path(f"x{suffix}").suffix for suffix in TAR_SUFFIXES}))
"""What `zoo.audio.io.files.walk` must be asked for to find shards; other `.gz` files are found too."""
_WANTED = [f"{stem}{suffix}" for stem in (DEGRADED, CLEAN) for suffix in AUDIO_SUFFIXES]


def is_shard(path: Path) -> bool:
    """Whether a path is named like a shard."""
    return path.name.endswith(TAR_SUFFIXES)


def shard_stem(path: Path) -> str:
    """The name of a shard without its suffix."""
    return next(path.name.removesuffix(suffix) for suffix in TAR_SUFFIXES if path.name.endswith(suffix))


def recordings(shard: Path) -> dict[str, str]:
    """List what is to be computed of a shard, without reading the samples.

    Args:
        shard: tar file, compressed by gzip or not.

    Returns:
        Member's name by key, in order: of each sample the degraded recording, or the speech where there is none.

    Raises:
        ValueError: when the shard is cut or damaged, or no sample holds a recording.
    """
    found: dict[str, str] = {}
    for member in read_tar(shard):
        folder, slash, last = member.name.rpartition("/")
        stem, _, extension = last.partition(".")
        key = folder + slash + stem
        if extension in _WANTED and (key not in found or _rank(member.name) < _rank(found[key])):
            found[key] = member.name
    if not found:
        raise ValueError(f"{shard}: no sample holds a recording, expected members like <key>.{_WANTED[0]}")
    return found


def _rank(name: str) -> int:
    return _WANTED.index(name.rpartition("/")[2].partition(".")[2])


class ShardFiles:
    """Gives members as files; goes through each shard once when they are asked for in their order."""

    def __init__(self) -> None:
        self._shard: Path | None = None
        self._members: Iterator[Member] = iter(())

    @contextlib.contextmanager
    def file(self, shard: Path, name: str) -> Iterator[Path]:
        """Unpack a member for a while.

        Yields:
            A temporary file.

        Raises:
            ValueError: when the shard has no such member, or is damaged there; also, naming the member in place of the
                temporary file, when the caller raises it.
        """
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / name.rpartition("/")[2]
            path.write_bytes(self._read(shard, name))
            try:
                yield path
            except ValueError as error:
                raise ValueError(str(error).replace(str(path), f"{shard}/{name}")) from error

    def _read(self, shard: Path, name: str) -> bytes:
        for _ in range(2):
            if shard != self._shard:
                self._shard, self._members = shard, read_tar(shard)
            for member in self._members:
                if member.name == name:
                    return member.read()
            self._shard = None  # the member lies further to the front
        raise ValueError(f"{shard}: holds no {name} any more; run the same command again")


MANIFEST_NAME = "manifest.jsonl"
SUMMARY_NAME = "summary.json"
RANK_MANIFESTS = "manifest.rank*.jsonl"
STATES = ("done", "failed", "skipped")
_LEAST_FREE_BYTES = 2**20  # below this a failed write is taken for a full disk


class Job(NamedTuple):
    """One file to compute, or one member of a shard."""

    source: Path
    target: Path
    member: str | None = None

    @property
    def name(self) -> str:
        """The source as the manifest names it."""
        return str(self.source.absolute() / (self.member or ""))


def plan(input: Path, output: Path, suffixes: Sequence[str], output_suffix: str) -> list[Job]:
    """List what is to be computed; the same on every rank, whatever is finished already.

    Args:
        input: a file, or a folder whose tree is mirrored. Where audio is read, shards (`.tar`, `.tar.gz`) are folders
            of recordings: the degraded one of each sample, else the speech, goes to `<shard>/<key>`.
        output: the folder for results; when it lies inside `input`, what it holds is no input.
        suffixes: of the files to read, lower case with the dot.
        output_suffix: of the files to write. Where `a.wav` and `a.flac` would meet in one target, both keep their
            suffix: `a.wav.wav` and `a.flac.wav`.

    Returns:
        Jobs in the order of their sources.

    Raises:
        FileNotFoundError: when there is no such input.
        ValueError: when no file has one of the suffixes, or results would overwrite inputs or one another.
    """
    input, output = Path(input), Path(output)
    if output.exists() and not output.is_dir():
        raise ValueError(f"--output {output} is a file; name a folder")
    root = input if input.is_dir() else input.parent
    shards = WALK_SUFFIXES if ".wav" in suffixes else ()
    found = [source.relative_to(root) for source in walk(input, (*suffixes, *shards))]
    names = [name for name in found if name.suffix.lower() in suffixes or is_shard(name)]
    inside, whole = output.resolve(), root.resolve()
    if input.is_dir() and inside == whole:
        raise ValueError(f"--output {output} is the input folder itself; name another folder")
    if input.is_dir() and inside.is_relative_to(whole):
        names = [name for name in names if not name.is_relative_to(inside.relative_to(whole))]
    if not names:
        raise ValueError(f"no file below {input} ends in {', '.join(suffixes)}")
    inputs = [(name, member, target) for name in names for member, target in _targets(root, name, output_suffix)]
    shared = {target for target, count in Counter(target for _, _, target in inputs).items() if count > 1}
    jobs = []
    for name, member, target in inputs:
        if target in shared and member is None:
            target = name.with_name(name.name + output_suffix)
        jobs.append(Job(root / name, output / target, member))
    taken = {whole / name for name in names}
    for job in jobs:
        target = inside / job.target.relative_to(output)
        if target in taken:
            raise ValueError(
                f"the result of {job.source / (job.member or '')} would overwrite an input, {job.target}, or another "
                "result; rename the input or name another --output"
            )
        taken.add(target)
    return jobs


def _targets(root: Path, name: Path, suffix: str) -> list[tuple[str | None, Path]]:
    """What a source gives: (its member, the target relative to the output)."""
    if not is_shard(name):
        return [(None, name.with_suffix(suffix))]
    folder = name.with_name(shard_stem(name))
    return [(member, folder / f"{key}{suffix}") for key, member in recordings(root / name).items()]


class BulkRun:
    """Computes jobs and keeps a record that survives a kill at any point.

    Every job appends a row to `manifest.rank<r>.jsonl` at once; at the end rank zero merges them into
    `manifest.jsonl`: one row per source, rows of earlier runs kept. A killed run's rows are merged by the next one.

    Args:
        overwrite: compute also what is finished already.
    """

    def __init__(self, output: Path, overwrite: bool = False, rank: int = 0) -> None:
        self.output = Path(output)
        self.overwrite = overwrite
        self._record = Journal(self.output / RANK_MANIFESTS.replace("*", str(rank)), ascii=True, durable=True)
        self._device = torch.device("cpu")
        self._shards = ShardFiles()

    def begin(self) -> None:
        """Clear up after a killed run. Rank zero calls it before any rank computes.

        Raises:
            OSError: when the output folder cannot be written.
        """
        self.output.mkdir(parents=True, exist_ok=True)
        stale = sweep_temporaries(self.output)
        if stale:
            log.info("removed %d half-written files that a killed run left in %s", len(stale), self.output)
        self._merge()

    def process(self, inference: Inference, job: Job) -> Row:
        """Compute one job unless its target exists, and record what happened.

        Returns:
            The manifest's row: `source` (absolute; a shard's recording as if the shard were a folder), `target`
            (relative to the output folder), `status` ("done", "failed" or "skipped"), `error` (None unless failed),
            `seconds`, and the facts of `process_file`.

        Raises:
            OSError: when the disk is full: the next files would fare no better.
            MemoryError: when the machine's memory is exhausted.
        """
        self._device = inference.device
        started = time.perf_counter()
        status, error, facts = "done", None, {}
        if job.target.exists() and not self.overwrite:
            status = "skipped"
        else:
            try:
                facts = self._compute(inference, job)
            except torch.AcceleratorError:
                raise  # the device is lost for this process
            except (ValueError, OSError, RuntimeError) as caught:
                if isinstance(caught, OSError) and self._disk_is_full(caught):
                    raise OSError(
                        errno.ENOSPC, f"no room for {job.target}: free some and run the same command again, it goes on"
                    ) from caught
                status, error = "failed", f"{type(caught).__name__}: {caught}"
                log.warning("%s failed: %s", job.name, error)
        record = {
            "source": job.name,
            "target": job.target.relative_to(self.output).as_posix(),
            "status": status,
            "error": error,
            "seconds": round(time.perf_counter() - started, 6),
        }
        row = record | facts | record  # in this order, and no fact hides what the record says
        self._record.append(row)
        return row

    def finish(self) -> Row:
        """Merge the manifests and sum up. Rank zero calls it when all ranks are done.

        Returns:
            Counts `done`, `failed`, `skipped`; `seconds` of work over all ranks; `audio_seconds` and
            `real_time_factor` (seconds of work per second of audio) where the facts hold them; `peak_memory_gib` of
            this process. The same goes to `summary.json`.
        """
        rows = [row for path in sorted(self.output.glob(RANK_MANIFESTS)) for row in read_manifest(path)]
        counts = Counter(row["status"] for row in rows)
        summary: Row = {status: counts[status] for status in STATES}
        done = [row for row in rows if row["status"] == "done"]
        summary["seconds"] = round(sum(row["seconds"] for row in done), 3)
        timed = [row for row in done if "audio_seconds" in row]
        if timed:
            audio = sum(row["audio_seconds"] for row in timed)
            summary["audio_seconds"] = round(audio, 3)
            summary["real_time_factor"] = round(sum(row["seconds"] for row in timed) / max(audio, 1e-9), 6)
        summary["peak_memory_gib"] = round(peak_memory_bytes(self._device) / 2**30, 3)
        self._merge()
        write_report(self.output, {SUMMARY_NAME: summary}, indent=2)
        log.info("%s: %s", self.output, ", ".join(f"{key} {value}" for key, value in summary.items()))
        return summary

    def _compute(self, inference: Inference, job: Job) -> Row:
        job.target.parent.mkdir(parents=True, exist_ok=True)
        try:
            if job.member is None:
                facts = inference.process_file(job.source, job.target)
            else:
                with self._shards.file(job.source, job.member) as source:
                    facts = inference.process_file(source, job.target)
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()  # one file may be too long for the device, the next one is not
            raise
        if not job.target.exists():
            raise RuntimeError(f"{type(inference).__name__}.process_file wrote no {job.target}")
        return facts

    def _disk_is_full(self, error: OSError) -> bool:
        # libsndfile reports a full disk without its number
        return error.errno in (errno.ENOSPC, errno.EDQUOT) or shutil.disk_usage(self.output).free < _LEAST_FREE_BYTES

    def _merge(self) -> None:
        parts = sorted(self.output.glob(RANK_MANIFESTS))
        if not parts:
            return
        latest: dict[str, Row] = {}
        for path in (self.output / MANIFEST_NAME, *parts):
            for row in read_manifest(path):
                old = latest.get(row["source"])
                known = old is not None and old["status"] == "done" and old["target"] == row["target"]
                if not (known and row["status"] == "skipped"):  # the row of the computation says more
                    latest[row["source"]] = row
        Journal(self.output / MANIFEST_NAME, ascii=True).write(latest[source] for source in sorted(latest))
        for path in parts:
            path.unlink()


class BulkData(L.LightningDataModule):
    """Gives each rank its share of the jobs, and keeps the record: all that `trainer.predict` needs besides a task.

    The task's `predict_step` is `return self.trainer.datamodule.process(self.inference(), batch)`.

    Args:
        input: a file or a folder tree.
        suffixes: of the files to read, usually `Inference.input_suffixes`.
        output_suffix: of the files to write, usually `Inference.output_suffix`.
        overwrite: compute also what is finished already.

    Raises:
        FileNotFoundError: when there is no such input.
        ValueError: when there is nothing to do, or results would overwrite something.
    """

    def __init__(
        self, input: Path, output: Path, suffixes: Sequence[str], output_suffix: str, overwrite: bool = False
    ) -> None:
        super().__init__()
        self.allow_zero_length_dataloader_with_multiple_devices = True  # more ranks than files
        self.jobs = plan(input, output, suffixes, output_suffix)
        self.output = Path(output)
        self.overwrite = overwrite
        self.summary: Row = {}

    @property
    def failed(self) -> int:
        """How many files failed, over all ranks; known after `trainer.predict`."""
        return self.summary.get("failed", 0)

    def setup(self, stage: str) -> None:
        """Clear up after a killed run before any rank computes."""
        trainer = self._attached()
        self._run = BulkRun(self.output, self.overwrite, trainer.global_rank)
        if trainer.is_global_zero:
            self._run.begin()
        trainer.strategy.barrier("bulk begins")

    def predict_dataloader(self) -> _Slice:
        """This rank's jobs, one by one."""
        trainer = self._attached()
        return _Slice(self.jobs[trainer.global_rank :: trainer.world_size])

    def process(self, inference: Inference, job: Job) -> Row:
        """Compute one job and record it; see `BulkRun.process`."""
        return self._run.process(inference, job)

    def teardown(self, stage: str) -> None:
        """Merge the record when all ranks are done, and tell every rank the summary."""
        trainer = self._attached()
        trainer.strategy.barrier("bulk ends")
        summary = self._run.finish() if trainer.is_global_zero else {}
        self.summary = trainer.strategy.broadcast(summary)

    def _attached(self) -> L.Trainer:
        if self.trainer is None:
            raise RuntimeError("BulkData serves trainer.predict(task, datamodule=...); use BulkRun without a Trainer")
        return self.trainer


class _Slice:
    """A loader of plain objects: Lightning would give a DataLoader a sampler of its own and slice it again."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._jobs = jobs

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[Job]:
        return iter(self._jobs)


def read_manifest(path: Path) -> list[Row]:
    """Read the rows of a manifest; lines that a kill tore are left out, a missing file has none."""
    needed = {"source", "target", "status"}
    return [row for row in Journal(path).read() if isinstance(row, dict) and needed <= row.keys()]
