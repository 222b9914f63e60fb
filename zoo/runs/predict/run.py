"""Prediction over many files by this process, or by several that share a folder."""

from __future__ import annotations

import contextlib
import hashlib
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.progress import track

from zoo import __version__
from zoo.common.reports import Row
from zoo.runs.inference.base import Inference
from zoo.runs.predict.input_files import InputFile
from zoo.runs.predict.results import VERSION_KEY, file_digest, open_results

PRECISIONS = {"32-true": None, "bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}


def predict_files(
    inference: Inference,
    files: Sequence[InputFile],
    output: Path,
    settings: Mapping[str, Any],
    overwrite: bool = False,
    rank: int = 0,
    world_size: int = 1,
    precision: str = "32-true",
    progress: bool = True,
) -> Row:
    """Compute the files of one process; those whose result is there are skipped.

    Args:
        files: of all processes, see `list_input_files`; this one takes every world_size-th from the rank-th on.
        output: the folder for results.
        settings: what the results depend on besides the inputs, see `result_settings`.
        overwrite: compute also what is done, and replace other settings.
        precision: one of `PRECISIONS`.
        progress: show a bar on rank 0.

    Returns:
        Counts `done`, `failed`, `skipped`; `seconds` of work; `audio_seconds` and `real_time_factor` (seconds of work
        per second of audio) where there is audio; `peak_memory_gib`; `missing`, if other processes have files to do.
        The last process returns, and writes to `summary.json`, the sums over all.

    Raises:
        ValueError: when the folder has results of other settings, or another process does the same work.
        OSError: when the disk is full: the next files would fare no better.
    """
    with open_results(output, settings, overwrite, rank, world_size) as results:
        own = files[rank::world_size]
        with terminate_as_exit(), torch.inference_mode(), autocast(inference.device, precision):
            for file in track(own, "predict", disable=not (progress and own and rank == 0)):
                if not results.skip(file):
                    results.compute(inference, file)
        return results.finish(files, inference.device)


def result_settings(checkpoint: str, inference: str, options: Mapping[str, Any], precision: str = "32-true") -> Row:
    """What the results of a model depend on besides their inputs; the content of `settings.json`.

    Args:
        checkpoint: digest of the weights, see `content_digest`.
        inference: public name of its class.
        options: values of the class's arguments that are not weights.
    """
    return {
        "checkpoint": checkpoint,
        "inference": inference,
        "options": dict(options),
        "precision": precision,
        VERSION_KEY: __version__,
    }


def content_digest(path: Path) -> str:
    """The sha256 of a file, or of the names and contents of all files below a folder (model cards left out)."""
    if path.is_file():
        return file_digest(path)
    names = sorted(file.relative_to(path).as_posix() for file in path.rglob("*") if file.is_file())
    lines = [f"{name} {file_digest(path / name)}\n" for name in names if not name.endswith(".md")]
    return hashlib.sha256("".join(lines).encode(errors="surrogateescape")).hexdigest()


def autocast(device: torch.device, precision: str) -> contextlib.AbstractContextManager[Any]:
    """The context of a precision, one of `PRECISIONS`."""
    dtype = PRECISIONS[precision]
    return contextlib.nullcontext() if dtype is None else torch.autocast(device.type, dtype)


@contextlib.contextmanager
def terminate_as_exit() -> Iterator[None]:
    """Leave with 143 on SIGTERM, so that the file under way does not count as one that killed its process."""

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
