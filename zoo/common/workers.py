"""Pools of processes: workers compute on one thread and leave with their parent."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from typing import TypeVar

Job = TypeVar("Job")
Outcome = TypeVar("Outcome")


def spread(function: Callable[[Job], Outcome], jobs: Sequence[Job], workers: int) -> Iterator[Outcome]:
    """Call a function on each job, in processes of their own where that pays.

    Args:
        function: to be pickled for the workers.
        jobs: its arguments.
        workers: processes; 0 for this one.

    Yields:
        What it returned, in the order of the jobs.

    Raises:
        ChildProcessError: when a worker died.
    """
    if workers == 0 or len(jobs) < 2:
        yield from map(function, jobs)
        return
    context = multiprocessing.get_context("spawn")  # a fork of a process with torch's threads may hang
    with ProcessPoolExecutor(min(workers, len(jobs)), context, begin_worker) as pool:
        try:
            yield from pool.map(function, jobs)
        except BrokenExecutor as error:
            raise ChildProcessError(
                "a worker died, is the memory full? Run the same command again with fewer --workers: it goes on"
            ) from error
        finally:
            pool.shutdown(cancel_futures=True)


def begin_worker() -> None:
    """Settle a worker; give it to ProcessPoolExecutor as `initializer` (or call it there)."""
    import torch

    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the main process's business
    threading.Thread(target=_leave_with_parent, daemon=True).start()


def _leave_with_parent() -> None:
    """Workers of a killed process would wait for work for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
