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
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.progress import track

from zoo import __version__
from zoo.common.atomic_files import delete_temporary_files
from zoo.common.environment import exit_on_sigterm, verbosity
from zoo.common.journal import json_line
from zoo.common.locks import lock_folder
from zoo.common.reports import Row
from zoo.runs.inference.base import Inference
from zoo.runs.inference.predict import InputFile, Results, autocast, open_results, part_path, read_manifest
from zoo.runs.load import load

log = logging.getLogger(__name__)

CHUNK_FILES = 16


class PredictWorker:
    """An actor, which loads the model once and computes chunks of files.

    `model` are arguments of `zoo.load`, `output` the absolute path of the folder for results, `folder` the driver's
    working directory, which options may name files in, `version` its version of zoo.
    """

    def __init__(self, model: Mapping[str, Any], precision: str, output: Path, folder: Path, version: str) -> None:
        self.model, self.precision, self.output, self.version = model, precision, output, version
        self.inference: Inference | None = None
        with contextlib.suppress(OSError):
            os.chdir(folder)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Compute a chunk and return its rows, or the error that ends the run."""
        part, files = json.loads(batch["item"][0])
        rows = {row["target"]: row for row in read_manifest(part_path(self.output, part))}  # of an actor that died
        results = Results(self.output, part, rows)
        error = ""
        try:
            if self.version != __version__:
                raise ValueError(f"zoo is {__version__}, the driver's {self.version}: install the same version")
            self.inference = self.inference or load(**self.model)
            with torch.inference_mode(), autocast(self.inference.device, self.precision):
                for file in files:
                    results.process(self.inference, InputFile(*file))
        except (OSError, ValueError, ImportError) as caught:
            error = f"{socket.gethostname()}: {caught}"
        except (torch.AcceleratorError, MemoryError):
            os._exit(1)  # Ray starts another actor, which computes the rest of the chunk
        return {"item": [json_line({"error": error, "rows": results.processed}).decode()]}


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
        OSError: the cluster does not answer, the disk is full, or a node cannot load the model.
        ValueError: as of `predict_files`.
    """
    resources = connect(address)
    with lock_folder(output, "predict", part="ray"), exit_on_sigterm():  # Ray's own handler leaves with 15
        results = open_results(output, settings, "ray", overwrite)
        results.refuse_other_inputs(files)
        delete_temporary_files(output)
        pending = [file for file in files if not results.is_done(file)]
        results.skipped = len(files) - len(pending)
        part, starts = f"ray{time.time_ns()}", range(0, len(pending), CHUNK_FILES)
        chunks = [json.dumps([f"{part}.{start}", pending[start : start + CHUNK_FILES]]) for start in starts]
        device = model["device"].replace("auto", "cuda" if resources.get("GPU") else "cpu")
        arguments = ({**model, "device": device}, precision, output.absolute(), Path.cwd(), __version__)
        outcomes = map_chunks(chunks, arguments, workers, device == "cuda").iter_rows() if chunks else ()
        for outcome in track(outcomes, "predict", len(chunks), disable=verbosity() == "quiet"):
            content = json.loads(outcome["item"])
            if content["error"]:
                raise OSError(content["error"])
            results.processed += content["rows"]
            for row in content["rows"]:
                if row["error"]:
                    log.warning("%s failed: %s", row["source"], row["error"])
        return results.finish(files)


def map_chunks(chunks: list[str], arguments: Sequence[Any], workers: int | None, gpu: bool) -> Any:
    """Return the Ray dataset of the chunks' outcomes, which actors compute."""
    from ray.data import ActorPoolStrategy, DataContext, from_items

    context = DataContext.get_current()
    context.enable_progress_bars = context.print_on_execution_start = False
    logging.getLogger("ray.data").setLevel(logging.WARNING)
    return from_items(chunks, override_num_blocks=len(chunks)).map_batches(
        PredictWorker,
        fn_constructor_args=arguments,
        batch_size=1,
        compute=ActorPoolStrategy(min_size=1, max_size=workers),
        num_cpus=float(os.environ.get("OMP_NUM_THREADS") or 1),  # Ray gives an actor as many threads
        num_gpus=1 if gpu else None,
    )


def connect(address: str | None) -> Mapping[str, float]:
    """Join a cluster, or start one of this machine; return its resources."""
    import ray
    import ray.data

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    ray.init(address, log_to_driver=False, logging_level=logging.WARNING)
    return ray.cluster_resources()
