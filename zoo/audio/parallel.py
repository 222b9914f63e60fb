"""Apply a function to many items in processes of their own."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor
from typing import Any, TypeVar

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")


def map_in_processes(function: Callable[[Item], Outcome], items: Sequence[Item], workers: int) -> Iterator[Outcome]:
    """Call a function on each item in worker processes, 0 for this one; ChildProcessError when one died.

    Yields:
        What it returned, in the order of the items; few results wait at a time, because they may be large.
    """
    if workers == 0 or len(items) < 2:
        yield from map(function, items)
        return
    context = multiprocessing.get_context("spawn")  # a fork of a process with torch's threads may hang
    with ProcessPoolExecutor(min(workers, len(items)), context, _begin_worker, (function,)) as pool:
        pending: deque[Future[Any]] = deque()
        try:
            for item in items:
                pending.append(pool.submit(_call, item))
                if len(pending) > 2 * workers:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        except BrokenExecutor as error:
            raise ChildProcessError(
                "a worker died, is the memory full? Run the same command again with fewer --workers: it goes on"
            ) from error
        finally:
            pool.shutdown(cancel_futures=True)


_function: Callable[[Any], Any]  # of a worker process


def _begin_worker(function: Callable[[Any], Any]) -> None:
    """Compute on one thread, and leave with the parent."""
    import torch

    global _function
    _function = function
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the main process handles Ctrl-C
    threading.Thread(target=_leave_with_parent, daemon=True).start()


def _call(item: Any) -> Any:
    return _function(item)


def _leave_with_parent() -> None:
    """End with a killed parent: a worker would wait for work for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
