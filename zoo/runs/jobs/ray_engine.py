"""Bulk inference on a Ray cluster: `zoo predict --engine ray`.

The driver plans and hands out, actors compute: each loads the model once and works through chunks of jobs by
`BulkRun.process` under a number of its own, so files, rows and restarts are those of the plain engine. Plain actors and
not Ray Data: its retries are per block and know nothing of what a block has finished, so a file that kills its actor
either never ends (the default) or takes files of other blocks with it. Here an actor's own record tells what it had
finished and which file it died at.

On GPUs not run.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
from lightning.pytorch.plugins.environments import LightningEnvironment
from rich.progress import Progress
from torch import nn

from zoo import __version__
from zoo.common.locks import is_rank_zero
from zoo.common.report import Row
from zoo.runs.bulk import RANK_MANIFESTS, BulkRun, Job, Plan, read_manifest
from zoo.runs.inference import Inference
from zoo.runs.load import load

log = logging.getLogger(__name__)

MOST_LOSSES = 3  # of actors, at one file, which then counts as failed; in a row before any work, which ends the run
_CHUNK = 64  # files of a call at most: calls cost the driver time, and a bar should move
_SHARE = 4  # a chunk is at most this part of what is left for each actor, so that all end together
_CONNECT_SECONDS = 10.0
_PATIENCE_SECONDS = 600.0  # without any actor: its node may be starting
_LOOK_SECONDS = 5.0  # between looks for nodes that came or went
_OBJECT_STORE_BYTES = 10**8  # chunks and rows are small


@dataclass(frozen=True)
class Model:
    """What an actor loads; plain values, as nothing else is sent.

    Args:
        path: checkpoint or export, absolute, on a file system that all nodes share.
        options: of `zoo.load`.
        ema: of `zoo.load`.
        precision: of a Trainer.
        packages: admitted besides the zoo's.
    """

    path: str
    options: Mapping[str, Any] = field(default_factory=dict)
    ema: bool = True
    precision: Any = None
    packages: tuple[str, ...] = ()


class Worker:
    """The actor: computes chunks of jobs, one after the other."""

    def begin(self, model: dict[str, Any], run: dict[str, Any], accelerator: str, folder: str, version: str) -> None:
        """Load the model.

        Args:
            model: fields of `Model`.
            run: arguments of `BulkRun`; the driver has made this rank's part of the record, empty.
            accelerator: "gpu" or "cpu".
            folder: against which relative paths count; "" where there are none.
            version: the driver's.

        Raises:
            ValueError: when this node has another version, or does not share the folders.
        """
        host = socket.gethostname()
        if version != __version__:
            raise ValueError(f"node {host} has zoo {__version__}, the driver {version}: install the same on all nodes")
        if folder and not Path(folder).is_dir():
            raise ValueError(f"node {host} has no folder {folder}: give absolute paths on a file system that all share")
        os.chdir(folder or ".")
        if not _part(Path(run["output"]), run["rank"]).exists():
            raise ValueError(f"node {host} does not share {run['output']}: all nodes need it on one file system")
        self._run = BulkRun(**run | {"output": Path(run["output"])})
        given = Model(**model)
        device = "cuda" if accelerator == "gpu" else "cpu"
        self._inference = load(given.path, device, given.ema, given.packages, **given.options)
        trainer = L.Trainer(
            accelerator=accelerator, devices=1, precision=given.precision, plugins=[LightningEnvironment()],
            logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        )  # fmt: skip
        self._precision = trainer.strategy.precision_plugin
        self._precision.convert_module(nn.ModuleDict(self._inference.parts()))

    def process(self, jobs: list[tuple[str, str, str | None]]) -> list[Row]:
        """Compute a chunk.

        Returns:
            The rows of what failed.
        """
        rows = []
        with torch.inference_mode(), self._precision.predict_step_context():
            for source, target, member in jobs:
                rows.append(self._run.process(self._inference, Job(Path(source), Path(target), member)))
        self._run.close()
        return [row for row in rows if row["status"] == "failed"]


class _Lethal(Inference):
    """Stands for the model at a file that killed its processes, so that it is recorded as any failure is."""

    def __call__(self) -> None:
        """Nothing is computed."""

    def process_file(self, source: Path, target: Path) -> dict[str, Any]:
        """Fail."""
        raise RuntimeError(f"{MOST_LOSSES} processes died at this file, of a crash or of too little memory")


def _part(output: Path, rank: int) -> Path:
    return output / RANK_MANIFESTS.replace("*", str(rank))


def by_length(jobs: Sequence[Job]) -> tuple[np.ndarray, np.ndarray]:
    """The order in which jobs are handed out: the longest file first, a shard's recordings together.

    Returns:
        Indices (N,) int64, and the bytes of each job (N,) float64, at least 1: of a shard's recordings equal parts.
    """
    sizes, parts = np.zeros(len(jobs)), np.ones(len(jobs))
    place = 0
    for source, group in groupby(jobs, key=lambda job: job.source):
        count = sum(1 for _ in group)
        with contextlib.suppress(OSError):  # it is gone, which its row will say
            sizes[place : place + count] = source.stat().st_size
        parts[place : place + count] = count
        place += count
    return np.argsort(-sizes, kind="stable"), np.maximum(sizes / parts, 1.0)


@dataclass
class _Hand:
    """An actor, the number of its part of the record, and what it computes: None until it is ready."""

    actor: Any
    rank: int
    chunk: list[int] | None = None


class Pool:
    """Hires actors, hands out jobs, replaces actors that are lost.

    Args:
        jobs: what `plan` listed.
        model: what actors load.
        run: the driver's own part of the record, which has begun.
        workers: actors at a time; None: as many as the cluster has room for, also on nodes that join later.
        gpu: one GPU for each actor.
    """

    def __init__(
        self, jobs: Sequence[Job], model: Model, run: BulkRun, workers: int | None = None, gpu: bool = False
    ) -> None:
        self._jobs, self._model, self._run, self._workers, self._gpu = jobs, model, run, workers, gpu
        # Ray gives an actor as many threads as CPUs, unless its node's environment says otherwise
        self._needs = {"CPU": float(os.environ.get("OMP_NUM_THREADS") or 1), **({"GPU": 1.0} if gpu else {})}
        self._order, self._bytes = by_length(jobs)
        self._left, self._place = float(self._bytes.sum()), 0
        self._returned: deque[list[int]] = deque()  # chunks of lost actors
        self._hands: dict[Any, _Hand] = {}  # by the call that they are at
        self._losses: Counter[int] = Counter()
        self._hired = self._lost_starts = 0
        self._looked, self._room = -_LOOK_SECONDS, 0

    def work(self, bar: bool) -> None:
        """Compute all jobs.

        Raises:
            OSError: when the disk is full, actors do not start, or nothing has room for one.
            ValueError: when the model cannot be loaded, or a node differs from the driver's.
        """
        import ray

        settings: dict[str, Any] = {
            "num_cpus": self._needs["CPU"],
            "num_gpus": self._needs.get("GPU", 0),
            "max_restarts": 0,
        }
        self._actor = ray.remote(**settings)(Worker)
        waiting_since = time.monotonic()
        try:
            with Progress(disable=not bar) as progress:
                task = progress.add_task("predict", total=len(self._jobs))
                while self._open or any(hand.chunk for hand in self._hands.values()):
                    self._hire(ray)
                    for call in ray.wait(list(self._hands), timeout=1.0)[0]:
                        progress.advance(task, self._take(ray, call))
                    if any(hand.chunk for hand in self._hands.values()):
                        waiting_since = time.monotonic()
                    elif time.monotonic() - waiting_since > _PATIENCE_SECONDS:
                        raise ChildProcessError(
                            f"no node of the cluster had room for {self._needs} for {_PATIENCE_SECONDS:g} s"
                        )
        finally:
            for hand in self._hands.values():
                ray.kill(hand.actor)

    @property
    def _open(self) -> int:
        """How many jobs nobody computes."""
        return len(self._order) - self._place + sum(map(len, self._returned))

    def _hire(self, ray: Any) -> None:
        if time.monotonic() - self._looked > _LOOK_SECONDS:
            nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
            rooms = [min(node.get(name, 0) // need for name, need in self._needs.items()) for node in nodes]
            self._looked, self._room = time.monotonic(), int(sum(rooms))
        busy = sum(hand.chunk is not None for hand in self._hands.values())
        while len(self._hands) < min(self._workers or max(self._room, 1), busy + self._open):
            self._hired += 1
            hand = _Hand(self._actor.remote(), self._hired)
            output = self._run.output
            _part(output, hand.rank).touch()
            relative = not (output.is_absolute() and self._jobs[0].source.is_absolute())
            run = {"output": str(output), "overwrite": self._run.overwrite, "rank": hand.rank}
            arguments = (asdict(self._model), run, "gpu" if self._gpu else "cpu", os.getcwd() if relative else "")
            self._hands[hand.actor.begin.remote(*arguments, __version__)] = hand

    def _take(self, ray: Any, call: Any) -> int:
        """Receive what a call gave, and hand its actor the next chunk; returns how many jobs are over."""
        hand = self._hands.pop(call)
        over = len(hand.chunk or ())
        try:
            rows = ray.get(call)
        except ray.exceptions.RayTaskError as error:
            if not isinstance(error.cause, (MemoryError, torch.AcceleratorError)):
                raise error.cause from None
            over = self._lose(ray, hand, error.cause)
        except ray.exceptions.RayError as error:
            over = self._lose(ray, hand, error)
        else:
            for row in rows or ():
                log.warning("%s failed: %s", row["source"], row["error"])
            self._lost_starts = 0
            hand.chunk = self._chunk()
            if hand.chunk:
                jobs = [self._jobs[index] for index in hand.chunk]
                sent = [(str(job.source), str(job.target), job.member) for job in jobs]
                self._hands[hand.actor.process.remote(sent)] = hand
            else:
                ray.kill(hand.actor)
        return over

    def _chunk(self) -> list[int]:
        """The next jobs for one actor."""
        if self._returned:
            return self._returned.popleft()
        most, size = self._left / (_SHARE * (len(self._hands) + 1)), 0.0
        chunk: list[int] = []
        while self._place < len(self._order) and len(chunk) < _CHUNK:
            index = int(self._order[self._place])
            if chunk and size + self._bytes[index] > most:
                break
            chunk.append(index)
            size += self._bytes[index]
            self._place += 1
        self._left -= size
        return chunk

    def _lose(self, ray: Any, hand: _Hand, error: Exception) -> int:
        """Find out what a lost actor had done, by its own record; returns how many jobs are over."""
        ray.kill(hand.actor)
        reason = " ".join(str(error).split())[:300]
        if hand.chunk is None:
            self._lost_starts += 1
            log.warning("process %d was lost while it started: %s", hand.rank, reason)
            if self._lost_starts > MOST_LOSSES * max(self._workers or self._room, 1):
                raise ChildProcessError(f"{self._lost_starts} processes in a row died while they started: {reason}")
            return 0
        recorded = {row["source"] for row in read_manifest(_part(self._run.output, hand.rank))}
        left = [index for index in hand.chunk if self._jobs[index].name not in recorded]
        over = len(hand.chunk) - len(left)
        log.warning("process %d was lost with %d files to go, which others take: %s", hand.rank, len(left), reason)
        if left:
            suspect = left.pop(0)
            self._losses[suspect] += 1
            if self._losses[suspect] < MOST_LOSSES:
                self._returned.append([suspect])
            else:
                self._run.process(_Lethal(), self._jobs[suspect])
                over += 1
        if left:
            self._returned.append(left)
        return over


@contextlib.contextmanager
def connected(address: str | None = None, workers: int | None = None) -> Iterator[Any]:
    """Join a cluster, or start one on this machine, and leave it.

    Args:
        address: of the cluster's head, host:port, "auto" for the one that this machine belongs to; RAY_ADDRESS when
            None; without both a cluster of this machine alone is started.
        workers: actors that a cluster of this machine alone has room for, whatever its cores.

    Raises:
        ImportError: without Ray.
        ConnectionError: when nothing answers there.
    """
    try:
        import ray
    except ImportError as error:
        raise ImportError("--engine ray needs Ray: pip install 'zoo[ray]'") from error
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    told: dict[str, Any] = {"log_to_driver": False, "logging_level": "warning"}
    if address == "local":
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        threads = int(os.environ.get("OMP_NUM_THREADS") or 1)
        told |= {"include_dashboard": False, "object_store_memory": _OBJECT_STORE_BYTES}
        told |= {"num_cpus": workers * threads} if workers else {}
    elif address != "auto":
        _knock(address)
    try:
        ray.init(address, **told)
    except Exception as error:  # Ray raises plain ones
        raise ConnectionError(f"--ray_address {address}: {' '.join(str(error).split())}") from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _knock(address: str) -> None:
    """Ray itself tries for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        raise ValueError(f"--ray_address {address}: expected host:port, or auto for the cluster of this machine")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()
    except OSError as error:
        raise ConnectionError(
            f"--ray_address {address}: nothing answers there ({error}); is the head running?"
        ) from error


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """Leave on SIGTERM with 143, as other commands do; Ray's own handler leaves with 15."""

    def leave(number: int, frame: Any) -> None:
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def predict(
    jobs: Plan,
    model: Model,
    output: Path,
    overwrite: bool = False,
    address: str | None = None,
    workers: int | None = None,
    accelerator: str = "auto",
    bar: bool = True,
) -> Row:
    """Compute jobs on a Ray cluster.

    Args:
        jobs: what `plan` listed.
        model: what actors load.
        output: the folder for results, shared by all nodes as the inputs are.
        overwrite: compute also what is finished already.
        address: as for `connected`.
        workers: actors at a time; None: as many as the cluster has room for, also on nodes that join later.
        accelerator: "cpu", or "auto": one GPU for each actor where the cluster has any.
        bar: show one.

    Returns:
        The summary, as `BulkRun.finish` gives it.

    Raises:
        ImportError: without Ray.
        OSError: the cluster does not answer, the disk is full, or actors do not start.
        ValueError: the model cannot be loaded, a node has another version or other folders.
    """
    if not is_rank_zero():
        raise ValueError("--engine ray: start the command once, not on every rank")
    with connected(address, workers) as ray, _terminable():
        run = BulkRun(output, overwrite)
        run.begin()
        owed = run.owed(jobs)
        gpu = accelerator != "cpu" and (accelerator != "auto" or ray.cluster_resources().get("GPU", 0) > 0)
        if owed:
            Pool(owed, model, run, workers, gpu).work(bar)
        return run.finish()
