"""Bulk inference that may be killed at any point and run again: `zoo predict` over a file or a folder tree."""

from __future__ import annotations

import array
import contextlib
import errno
import json
import logging
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import lightning as L
import torch

from zoo.common.atomic import sweep_temporaries, write_atomic
from zoo.common.hardware import peak_memory_bytes
from zoo.common.locks import LOCK_NAME, is_held, is_rank_zero, locked
from zoo.common.ranges import at_least
from zoo.common.report import Row, write_report
from zoo.runs.inference import Inference
from zoo.runs.jobs import manifest
from zoo.runs.jobs.manifest import MANIFEST_NAME, RANK_MANIFESTS, SUMMARY_NAME, Record, read_manifest
from zoo.runs.jobs.order import Digests
from zoo.runs.jobs.plan import Job, Plan, ShardFiles, plan
from zoo.runs.jobs.tars import TAR_FOLDERS, TarOutput, done_keys, extension_of, key_of, row_files, sweep_tars
from zoo.runs.jobs.together import own_seconds, together

__all__ = ["BulkData", "BulkRun", "Job", "Plan", "Shard", "plan", "read_manifest", "writing"]

log = logging.getLogger(__name__)

SHARDS_NAME = "shards.json"
_LEAST_FREE_BYTES = 2**20  # below this a failed write is taken for a full disk
_LOCKS = f"{LOCK_NAME}s"  # folder of the shards' locks, and itself locked while one begins or ends
_PATIENCE_SECONDS = 600.0  # the last shard merges the rows of all
_ROWS_AT_ONCE = 1000
_ROUNDS = 16  # files for each place, between which the progress bar moves and the last ones run alone


