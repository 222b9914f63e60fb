"""Prediction over many files by the actors of a Ray cluster: `zoo predict --engine ray`.

Ray Data hands out chunks of files and retries those whose actor died. Each chunk has its own part of the manifest, so
a retry knows what is done, and how many actors died at a file.

Not run on GPUs.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.progress import Progress

from zoo import __version__
from zoo.common.reports import Row
from zoo.runs.inference.base import Inference
from zoo.runs.load import load
from zoo.runs.predict.input_files import InputFile
from zoo.runs.predict.results import Results, open_results
from zoo.runs.predict.run import autocast, terminate_as_exit

log = logging.getLogger(__name__)


CHUNK_FILES = 64  # at most: calls cost the driver time, and a bar should move
_CHUNKS_PER_ACTOR = 4  # at least, so that all end together
_UNFINISHED = ("started", "interrupted", "failed")
_CONNECT_SECONDS = 10.0
_OBJECT_STORE_BYTES = 10**8  # chunks and counts are small


@dataclass(frozen=True)
class WorkerSettings:
    """What an actor loads; plain values.

    Args:
        path: checkpoint or export, absolute, on a file system that all nodes share.
        options: of `zoo.load`.
        precision: one of `PRECISIONS`.
        device: "auto" is a GPU for each actor where the cluster has any.
        folder: the driver's working directory.
        packages: of the user, whose classes may be built.
    """

    path: str
    options: Mapping[str, Any]
    precision: str
    device: str
    folder: str
    packages: Sequence[str] = ()


class PredictWorker:
    """An actor, which loads the model once and computes chunks of files.

    What ends the whole run is returned and not raised: Ray would wrap it, and try again.

    Args:
        settings: what to load.
        output: absolute path of the folder for results.
        settings_id: see `Results`.
        version: the driver's.
    """

    def __init__(self, settings: WorkerSettings, output: str, settings_id: str, version: str) -> None:
        self._settings, self._output, self._settings_id, self._version = settings, Path(output), settings_id, version
        self._inference: Inference | None = None

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Compute a chunk, a line of JSON; returns its totals, failures and what ends the run likewise."""
        made: dict[str, Any] = {}
        try:
            self._inference = self._inference or self._load()
            made = self._compute(self._inference, json.loads(batch["item"][0]))
        except OSError as error:
            made["error"] = error.errno, error.strerror or str(error)
        except (ValueError, ImportError) as error:
            made["error"] = None, str(error)
        except (torch.AcceleratorError, MemoryError):
            os._exit(1)  # Ray starts another actor, which computes the rest of the chunk
        return {"item": [json.dumps(made)]}

    def _load(self) -> Inference:
        """Load the model.

        Raises:
            ValueError: when this node has another version, or does not share the output folder.
        """
        host, settings = socket.gethostname(), self._settings
        if self._version != __version__:
            raise ValueError(
                f"node {host} has zoo {__version__}, the driver {self._version}: install the same on all nodes"
            )
        if not self._output.is_dir():
            raise ValueError(f"node {host} has no {self._output}: all nodes need it on one file system")
        with contextlib.suppress(OSError):
            os.chdir(settings.folder)  # options may name files
        return load(settings.path, settings.device, allow_import=settings.packages, **settings.options)

    def _compute(self, inference: Inference, chunk: Mapping[str, Any]) -> dict[str, Any]:
        rows = {row["target"]: row for row in chunk["rows"]}
        results = Results(self._output, self._settings_id, f"chunk{chunk['number']}", rows)
        failures = []
        with torch.inference_mode(), autocast(inference.device, self._settings.precision):
            for file in (InputFile(*file) for file in chunk["files"]):
                if not results.skip(file):
                    row = results.compute(inference, file)
                    failures += [(row["source"], row["error"])] if row["error"] else []
        results.close()
        return {"totals": results.totals, "failures": failures}


