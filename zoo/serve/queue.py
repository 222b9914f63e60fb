"""Who waits for an answer, what is computed together, and how long the files of answers stay."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import math
import secrets
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fastapi import HTTPException, Request

from zoo.runs.interactive import FILE_PARTS, Field
from zoo.serve.metrics import Metrics
from zoo.ui.store import Store
from zoo.ui.warm.pool import Arriving, Failed, Finished, Workers

RESULTS_BYTES = 2**30  # that files of answers may have together; the oldest go first
LONGEST_RETRY = 60
log = logging.getLogger(__name__)
UNEXPECTED = "the server could not do it; what it printed says why"
RUN = "run"  # what the workers call the only one there is


@dataclass(frozen=True)
class Limits:
    """See `zoo.serve.commands.main`; `wait` is in seconds, `upload` in bytes."""

    batch: int = 16
    wait: float = 0.005
    queue: int = 64
    upload: int = 64 * 2**20
    deadline: float = 300.0
    grace: float = 30.0
    keep: float = 600.0


@dataclass(eq=False)
class Waiting:
    """A request until its answer is there.

    Args:
        session: of its files in the store, gone with the request.
        end: time of the loop at which it is given up.
    """

    session: str
    values: Mapping[str, Any]
    job: str
    folder: Path
    end: float
    answer: asyncio.Future[Finished | Failed] = field(default_factory=asyncio.Future)

    def tell(self, answer: Finished | Failed) -> None:
        """Give the answer, if it has none yet."""
        if not self.answer.done():
            self.answer.set_result(answer)


class Queue:
    """The requests of one server.

    Args:
        checkpoint: of the run, as the workers call it.
    """

    def __init__(self, workers: Workers, checkpoint: str, store: Store, limits: Limits) -> None:
        self.workers = workers
        self.checkpoint = checkpoint
        self.store = store
        self.limits = limits
        self.metrics = Metrics(lambda: len(self._line), self._worker_bytes)
        self.fields: tuple[Field, ...] | None = None
        self.failed = ""
        self.ending = False
        self.active = 0  # requests for predictions that were let in
        self._line: deque[Waiting] = deque()
        self._arrived = asyncio.Event()
        self._results: OrderedDict[str, tuple[float, int, str]] = OrderedDict()  # session: end, bytes, job
        self._in_use: dict[str, asyncio.Future[Any]] = {}  # sessions that are computed though nobody waits any more
        self._working: Collection[Waiting] = ()
        self._batch_seconds = 1.0
        self._together = False
        self._arriving = False

    async def load(self) -> None:
        """Load the run.

        Raises:
            ValueError: it cannot be loaded.
        """
        self.fields = await asyncio.to_thread(self.workers.fields, RUN, self.checkpoint)
        self._together = self.workers.computes_together()
        self._arriving = self.workers.computes_arriving()

    def let_in(self) -> tuple[Field, ...]:
        """The fields of a request that may wait.

        Raises:
            HTTPException: 503 while the run loads or the server ends, 429 when the line is full.
        """
        if self.ending:
            raise HTTPException(503, "the server is ending")
        if self.fields is None:
            raise HTTPException(503, "the run is loading", {"Retry-After": "2"})
        if len(self._line) >= self.limits.queue:
            raise HTTPException(429, f"{len(self._line)} requests wait already", {"Retry-After": self.retry_after()})
        return self.fields

    def retry_after(self) -> str:
        """Seconds until there should be room."""
        batches = len(self._line) / (self.limits.batch if self._together or self._arriving else 1)
        return str(min(max(math.ceil(batches * self._batch_seconds), 1), LONGEST_RETRY))

    async def ask(
        self,
        session: str,
        values: Mapping[str, Any],
        request: Request,
        end: float,
        begin: Callable[[Path], None] | None = None,
    ) -> tuple[str, Finished]:
        """Wait for an answer; the folder's name and what it holds.

        Args:
            begin: told the folder before the computation begins.

        Raises:
            HTTPException: the answer's failure, 429 when the line is full by now, 504 when `end` (of the loop) comes
                first, 499 when the client goes away.
        """
        self.let_in()
        job, folder = self.store.new_job(session)
        if begin is not None:
            begin(folder)
        mine = Waiting(session, values, job, folder, end)
        self._line.append(mine)
        self._arrived.set()
        gone = asyncio.ensure_future(_disconnected(request))
        try:
            left = max(mine.end - asyncio.get_running_loop().time(), 0.0)
            waited: set[asyncio.Future[Any]] = {mine.answer, gone}
            await asyncio.wait(waited, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if not mine.answer.done():
                if gone.done():
                    self.metrics.dropped.inc()
                    raise HTTPException(499, "the client went away")
                raise HTTPException(504, f"no answer within {self.limits.deadline:g} s; ask for less, or try later")
            answer = mine.answer.result()
        finally:
            gone.cancel()
            if mine in self._line:
                self._line.remove(mine)
                mine.answer.cancel()
            if not mine.answer.done():
                self._in_use[session] = mine.answer
        if isinstance(answer, Failed):
            raise HTTPException({"input": 422, "late": 504, "ended": 503}.get(answer.cause, 500), answer.error)
        return job, answer

    async def work(self) -> None:
        """Compute what waits, again and again."""
        loop = asyncio.get_running_loop()
        while True:
            self._arrived.clear()
            if not self._line:
                await self._arrived.wait()
            if self._arriving:
                await self._compute_arriving()
                continue
            most, end = (self.limits.batch, loop.time() + self.limits.wait) if self._together else (1, 0.0)
            while 0 < len(self._line) < most and (left := end - loop.time()) > 0:
                self._arrived.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._arrived.wait(), left)
            batch = [self._line.popleft() for _ in range(min(most, len(self._line)))]
            if batch:
                started = loop.time()
                await self._compute(batch)
                self._batch_seconds = 0.7 * self._batch_seconds + 0.3 * (loop.time() - started)

    async def _compute_arriving(self) -> None:
        """Compute what waits and what comes meanwhile, until nothing is left or a newer checkpoint is there."""
        loop, numbers = asyncio.get_running_loop(), itertools.count()
        running: dict[int, Waiting] = {}
        begun: dict[int, float] = {}
        self._working = running.values()

        def told(number: int, answer: Finished | Failed) -> None:
            self._batch_seconds = 0.7 * self._batch_seconds + 0.3 * (loop.time() - begun.pop(number))
            running.pop(number).tell(answer)
            self._arrived.set()

        def tell(number: int, answer: Finished | Failed) -> None:
            loop.call_soon_threadsafe(told, number, answer)

        arriving = Arriving(tell)
        ended = asyncio.ensure_future(asyncio.to_thread(self._ask_arriving, arriving))
        ended.add_done_callback(lambda _: self._arrived.set())
        while not ended.done():
            while self._line and len(running) < self.limits.batch and not arriving.stale:
                each, number = self._line.popleft(), next(numbers)
                running[number], begun[number] = each, loop.time()
                self.metrics.batch_size.observe(len(running))
                arriving.inbox.put((number, each.values, each.folder))
            if not running:
                break
            self._arrived.clear()
            await self._arrived.wait()
        arriving.inbox.put(None)
        failed, alone = await ended, len(running) == 1
        for each in tuple(running.values()):
            if failed is not None and failed.cause == "lost" and not alone and not each.answer.done():
                (answer,) = await self._asked([each])  # one of them took the process along: only that one shall fail
                each.tell(answer)
            elif failed is not None:
                each.tell(failed)

    def _ask_arriving(self, arriving: Arriving) -> Failed | None:
        try:
            return self.workers.ask_arriving(RUN, self.checkpoint, arriving)
        except Exception:  # as in `_asked`
            log.exception("requests that were computed together failed")
            return Failed(UNEXPECTED)

    async def _compute(self, batch: Sequence[Waiting]) -> None:
        self.metrics.batch_size.observe(len(batch))
        self._working = batch
        answers = await self._asked(batch)
        for each, answer in zip(batch, answers, strict=True):
            alone = len(batch) > 1 and isinstance(answer, Failed) and answer.cause == "lost"
            if alone and not each.answer.done():  # one of them took the process along: only that one shall fail
                (answer,) = await self._asked([each])
            each.tell(answer)

    def give_up(self) -> None:
        """Tell everybody who still waits that there will be no answer."""
        for each in (*self._line, *self._working):
            each.tell(Failed("the server has ended", cause="ended"))

    async def _asked(self, batch: Sequence[Waiting]) -> Sequence[Finished | Failed]:
        asked = [(each.values, each.folder) for each in batch]
        try:
            return await asyncio.to_thread(self.workers.ask_together, RUN, self.checkpoint, asked)
        except Exception:  # what nobody expects must not end the line
            log.exception("a batch of %d failed", len(batch))
            return [Failed(UNEXPECTED)] * len(batch)

    def keep(self, session: str, job: str, answer: Finished) -> None:
        """Keep the files of an answer for a while, the oldest no longer than there is room."""
        names = [part.name for part in answer.parts if part.kind in FILE_PARTS]
        size = sum(self.store.result(session, job, name).stat().st_size for name in names)
        self._results[session] = (asyncio.get_running_loop().time() + self.limits.keep, size, job)
        self.forget_old()

    def forget_old(self) -> None:
        """Delete files of answers whose time is over, or that are too many."""
        now, held = asyncio.get_running_loop().time(), sum(size for _, size, _ in self._results.values())
        while self._results:
            session, (end, size, _) = next(iter(self._results.items()))
            if end > now and held <= RESULTS_BYTES:
                return
            del self._results[session]
            held -= size
            self.store.end(session)

    async def forget(self, session: str) -> None:
        """Delete the files of an answer."""
        self._results.pop(session, None)
        self.store.end(session)

    def kept(self, session: str, name: str) -> Path:
        """A file of an answer.

        Raises:
            ValueError: there is none, or no more.
        """
        if session not in self._results:
            raise ValueError("there is no such result, or no more")
        return self.store.result(session, self._results[session][2], name)

    def end(self, session: str) -> None:
        """Delete the files of a request, as soon as nothing is computed with them."""
        computed = self._in_use.pop(session, None)
        if computed is None:
            self.store.end(session)
        else:
            computed.add_done_callback(lambda _: self.store.end(session))

    def _worker_bytes(self) -> float:
        return sum(worker.memory_mib for worker in self.workers.list()) * 2**20


def new_session() -> str:
    """A name that nobody guesses: who knows it may fetch the files of an answer with the token."""
    return secrets.token_hex(16)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
