"""Figures of the endpoint for Prometheus."""

from __future__ import annotations

from collections.abc import Callable

import psutil
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

PATHS = ("/predict", "/health", "/metrics", "/openapi.json", "/results", "/v1/chat/completions", "/v1/models")
SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
BATCHES = (1, 2, 4, 8, 16, 32, 64)


class Metrics:
    """Counts since the start; their number does not grow with the requests.

    Args:
        waiting: how many requests wait.
        worker_bytes: memory of the process that computes.
    """

    def __init__(self, waiting: Callable[[], float], worker_bytes: Callable[[], float]) -> None:
        self._registry = registry = CollectorRegistry()
        self.requests = Counter("zoo_requests", "Requests by path and code", ["path", "code"], registry=registry)
        self.batch_size = Histogram("zoo_batch_size", "Requests computed together", buckets=BATCHES, registry=registry)
        self.seconds = Histogram(
            "zoo_request_seconds", "From a request for a prediction to its answer", buckets=SECONDS, registry=registry
        )
        self.dropped = Counter("zoo_dropped", "Requests whose client went away", registry=registry)
        Gauge("zoo_queue_length", "Requests that wait", registry=registry).set_function(waiting)
        memory = Gauge("zoo_memory_bytes", "Resident memory by process", ["process"], registry=registry)
        memory.labels("server").set_function(lambda: psutil.Process().memory_info().rss)
        memory.labels("worker").set_function(worker_bytes)

    def count(self, path: str, code: int, seconds: float) -> None:
        """Note a request that has been answered."""
        known = next((each for each in PATHS if path == each or path.startswith(f"{each}/")), "other")
        self.requests.labels(known, str(code)).inc()
        if path in ("/predict", "/v1/chat/completions") and code == 200:
            self.seconds.observe(seconds)

    def text(self) -> bytes:
        """All of them in the text format."""
        return generate_latest(self._registry)
