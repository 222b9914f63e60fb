"""The endpoint: a FastAPI app of one run behind a gate, until a signal ends it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import mimetypes
import tempfile
import time
from collections.abc import AsyncIterator, MutableMapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import psutil
import uvicorn
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import FileResponse, JSONResponse, Response
from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.requests import ClientDisconnect

from zoo import __version__
from zoo.runs.export import is_export
from zoo.runs.folder import find_checkpoint
from zoo.runs.hub.names import local
from zoo.runs.interactive import FILE_PARTS, Part
from zoo.serve.chat import PREFIX, add_chat, error_body
from zoo.serve.questions import openapi, read_values
from zoo.serve.queue import Limits, Queue, new_session
from zoo.ui.listening import bind, run_until_signal
from zoo.ui.places import Places
from zoo.ui.readings import MEDIA_TYPES
from zoo.ui.security import HOSTS, Keys, Receive, Scope, Send, hardened, is_from_here
from zoo.ui.store import MIB, Store
from zoo.ui.warm.pool import NEWEST, Workers

UPLOADS = 16  # of the largest size, that may be under way or wait
IDLE_SECONDS = 15.0  # between two pieces of a body
FIXED = "named"  # a checkpoint or export that was named, in the place of the newest of a run


@dataclass(frozen=True)
class Address:
    """Where to listen.

    Args:
        names: further hosts that requests may name.
    """

    host: str = "127.0.0.1"
    port: int = 0
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Served(Places):
    """The one run, checkpoint or export that is served, whatever it is called."""

    path: Path

    def run(self, name: str) -> Path:
        """Where it lies."""
        return self.path

    def checkpoint(self, run: str, name: str) -> Path:
        """What was named, or a checkpoint of the run."""
        return self.path if name == FIXED else super().checkpoint(run, name)


def serve(
    run: Path,
    address: Address,
    limits: Limits,
    device: str | None = None,
    token: str | None = None,
    shown: str | None = None,
) -> None:
    """Serve a run until a signal.

    Args:
        token: what opens it; a new one by default.
        shown: environment variable that the token is from, named in its place.

    Raises:
        FileNotFoundError: there is no such run.
        ValueError: it cannot be loaded.
        OSError: the port is taken.
    """
    path = local(run).absolute()
    whole_run = not is_export(path) and find_checkpoint(path) != path
    bound = bind(address.host, address.port)
    port = bound.getsockname()[1]
    keys = Keys() if token is None else Keys(token=token)
    host = f"[{address.host}]" if ":" in address.host else address.host
    with tempfile.TemporaryDirectory(prefix="zoo-serve-", ignore_cleanup_errors=True) as folder:
        places = Served(Path.cwd(), path.parent, Path(folder), path.parent, path)
        memory = psutil.virtual_memory().total // MIB * 3 // 8  # twice as much ends a computation
        secret = () if shown is None else (shown,)
        workers = Workers(places, secret, 1, memory, float("inf"), job_seconds=limits.deadline, device=device)
        store = Store(places.temp, 2**62)
        queue = Queue(workers, NEWEST if whole_run else FIXED, store, limits)
        app = build(queue, keys, {*HOSTS, address.host, *address.names}, f"zoo {run}")
        said = keys.token if shown is None else f"that of ${shown}"
        print(f"zoo: serving {run} at http://{host}:{port} token {said}", flush=True)
        settings = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            server_header=False,
            ws="none",
            timeout_graceful_shutdown=2,
            limit_concurrency=4 * limits.queue + 128,
        )
        try:
            run_until_signal(_Server(settings, queue), bound)
        finally:
            workers.close()
    if queue.failed:
        raise ValueError(queue.failed)


class _Server(uvicorn.Server):
    """Ends when what it works on is finished, the grace is over, or a second signal comes."""

    def __init__(self, config: uvicorn.Config, queue: Queue) -> None:
        super().__init__(config)
        self.queue = queue
        self._signal: Any = None
        self._last = math.inf

    def handle_exit(self, sig: int, frame: Any) -> None:
        if self.queue.ending:
            self._last = 0.0
            return
        self.queue.ending, self._signal = True, (sig, frame)
        self._last = time.monotonic() + self.queue.limits.grace

    async def on_tick(self, counter: int) -> bool:
        """Called ten times a second."""
        if self._signal is not None and not self.should_exit:
            if not self.queue.active or time.monotonic() > self._last:
                self.queue.give_up()
                logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # of uploads that are cut off
                super().handle_exit(*self._signal)
        self.should_exit = self.should_exit or bool(self.queue.failed)
        return await super().on_tick(counter)


def build(queue: Queue, keys: Keys, hosts: set[str], title: str) -> FastAPI:
    """Put the endpoint together.

    Returns:
        An ASGI app whose every route but /health is behind the gate.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(each) for each in (_load(queue), queue.work(), _keep_house(queue))]
        yield
        for task in tasks:
            task.cancel()
        queue.workers.close()  # a thread that waits for an answer would keep the process

    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan)
    app.add_middleware(Gate, keys=keys, hosts=hosts, queue=queue)

    @app.exception_handler(StarletteHTTPException)  # FastAPI's own is one of them
    async def refused(request: Request, error: StarletteHTTPException) -> JSONResponse:
        said: Any = error.detail if isinstance(error.detail, dict) else {"error": error.detail}
        if request.url.path.startswith(PREFIX):
            said = error_body(said, error.status_code)
        return JSONResponse(said, error.status_code, error.headers)

    @app.post("/predict")
    async def predict(request: Request) -> Response:
        fields = queue.let_in()
        end = asyncio.get_running_loop().time() + queue.limits.deadline
        session, kept, uploads = new_session(), False, list[str]()
        queue.active += 1
        try:

            def keep(name: str, file: IO[bytes]) -> Path:
                uploads.append(queue.store.add(session, name, file))
                return queue.store.owned(session, uploads[-1])

            values = await read_values(request, fields, keep)
            job, answer = await queue.ask(session, values, request, end)
            for upload in uploads:
                queue.store.forget(session, upload)
            files = {part.name: _media_type(part.name) for part in answer.parts if part.kind in FILE_PARTS}
            wanted = _wanted(request.headers.get("accept", ""), files)
            if files:
                queue.keep(session, job, answer)
                kept = True
            if wanted:
                path = queue.kept(session, wanted)
                sent = BackgroundTask(queue.forget, session)
                return FileResponse(path, media_type=files[wanted], filename=wanted, background=sent)
            return JSONResponse({"parts": [_row(part, session) for part in answer.parts], "seconds": answer.seconds})
        finally:
            queue.active -= 1
            if not kept:
                queue.end(session)

    add_chat(app, queue)

    @app.get("/results/{session}/{name}")
    async def result(session: str, name: str) -> FileResponse:
        try:
            path = queue.kept(session, name)
        except ValueError as error:
            raise HTTPException(404, str(error)) from error
        return FileResponse(path, media_type=_media_type(name), filename=name)

    @app.get("/openapi.json")
    async def described() -> dict[str, Any]:
        if queue.fields is None:
            raise HTTPException(503, "the run is loading", {"Retry-After": "2"})
        return openapi(title, queue.fields, __version__)

    @app.get("/health")
    async def health() -> JSONResponse:
        state = "ending" if queue.ending else "loading" if queue.fields is None else "ready"
        return JSONResponse({"status": state}, 200 if state == "ready" else 503)

    @app.get("/metrics")
    def metrics() -> Response:
        return Response(queue.metrics.text(), media_type="text/plain; version=0.0.4")

    return app