class Shard(NamedTuple):
    """A part of a work list for a process that talks to no other: every total-th job from the number-th on, from 1."""

    number: int
    total: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Read `3/8`.

        Raises:
            ValueError: it is nothing like that.
        """
        found = re.fullmatch(r"(\d+)/(\d+)", text)
        if found is None or not 1 <= int(found[1]) <= int(found[2]):
            raise ValueError(f"--shard {text}: expected i/n, the i-th of n shards, from 1/n to n/n")
        return cls(int(found[1]), int(found[2]))

    def __str__(self) -> str:
        return f"{self.number}/{self.total}"

    @property
    def name(self) -> str:
        """As in file names."""
        return f"shard-{self.number}-of-{self.total}"


@contextlib.contextmanager
def writing(output: Path, command: str, shard: Shard | None = None) -> Iterator[None]:
    """Keep others from the same work: a whole run from all others, a shard from itself and from whole runs.

    Raises:
        ValueError: when another process does it; it is named.
        OSError: when the folder cannot be written.
    """
    if not is_rank_zero():
        yield
        return
    with contextlib.ExitStack() as stack:
        if shard is None:
            stack.enter_context(locked(output, command))
        with _turn(output, command):
            busy = _running(output) if shard is None else ["a run without --shard"] if is_held(output) else []
            if busy:
                raise ValueError(f"{output} is being written by {', '.join(busy)}: wait or stop it")
            if shard is not None:
                stack.enter_context(locked(output / _LOCKS / shard.name, f"{command} --shard {shard}"))
        yield
    # a killed one may have left its folder, and the first that holds something ends it
    with contextlib.suppress(OSError):
        if shard is not None and (output / _LOCKS / shard.name).exists():
            (output / _LOCKS / shard.name).rmdir()
        (output / _LOCKS).rmdir()


def _turn(output: Path, command: str) -> contextlib.AbstractContextManager[None]:
    return locked(output / _LOCKS, command, _PATIENCE_SECONDS)


def _running(output: Path) -> list[str]:
    """Shards under way."""
    return [path.name for path in sorted((output / _LOCKS).glob("shard-*")) if is_held(path)]


class BulkRun:
    """Computes jobs and keeps a record that survives a kill at any point.

    Every job appends a row to `manifest.rank<r>.jsonl` at once; at the end rank zero merges them into
    `manifest.jsonl`: one row per source, rows of earlier runs kept. A killed run's rows are merged by the next one.
    The ranks of a shard do the same in `manifest.shard-<i>-of-<n>.*`; the shard that ends last merges those of all.

    Args:
        overwrite: compute also what is finished already.
        rank: of this process among those that share the work (of the shard).
        shard: the part of the list that these processes do; they do it within `writing`.
        tar: write results into tar shards of so many below `tars.*`, instead of files; None for files.
    """

    def __init__(
        self, output: Path, overwrite: bool = False, rank: int = 0, shard: Shard | None = None, tar: int | None = None
    ) -> None:
        self.output = Path(output)
        self.overwrite = overwrite
        self.shard = shard
        self._prefix = "" if shard is None else f"{shard.name}."
        self._record = Record(self._path(RANK_MANIFESTS.replace("*", str(rank))))
        self._device = torch.device("cpu")
        self._shards = ShardFiles()
        if tar is not None and (overwrite or tar < 1):
            raise ValueError(
                f"--tar {tar} with --overwrite {overwrite}: expected the results of a shard, at least 1, and no "
                "--overwrite, since results in shards are not replaced one by one; name another --output"
            )
        self._tar, self._tar_folder = tar, self.output / TAR_FOLDERS.replace("*", f"{self._prefix}rank{rank}")
        self._tars: TarOutput | None = None
        self._done: Digests | None = None

    def _path(self, name: str) -> Path:
        """Where this shard has what a whole run calls so: `summary.json` -> `summary.shard-1-of-2.json`."""
        stem, _, rest = name.partition(".")
        return self.output / f"{stem}.{self._prefix}{rest}"

    def begin(self, jobs: Plan | None = None) -> None:
        """Clear up after a killed run. Rank zero calls it before any rank computes.

        Args:
            jobs: the plan, of a shard.

        Raises:
            ValueError: when a shard's plan is another than that of the shards before it.
            OSError: when the output folder cannot be written.
        """
        self.output.mkdir(parents=True, exist_ok=True)
        if self.shard is None:
            self._sweep()
            shards = sorted(self.output.glob("manifest.shard-*.jsonl"))  # a shard's own before those of its ranks
            self._merge([path for ranks in (False, True) for path in shards if (".rank" in path.name) == ranks])
            for path in (*self.output.glob("summary.shard-*.json"), self.output / SHARDS_NAME):
                path.unlink(missing_ok=True)
        elif jobs is None:
            raise ValueError("a shard begins with its plan: begin(jobs)")
        else:
            with _turn(self.output, f"predict, {self.shard.name}"):
                self._join(self.shard, jobs)
                if not [name for name in _running(self.output) if name != self.shard.name]:
                    self._sweep()
        sweep_tars(self.output, self._prefix)
        self._merge()

    def _join(self, shard: Shard, jobs: Plan) -> None:
        """Compare the plan with that of the other shards; a round that is complete makes room for another."""
        path = self.output / SHARDS_NAME
        mine: Row = {"shards": shard.total, "files": jobs.whole, "plan": jobs.digest}
        known: Row = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else mine
        if known != mine and len(list(self.output.glob("summary.shard-*.json"))) < known["shards"]:
            raise ValueError(
                f"{self.output}: shard {shard} would do another list than the shards before it: "
                f"{mine['files']} files in {mine['shards']} shards (plan {mine['plan'][:8]}), theirs has "
                f"{known['files']} in {known['shards']} (plan {known['plan'][:8]}); were files added or removed, or is "
                "--fanout another? Restore the list until all shards are done, or run once without --shard"
            )
        if known != mine:
            for old in self.output.glob("summary.shard-*.json"):
                old.unlink()
        self._path(SUMMARY_NAME).unlink(missing_ok=True)
        write_atomic(path, lambda file: file.write(json.dumps(mine, indent=1).encode()))

    def _sweep(self) -> None:
        stale = sweep_temporaries(self.output)
        if stale:
            log.info("removed %d half-written files that a killed run left in %s", len(stale), self.output)

    def owed(self, jobs: Plan) -> Plan:
        """The jobs without result; the others are recorded as skipped."""
        if self.overwrite:
            return jobs
        missing, skipped = array.array("q"), list[Row]()
        for number, name, target in jobs.entries():
            if not self._is_done(target):
                missing.append(number)
                continue
            place = target if self._tar is None else None
            skipped.append({"source": name, "target": place, "status": "skipped", "error": None, "seconds": 0.0})
            if len(skipped) == _ROWS_AT_ONCE:
                self._record.append(*skipped)
                skipped = []
        self._record.append(*skipped)
        return jobs.only(missing)

    def _is_done(self, target: str) -> bool:
        if self._tar is None:
            return os.path.exists(os.path.join(self.output, target))
        if self._done is None:
            self._done = done_keys(self.output)
        return key_of(target).encode() in self._done

    def process(self, inference: Inference, job: Job) -> Row:
        """Compute one job unless its result exists, and record what happened.

        Returns:
            The manifest's row: `source` (absolute; a shard's recording as if the shard were a folder), `target`
            (relative to the output folder, likewise), `status` ("done", "failed" or "skipped"), `error` (None unless
            failed), `seconds` (of what is computed together a share), and the facts of `process_file`.

        Raises:
            OSError: when the disk is full: the next files would fare no better.
            MemoryError: when the machine's memory is exhausted.
        """
        self._device = inference.device
        started = own_seconds()
        status, error = "done", None
        facts, results = Row(), dict[str, bytes]()
        target = job.target.relative_to(self.output).as_posix()
        if not self.overwrite and self._is_done(target):
            status = "skipped"
        else:
            try:
                facts, results = self._compute(inference, job)
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
            "target": None if status == "skipped" and self._tar else target,
            "status": status,
            "error": error,
            "seconds": round(own_seconds() - started, 6),
        }
        row = record | facts | record  # in this order, and no fact hides what the record says
        if status == "done" and self._tar is not None:
            if self._tars is None:
                self._tars = TarOutput(self._tar_folder, self._tar, self._record)
            self._tars.add(row, results)
        else:
            self._record.append(row)
        return row

    def close(self) -> None:
        """Have everything on the disk; each rank calls it when its jobs are done."""
        if self._tars is not None:
            self._tars.flush()
        self._record.close()

    def finish(self) -> Row:
        """Merge the manifests and sum up. Rank zero calls it when all ranks are done.

        Returns:
            Counts `done`, `failed`, `skipped`; `seconds` of work over all ranks; `audio_seconds` and
            `real_time_factor` (seconds of work per second of audio) where the facts hold them; `peak_memory_gib` of
            this process. The same goes to `summary.json`, of a shard to `summary.shard-<i>-of-<n>.json`.
        """
        self.close()
        summary = manifest.count(self._parts())
        summary["peak_memory_gib"] = round(peak_memory_bytes(self._device) / 2**30, 3)
        self._merge()
        write_report(self.output, {self._path(SUMMARY_NAME).name: summary}, indent=2)
        log.info("%s: %s", self.output, ", ".join(f"{key} {value}" for key, value in summary.items()))
        if self.shard is not None:
            with _turn(self.output, f"predict, {self.shard.name}"):
                self._finish_shards(self.shard)
        return summary

    def _finish_shards(self, shard: Shard) -> None:
        """Merge the manifests of all shards when this one was the last."""
        paths = sorted(self.output.glob(f"summary.shard-*-of-{shard.total}.json"))
        if len(paths) < shard.total:
            log.info("%s: %d of %d shards are done", self.output, len(paths), shard.total)
            return
        if _running(self.output) in ([], [shard.name]):
            self._sweep()
        parts = sorted(self.output.glob(f"manifest.shard-*-of-{shard.total}.jsonl"))
        manifest.merge(self.output / MANIFEST_NAME, [*parts, *row_files(self.output)])
        for path in parts:
            path.unlink()
        summaries = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
        write_report(self.output, {SUMMARY_NAME: manifest.add(summaries)}, indent=2)

    def _compute(self, inference: Inference, job: Job) -> tuple[Row, dict[str, bytes]]:
        """The facts, and the results by extension where they go to a tar."""
        with contextlib.ExitStack() as stack:
            source, target = job.source, job.target
            if self._tar is not None:
                target = Path(stack.enter_context(tempfile.TemporaryDirectory())) / target.name
            else:
                target.parent.mkdir(parents=True, exist_ok=True)
            if job.member is not None:
                source = stack.enter_context(self._shards.file(source, job.member))
            try:
                facts = inference.process_file(source, target)
            except torch.OutOfMemoryError:
                torch.cuda.empty_cache()  # one file may be too long for the device, the next one is not
                raise
            if not target.exists():
                raise RuntimeError(f"{type(inference).__name__}.process_file wrote no {job.target}")
            beside = sorted(target.parent.iterdir()) if self._tar is not None else []
            made = sorted(beside, key=lambda path: path != target)  # the result, then what else was written
            return facts, {extension_of(path.name, target.stem): path.read_bytes() for path in made}

    def _disk_is_full(self, error: OSError) -> bool:
        # libsndfile reports a full disk without its number
        return error.errno in (errno.ENOSPC, errno.EDQUOT) or shutil.disk_usage(self.output).free < _LEAST_FREE_BYTES

    def _parts(self) -> list[Path]:
        return sorted(self.output.glob(self._path(RANK_MANIFESTS).name))

    def _merge(self, more: Sequence[Path] = ()) -> None:
        parts = [*more, *self._parts()]
        tars = list(row_files(self.output)) if self._tar is not None and self.shard is None else []
        if not parts and not tars:
            return
        manifest.merge(self._path(MANIFEST_NAME), [*parts, *tars])  # what lies in a whole shard stays done
        for path in parts:
            path.unlink()


class BulkData(L.LightningDataModule):
    """Gives each rank its share of the jobs, and keeps the record: all that `trainer.predict` needs besides a task.

    The task's `predict_step` is `return self.trainer.datamodule.process(self.inference(), batch)`.

    Args:
        input: a file or a folder tree.
        suffixes: of the files to read, usually `Inference.input_suffixes`.
        output_suffix: of the files to write, usually `Inference.output_suffix`.
        overwrite, shard, tar: see `BulkRun`.
        fanout: see `plan`.
        files_together: under way at once, their chunks of one length in one batch; see `together`. 1 is one by one.

    Raises:
        FileNotFoundError: when there is no such input.
        ValueError: when there is nothing to do, or results would overwrite something.
    """

    def __init__(
        self, input: Path, output: Path, suffixes: Sequence[str], output_suffix: str, overwrite: bool = False,
        shard: Shard | None = None, fanout: int | None = None, tar: int | None = None, files_together: int = 1,
    ) -> None:  # fmt: skip
        super().__init__()
        self.allow_zero_length_dataloader_with_multiple_devices = True  # more ranks than files
        whole = plan(input, output, suffixes, output_suffix, fanout)
        self.jobs = whole if shard is None else whole[shard.number - 1 :: shard.total]
        self.output = Path(output)
        self.overwrite, self.shard, self.tar = overwrite, shard, tar
        at_least(1, files_together=files_together)
        self.files_together = files_together
        self.summary: Row = {}

    @property
    def failed(self) -> int:
        """How many files failed, over all ranks; known after `trainer.predict`."""
        return self.summary.get("failed", 0)

    def setup(self, stage: str) -> None:
        """Clear up after a killed run before any rank computes.

        Raises:
            ValueError: when the ranks see different files.
        """
        trainer = self._attached()
        equal = trainer.strategy.broadcast(self.jobs.digest) == self.jobs.digest
        if not trainer.strategy.reduce_boolean_decision(equal, all=True):
            raise ValueError(f"the ranks found different files below {self.jobs.root}; run the same command again")
        self._run = BulkRun(self.output, self.overwrite, trainer.global_rank, self.shard, self.tar)
        if trainer.is_global_zero:
            self._run.begin(self.jobs)
        trainer.strategy.barrier("bulk begins")

    def predict_dataloader(self) -> _Slice:
        """This rank's jobs without result, one by one or as many at a time as make some rounds together."""
        trainer = self._attached()
        several = self.files_together * _ROUNDS if self.files_together > 1 else 1
        return _Slice(self._run.owed(self.jobs[trainer.global_rank :: trainer.world_size]), several)

    def process(self, inference: Inference, jobs: Sequence[Job]) -> list[Row]:
        """Compute jobs and record them; see `BulkRun.process`."""
        if self.files_together == 1:
            return [self._run.process(inference, job) for job in jobs]
        return together([partial(self._run.process, inference, job) for job in jobs], self.files_together)

    def teardown(self, stage: str) -> None:
        """Merge the record when all ranks are done, and tell every rank the summary."""
        trainer = self._attached()
        self._run.close()
        trainer.strategy.barrier("bulk ends")
        summary = self._run.finish() if trainer.is_global_zero else {}
        self.summary = trainer.strategy.broadcast(summary)

    def _attached(self) -> L.Trainer:
        if self.trainer is None:
            raise RuntimeError("BulkData serves trainer.predict(task, datamodule=...); use BulkRun without a Trainer")
        return self.trainer


class _Slice:
    """A loader of plain lists: Lightning would give a DataLoader a sampler of its own and slice it again."""

    def __init__(self, jobs: Sequence[Job], several: int) -> None:
        self._jobs, self._several = jobs, several

    def __len__(self) -> int:
        return -(-len(self._jobs) // self._several)

    def __iter__(self) -> Iterator[list[Job]]:
        jobs = iter(self._jobs)
        while some := list(islice(jobs, self._several)):
            yield some