def predict_with_ray(
    worker: WorkerSettings,
    files: Sequence[InputFile],
    output: Path,
    settings: Mapping[str, Any],
    overwrite: bool = False,
    address: str | None = None,
    workers: int | None = None,
    progress: bool = True,
) -> Row:
    """Compute files on a Ray cluster.

    Args:
        worker: what actors load.
        files: what to compute; all nodes share inputs and output.
        output: the folder for results.
        settings: as for `predict_files`.
        overwrite: likewise.
        address: as for `connect`.
        workers: actors at a time; None: as many as the cluster has room for.
        progress: show a bar.

    Returns:
        The summary, as `predict_files` gives it.

    Raises:
        ImportError: without Ray.
        OSError: the cluster does not answer, or the disk is full.
        ValueError: the model cannot be loaded, or a node has another version or other folders.
    """
    with (
        connect(address, workers) as ray,
        terminate_as_exit(),  # Ray's own handler leaves with 15
        open_results(output, settings, overwrite) as results,
    ):
        pending = [file for file in files if not results.skip(file)]
        chunks = split_chunks(pending, workers or max(int(ray.cluster_resources().get("CPU", 1)), 1))
        unfinished = {target: row for target, row in results.rows.items() if row["status"] in _UNFINISHED}
        items = [
            json.dumps({
                "number": number,
                "files": chunk,
                "rows": [unfinished[file.target] for file in chunk if file.target in unfinished],
            })
            for number, chunk in enumerate(chunks)
        ]  # fmt: skip
        gpu = worker.device == "auto" and ray.cluster_resources().get("GPU", 0) > 0
        device = "cuda" if gpu else "cpu" if worker.device == "auto" else worker.device
        arguments = (replace(worker, device=device), str(output.absolute()), results.settings_id, __version__)
        with Progress(disable=not progress) as bar:
            task = bar.add_task("predict", total=len(pending))
            for made in run_actors(items, arguments, workers, device == "cuda"):
                if "error" in made:
                    number, message = made["error"]
                    raise ValueError(message) if number is None else OSError(number, message)
                results.totals.update(made["totals"])
                for failure in made["failures"]:
                    log.warning("%s failed: %s", *failure)
                bar.advance(task, made["totals"]["done"] + made["totals"]["failed"] + made["totals"]["skipped"])
        return results.finish(files)


def split_chunks(files: Sequence[InputFile], workers: int) -> list[Sequence[InputFile]]:
    """Split a list so that the actors end together."""
    size = min(max(len(files) // (_CHUNKS_PER_ACTOR * workers), 1), CHUNK_FILES)
    return [files[start : start + size] for start in range(0, len(files), size)]


def run_actors(
    items: Sequence[str], arguments: Sequence[Any], workers: int | None, gpu: bool
) -> Iterator[dict[str, Any]]:
    """Compute chunks by actors; yields what each gave, as it comes."""
    from ray.data import ActorPoolStrategy, DataContext, from_items

    if not items:
        return
    context = DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    logging.getLogger("ray.data").setLevel(logging.WARNING)
    dataset = from_items(list(items), override_num_blocks=len(items)).map_batches(
        PredictWorker,
        fn_constructor_args=arguments,
        batch_size=1,
        compute=ActorPoolStrategy(min_size=1, max_size=workers),
        # Ray gives an actor as many threads as CPUs, unless its node's environment says otherwise
        num_cpus=float(os.environ.get("OMP_NUM_THREADS") or 1),
        num_gpus=1 if gpu else None,
    )
    try:
        for row in dataset.iter_rows():
            yield json.loads(row["item"])
    except Exception as error:  # Ray Data raises plain ones
        reason = " ".join(str(error.__cause__ or error).split())[:300]
        raise ChildProcessError(f"Ray ended the run: {reason}") from error


@contextlib.contextmanager
def connect(address: str | None = None, workers: int | None = None) -> Iterator[Any]:
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
        import ray.data
    except ImportError as error:
        raise ImportError("--engine ray needs Ray: pip install 'zoo[ray]'") from error
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    settings: dict[str, Any] = {"log_to_driver": False, "logging_level": "warning"}
    if address == "local":
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        threads = int(os.environ.get("OMP_NUM_THREADS") or 1)
        settings |= {"include_dashboard": False, "object_store_memory": _OBJECT_STORE_BYTES}
        settings |= {"num_cpus": workers * threads} if workers else {}
    elif address != "auto":
        check_address(address)
    try:
        ray.init(address, **settings)
    except Exception as error:  # Ray raises plain ones
        raise ConnectionError(f"--ray_address {address}: {' '.join(str(error).split())}") from error
    try:
        yield ray
    finally:
        ray.shutdown()


def check_address(address: str) -> None:
    """Connect once, since Ray itself tries for minutes.

    Raises:
        ValueError: when it is no address.
        ConnectionError: when nothing answers there.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        raise ValueError(f"--ray_address {address}: expected host:port, or auto for the cluster of this machine")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()
    except OSError as error:
        raise ConnectionError(
            f"--ray_address {address}: nothing answers there ({error}); is the head running?"
        ) from error