async def _load(queue: Queue) -> None:
    try:
        await queue.load()
    except ValueError as error:
        queue.failed = str(error)


async def _keep_house(queue: Queue) -> None:
    while True:
        await asyncio.sleep(1.0)
        queue.forget_old()


def _row(part: Part, session: str) -> dict[str, Any]:
    row = {"kind": part.kind, "title": part.title}
    if part.kind in FILE_PARTS:
        return {**row, "name": part.name, "link": f"/results/{session}/{part.name}"}
    return {**row, "data": part.data}


def _media_type(name: str) -> str:
    return MEDIA_TYPES.get(Path(name).suffix.lower()) or mimetypes.guess_type(name)[0] or "application/octet-stream"


def _wanted(accept: str, files: dict[str, str]) -> str | None:
    """The first file of a kind that is accepted by name; None for JSON."""
    for entry in accept.split(",")[:20]:
        kind = entry.partition(";")[0].strip().lower()
        if kind in ("application/json", "*/*", ""):
            return None
        for name, media_type in files.items():
            if kind in (media_type, f"{media_type.partition('/')[0]}/*", "application/octet-stream"):
                return name
    return None


class Gate:
    """ASGI middleware: checks Host, Origin, token, size and time of a body before anything behind it sees a request.

    Args:
        hosts: what requests may name as their host.
    """

    def __init__(self, app: Any, keys: Keys, hosts: set[str], queue: Queue) -> None:
        self.app = app
        self.keys = keys
        self.hosts = hosts
        self.queue = queue
        self._coming = 0  # bytes of bodies under way and of requests that wait

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = {key.decode("latin-1").lower(): value.decode("latin-1") for key, value in scope["headers"]}
        started, code = time.perf_counter(), 499
        send = hardened(send)

        async def counted(message: MutableMapping[str, Any]) -> None:
            nonlocal code
            if message["type"] == "http.response.start":
                code = message["status"]
                self.queue.metrics.count(scope["path"], code, time.perf_counter() - started)
            await send(dict(message))

        refused = self._refusal(scope, headers)
        if refused is not None:
            status, said, more = refused
            content: Any = error_body(said, status) if scope["path"].startswith(PREFIX) else {"error": said}
            await JSONResponse(content, status, more)(scope, receive, counted)
        else:
            await self._pass(scope, receive, counted)
        if code == 499:  # it left before it was answered
            self.queue.metrics.count(scope["path"], code, 0.0)

    def _refusal(self, scope: Scope, headers: dict[str, str]) -> tuple[int, str, dict[str, str]] | None:
        """Code, line and headers for what may not pass."""
        if scope["path"] == "/health":
            return None
        if not is_from_here(scope, headers, self.hosts):
            return 403, "this name of the machine is not served (--allowed_hosts)", {}
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not self.keys.fits(given.strip()):
            said = "expected the header Authorization: Bearer TOKEN, with the token that was printed"
            return 401, said, {"WWW-Authenticate": "Bearer"}
        claimed, limit = headers.get("content-length", "0"), self.queue.limits.upload
        if not claimed.isdecimal() or len(claimed) > 18 or int(claimed) > limit:
            return 413, f"a request may have {limit // MIB} MiB (--max_upload_mib)", {}
        return None

    async def _pass(self, scope: Scope, receive: Receive, send: Send) -> None:
        limits, seen, whole = self.queue.limits, 0, False
        end = time.monotonic() + limits.deadline

        async def checked() -> dict[str, Any]:
            nonlocal seen, whole
            if whole:
                return await receive()
            try:
                left = min(IDLE_SECONDS, max(end - time.monotonic(), 0.0))
                message = await asyncio.wait_for(receive(), left)
            except TimeoutError as error:
                raise HTTPException(408, "the rest of the request did not come") from error
            size = len(message.get("body", b""))
            whole = not message.get("more_body", False)
            seen += size
            self._coming += size
            if seen > limits.upload:
                raise HTTPException(413, f"a request may have {limits.upload // MIB} MiB (--max_upload_mib)")
            if self._coming > UPLOADS * limits.upload:
                raise HTTPException(429, "too much is being uploaded", {"Retry-After": self.queue.retry_after()})
            return message

        try:
            with contextlib.suppress(ClientDisconnect):
                await self.app(scope, checked, send)
        finally:
            self._coming -= seen
