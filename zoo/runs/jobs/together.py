"""Files computed together: each is processed as if alone, and their chunks meet in one batch."""

from __future__ import annotations

import contextvars
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch

from zoo.audio.io.chunking import gathering
from zoo.common.ranges import at_least

_LEAST_SHARE = 0.75  # of the longest row of a batch that each must have: zeros are computed too

_turn: contextvars.ContextVar[_Turn | None] = contextvars.ContextVar("turn", default=None)


class _GivenUp(BaseException):
    """Raised in a call whose result nobody waits for any more."""


def own_seconds() -> float:
    """A clock that stands while the calls of others are computed; what is computed together counts by shares."""
    turn = _turn.get()
    return time.perf_counter() if turn is None else turn.seconds + time.perf_counter() - turn.since


def together(calls: Iterable[Callable[[], Any]], most: int) -> list[Any]:
    """Call functions, of which so many are under way, and compute the chunks that they wait for in common batches.

    One of them runs at a time and runs until it needs a chunk computed (`Chunker`) or ends. When all wait, chunks of
    one size for one net are computed as one batch, in the calling thread; then they go on. So a batch depends on the
    calls alone, not on time, and results are those of one by one up to the rounding of another batch size. Where the
    net takes the lengths of padded rows (`zoo.audio.io.chunking.pads`), sizes may differ, by at most a quarter.

    Args:
        calls: each in a thread of its own, with the caller's context variables.
        most: calls under way, and rows of a batch unless one call alone brings more; >= 1.

    Returns:
        What the functions return, in their order.

    Raises:
        Exception: of the first function that raises one; the others under way are given up.
    """
    at_least(1, most=most)
    waiting = deque(enumerate(calls))
    results: list[Any] = [None] * len(waiting)
    under_way: list[_Turn] = []
    try:
        while waiting or under_way:
            while waiting and len(under_way) < most:
                under_way.append(_Turn(*waiting.popleft()))
            for turn in [turn for turn in under_way if turn.asked is None]:
                turn.go_on()
                if turn.asked is None:
                    under_way.remove(turn)
                    results[turn.number] = turn.result()
            if all(turn.asked for turn in under_way) and (len(under_way) == most or not waiting):
                _answer(under_way, most)
    finally:
        for turn in under_way:
            turn.give_up()
    return results


class _Turn:
    """A function on its way, in a thread that runs only while the caller waits for it.

    Attributes:
        asked: (compute, rows, valid) that it waits for; None while it need not wait, and at its end.
        answer: to it, an array or an error.
        seconds: that it took before `since`.
    """

    def __init__(self, number: int, call: Callable[[], Any]) -> None:
        self.number = number
        self.asked: tuple[Callable[..., np.ndarray], np.ndarray, Sequence[int] | None] | None = None
        self.answer: np.ndarray | BaseException | None = None
        self.seconds, self.since = 0.0, 0.0
        self._call = call
        self._returned: Any = None
        self._error: BaseException | None = None
        self._mine, self._callers = threading.Semaphore(0), threading.Semaphore(0)
        context = contextvars.copy_context()
        self._thread = threading.Thread(target=context.run, args=(self._run,), daemon=True)
        self._thread.start()

    def go_on(self) -> None:
        """Let it run until it asks or ends."""
        self.since = time.perf_counter()
        self._mine.release()
        self._callers.acquire()
        self.seconds += time.perf_counter() - self.since

    def result(self) -> Any:
        """What the function returned, or raises what it raised."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._returned

    def give_up(self) -> None:
        """End it."""
        self.asked, self.answer = None, _GivenUp()
        self.go_on()
        self._thread.join()

    def _run(self) -> None:
        self._mine.acquire()
        _turn.set(self)
        try:
            if not isinstance(self.answer, _GivenUp):
                with gathering(self._ask):
                    self._returned = self._call()
        except BaseException as error:
            self._error = error
        self.asked = None
        self._callers.release()

    def _ask(self, compute: Callable[..., np.ndarray], rows: np.ndarray, valid: Sequence[int] | None) -> np.ndarray:
        self.asked = compute, rows, valid
        self._callers.release()
        self._mine.acquire()
        if isinstance(self.answer, BaseException):
            raise self.answer
        assert self.answer is not None
        return self.answer


def _answer(turns: Sequence[_Turn], most: int) -> None:
    """Compute what all of them wait for; one whose part fails alone gets the error."""
    groups: dict[Any, list[_Turn]] = defaultdict(list)
    for turn in turns:
        assert turn.asked is not None
        compute, rows, valid = turn.asked
        sizes = rows.shape[1:-1] if getattr(compute, "pads", False) else rows.shape[1:]
        groups[compute, sizes, valid is None].append(turn)
    for group in groups.values():
        batch: list[_Turn] = []
        for turn in sorted(group, key=_length):
            padded = batch and _length(batch[0]) < _LEAST_SHARE * _length(turn)
            if batch and (padded or sum(_rows(each) for each in (*batch, turn)) > most):
                _compute(batch)
                batch = []
            batch.append(turn)
        _compute(batch)
    for turn in turns:
        turn.asked = None


def _rows(turn: _Turn) -> int:
    assert turn.asked is not None
    return len(turn.asked[1])


def _length(turn: _Turn) -> int:
    assert turn.asked is not None
    return turn.asked[1].shape[-1]


def _padded(rows: np.ndarray, longest: int) -> np.ndarray:
    return np.pad(rows, [(0, 0)] * (rows.ndim - 1) + [(0, longest - rows.shape[-1])])


def _compute(turns: Sequence[_Turn]) -> None:
    asked = [turn.asked for turn in turns if turn.asked is not None]
    began = time.perf_counter()
    compute, first, lengths = asked[0]
    try:
        longest = _length(turns[-1])
        rows = first if len(asked) == 1 else np.concatenate([_padded(rows, longest) for _, rows, _ in asked])
        valid = None if lengths is None else [each for _, _, some in asked for each in some or ()]
        found = compute(rows) if valid is None else compute(rows, valid)
    except torch.AcceleratorError:
        raise  # the device is lost for this process
    except Exception as error:
        if len(turns) > 1:
            if isinstance(error, torch.OutOfMemoryError):
                torch.cuda.empty_cache()
            for turn in turns:
                _compute([turn])
            return
        turns[0].answer = error
    else:
        ends = np.cumsum([_rows(turn) for turn in turns])
        for turn, part in zip(turns, np.split(found, ends[:-1]), strict=True):
            turn.answer = part[..., : part.shape[-1] * _length(turn) // longest]
    took = time.perf_counter() - began
    for turn in turns:
        turn.seconds += took * _rows(turn) / sum(map(_rows, turns))
