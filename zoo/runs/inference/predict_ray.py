"""Prediction over many files by the actors of a Ray cluster: `zoo predict --engine ray`.

Ray Data hands out chunks of files and retries a chunk whose actor died. Each chunk has its own part of the manifest, so
a retry skips finished files and counts how many actors died at a file. Not run on GPUs.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.progress import track

from zoo import __version__
from zoo.common.journal import json_line
from zoo.common.reports import Row
from zoo.runs.inference.base import Inference
from zoo.runs.inference.predict import (
    InputFile,
    Results,
    autocast,
    exit_on_sigterm,
    open_results,
    part_path,
    read_manifest,
)
from zoo.runs.load import load

log = logging.getLogger(__name__)

MAX_CHUNK_FILES = 64
CHUNKS_PER_WORKER = 4  # at least, so that all workers end together


class PredictWorker:
    """An actor, which loads the model once and computes chunks of files.

    Args:
        model: arguments of `zoo.load`.
        output: absolute path of the folder for results; all nodes share it.
        folder: working directory of the driver; options may name files in it.
        version: of zoo in the driver.
    """

    def __init__(self, model: Mapping[str, Any], precision: str, output: Path, folder: Path, version: str) -> None:
        self.model, self.precision, self.output, self.folder, self.version = model, precision, output, folder, version
        self.inference: Inference | None = None

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Compute a chunk and return its rows, or the error that ends the run: Ray would retry what is raised."""
        number, files = json.loads(batch["item"][0])
        part = f"ray.{number}"
        results = Results(
            self.output, part, {row["target"]: row for row in read_manifest(part_path(self.output, part))}
        )
        error: tuple[int | None, str] | None = None
        try:
            self.inference = self.inference or self._load()
            with torch.inference_mode(), autocast(self.inference.device, self.precision):
                for file in files:
                    results.process(self.inference, InputFile(*file))
        except OSError as caught:
            error = caught.errno, caught.strerror or str(caught)
        except (ValueError, ImportError) as caught:
            error = None, str(caught)
        except (torch.AcceleratorError, MemoryError):
            os._exit(1)  # Ray starts another actor, which computes the rest of the chunk
        return {"item": [json_line({"error": error, "rows": results.processed}).decode()]}

    def _load(self) -> Inference:
        host = socket.gethostname()
        if self.version != __version__:
            raise ValueError(f"node {host} has zoo {__version__}, the driver {self.version}: install the same version")
        if not self.output.is_dir():
            raise ValueError(f"node {host} has no {self.output}: all nodes need it on one file system")
        with contextlib.suppress(OSError):
            os.chdir(self.folder)
        return load(**self.model)


def predict_with_ray(
    model: Mapping[str, Any],
    files: Sequence[InputFile],
    output: Path,
    settings: Mapping[str, Any],
    overwrite: bool = False,
    precision: str = "32-true",
    address: str | None = None,
    workers: int | None = None,
) -> Row:
    """Compute files on a Ray cluster; like `predict_files`.

    Args:
        model: arguments of `zoo.load`; the device "auto" is a GPU for each actor where the cluster has any.
        address: of the cluster's head, or "auto"; RAY_ADDRESS when None, else a cluster of this machine is started.
        workers: actors at a time; None for as many as the cluster has room for.

    Raises:
        ImportError: Ray is not installed.
        OSError: the cluster does not answer, or the disk is full.
        ValueError: the model cannot be loaded, or a node has another version or other folders.
    """
    with connect(address, workers) as ray, open_results(output, settings, "ray", overwrite) as results:
        exit_on_sigterm()  # Ray's own handler leaves with 15
        pending = [file for file in files if not results.is_done(file)]
        results.skipped = len(files) - len(pending)
        room = workers or max(int(ray.cluster_resources().get("CPU", 1)), 1)
        size = min(max(len(pending) // (CHUNKS_PER_WORKER * room), 1), MAX_CHUNK_FILES)
        chunks = [json.dumps([start, pending[start : start + size]]) for start in range(0, len(pending), size)]
        gpu = model["device"] in ("auto", "cuda") and ray.cluster_resources().get("GPU", 0) > 0
        device = model["device"].replace("auto", "cuda" if gpu else "cpu")
        arguments = ({**model, "device": device}, precision, output.absolute(), Path.cwd(), __version__)
        for outcome in track(run_actors(chunks, arguments, workers, gpu) if chunks else (), "predict", len(chunks)):
            if outcome["error"]:
                number, message = outcome["error"]
                raise ValueError(message) if number is None else OSError(number, message)
            results.processed += outcome["rows"]
            for row in outcome["rows"]:
                if row["error"]:
                    log.warning("%s failed: %s", row["source"], row["error"])
    return results.finish(files)


def run_actors(
    chunks: Sequence[str], arguments: Sequence[Any], workers: int | None, gpu: bool
) -> Iterator[dict[str, Any]]:
    """Compute chunks by actors; yield their outcomes as they come."""
    from ray.data import ActorPoolStrategy, DataContext, from_items

    context = DataContext.get_current()
    context.enable_progress_bars = context.print_on_execution_start = False
    logging.getLogger("ray.data").setLevel(logging.WARNING)
    dataset = from_items(list(chunks), override_num_blocks=len(chunks)).map_batches(
        PredictWorker,
        fn_constructor_args=arguments,
        batch_size=1,
        compute=ActorPoolStrategy(min_size=1, max_size=workers),
        num_cpus=float(os.environ.get("OMP_NUM_THREADS") or 1),  # Ray gives an actor as many threads
        num_gpus=1 if gpu else None,
    )
    try:
        for row in dataset.iter_rows():
            yield json.loads(row["item"])
    except Exception as error:  # Ray Data raises plain ones
        reason = " ".join(str(error.__cause__ or error).split())[:300]
        raise ChildProcessError(f"Ray ended the run: {reason}") from error


@contextlib.contextmanager
def connect(address: str | None, workers: int | None) -> Iterator[Any]:
    """Join a cluster, or start one of this machine with room for so many workers; leave it at the end."""
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise ImportError("--engine ray needs Ray: pip install 'zoo[ray]'") from error
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "warning"}
    if address == "local":
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        options |= {"include_dashboard": False, "object_store_memory": 10**8}  # bytes; chunks and rows are small
        options |= {"num_cpus": workers * int(os.environ.get("OMP_NUM_THREADS") or 1)} if workers else {}
    try:
        if ":" in address:
            host, _, port = address.removeprefix("ray://").rpartition(":")
            socket.create_connection((host.strip("[]"), int(port)), 10).close()  # Ray itself tries for minutes
        ray.init(address, **options)
    except Exception as error:  # Ray raises plain ones
        raise ConnectionError(
            f"--ray_address {address}: {' '.join(str(error).split())}; is the head running?"
        ) from error
    try:
        yield ray
    finally:
        ray.shutdown()
