"""Requests that wait together are computed together."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from fastapi import HTTPException
from prometheus_client import CollectorRegistry, Gauge, Histogram

from zoo.common.environment import OUT_OF_MEMORY
from zoo.runs.inference.base import Inference
from zoo.runs.inference.forms import Output

log = logging.getLogger(__name__)


@dataclass(eq=False)
class PendingRequest:
    """Values of the model's fields, a folder for the files of the result, and the result when it is there."""

    values: Mapping[str, Any]
    folder: Path
    result: asyncio.Future[list[Output]] = field(default_factory=asyncio.Future)


class MicroBatcher:
    """One worker task, which computes what waits: as batches where the system defines `answer_batch`.

    Args:
        max_batch: most requests of a batch.
        max_wait_seconds: how long the first of them waits for others.
        max_queue: requests that may wait.
    """

    def __init__(self, model: Inference, max_batch: int, max_wait_seconds: float, max_queue: int) -> None:
        self.model = model
        model.with_figures = False
        self.max_batch = max_batch if type(model).answer_batch is not Inference.answer_batch else 1
        self.max_wait_seconds = max_wait_seconds
        self.max_queue = max_queue
        self.queue: asyncio.Queue[PendingRequest] = asyncio.Queue()
        self.waiting: set[PendingRequest] = set()  # of the queue, those that have not timed out
        self.metrics = CollectorRegistry()
        self.seconds = Histogram("zoo_request_seconds", "Time of a prediction", registry=self.metrics)
        sizes = (1, 2, 4, 8, 16, 32)
        self.sizes = Histogram("zoo_batch_size", "Requests computed together", buckets=sizes, registry=self.metrics)
        Gauge("zoo_queue_length", "Requests that wait", registry=self.metrics).set_function(lambda: len(self.waiting))

    async def submit(self, values: Mapping[str, Any], folder: Path, timeout: float) -> list[Output]:
        """Wait for the result of a request; HTTPException 429 when the queue is full, 504 after the timeout."""
        if len(self.waiting) >= self.max_queue:
            raise HTTPException(429, "too many requests wait", {"Retry-After": "1"})
        request = PendingRequest(values, folder)
        self.waiting.add(request)
        self.queue.put_nowait(request)
        try:
            with self.seconds.time():
                return await asyncio.wait_for(request.result, timeout)
        except TimeoutError:
            raise HTTPException(504, f"no result within {timeout:g} s; ask for less, or try later") from None
        finally:
            self.waiting.discard(request)

    async def run(self) -> None:
        """Compute what waits, again and again."""
        while True:
            batch = [await self.queue.get()]
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.max_wait_seconds):
                    while len(batch) < self.max_batch:
                        batch.append(await self.queue.get())
            self.waiting.difference_update(batch)
            if batch := [request for request in batch if not request.result.cancelled()]:
                self.sizes.observe(len(batch))
                await self._compute(batch)

    async def _compute(self, batch: list[PendingRequest]) -> None:
        try:
            results: Sequence[Sequence[Output] | Exception] = await asyncio.to_thread(self._predict, batch)
            if len(results) != len(batch):
                raise RuntimeError(f"answer_batch gave {len(results)} results of {len(batch)} requests")
        except Exception as error:  # the next batch may be fine
            if isinstance(error, torch.OutOfMemoryError):
                torch.cuda.empty_cache()
            log.exception("a batch of %d requests failed", len(batch))
            results = [error] * len(batch)
        else:
            for result in results:
                if isinstance(result, RuntimeError | OSError):
                    log.error("a request failed", exc_info=result)
        for request, result in zip(batch, results, strict=True):
            if isinstance(result, Exception) and not request.result.done():
                request.result.set_exception(_http_error(result, request.folder.parent))
            elif not isinstance(result, Exception) and not request.result.done():
                request.result.set_result(list(result))
            elif request.result.cancelled():  # its folder was removed while the computation still wrote to it
                await asyncio.to_thread(shutil.rmtree, request.folder.parent, ignore_errors=True)

    def _predict(self, batch: list[PendingRequest]) -> Sequence[Sequence[Output] | Exception]:
        with torch.inference_mode():
            return self.model.answer_batch([(each.values, each.folder) for each in batch], lambda share, text: None)


def _http_error(error: Exception, folder: Path) -> HTTPException:
    if isinstance(error, MemoryError) or any(mark in str(error).lower() for mark in OUT_OF_MEMORY):
        return HTTPException(503, "out of memory; ask for less, or try later", {"Retry-After": "1"})
    if isinstance(error, ValueError):
        return HTTPException(422, str(error).replace(f"{folder}/", ""))  # of this machine
    return HTTPException(500, f"the computation failed: {type(error).__name__}")
