"""The server: our own FastAPI app behind the gate, with NiceGUI's page in it."""

from __future__ import annotations

import asyncio
import logging
import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from fastapi import FastAPI, HTTPException, Query, Request
from fastapi.responses import FileResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import UploadFile

from zoo.runs.run_folder import MEDIA_NAME
from zoo.ui.board import Board
from zoo.ui.curves import chosen_columns
from zoo.ui.exports import Exports
from zoo.ui.jobs.trainings import Queue, Trainings
from zoo.ui.listening import bind, run_until_signal
from zoo.ui.places import Places, check_name
from zoo.ui.readings import MEDIA_TYPES, is_media
from zoo.ui.security import OTHER_LIMIT, UPLOAD_PATH, Gate, Keys
from zoo.ui.store import MAX_FILES, MIB, Store, UploadError
from zoo.ui.warm.asked import Asked
from zoo.ui.warm.pool import Workers

HOST = "127.0.0.1"
QUOTA_UPLOADS = 4  # the temporary folder holds so many of the largest uploads
RECONNECT_SECONDS = 30.0  # a page that was asleep goes on where it was


@dataclass(frozen=True)
class Limits:
    """How much may be uploaded.

    Args:
        upload: bytes of one upload.
        files: uploads that a session may have at a time.
        session: bytes that a session's uploads may have together.
    """

    upload: int = 512 * MIB
    files: int = MAX_FILES
    session: int = 1024 * MIB


def serve(
    runs: Path,
    data: Path,
    port: int,
    password: str | None,
    secrets: tuple[str, ...],
    limits: Limits,
    queue: Queue,
) -> None:
    """Serve the page until a signal.

    Args:
        runs: root of the run folders.
        data: folder of data sets to offer.
        port: 0 for any free one.
        password: what opens the page; None for a token in the printed address.
        secrets: environment variables to keep from the processes that are started.

    Raises:
        OSError: the port is taken.
    """
    import uvicorn

    bound = bind(HOST, port)
    port = bound.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="zoo-ui-", ignore_cleanup_errors=True) as folder:
        places = Places(Path.cwd(), runs.absolute(), Path(folder), data.absolute())
        trainings = Trainings(places, secrets, queue=queue)
        keys = Keys(password, cookie=f"zoo_ui_{port}")
        workers = Workers(places, secrets)
        app = build(places, trainings, keys, limits, workers)
        where = f"http://{HOST}:{port}/" + ("" if password else f"?token={keys.token}")
        also = ", and the trainings save and end" if queue.tied else ", not the trainings"
        print(f"zoo: open {where}\nzoo: only this machine can; Ctrl-C ends the page{also}", flush=True)
        settings = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=2,
            ws_max_size=OTHER_LIMIT,
        )
        logging.getLogger("uvicorn.error").addFilter(_is_worth_saying)
        try:
            run_until_signal(uvicorn.Server(settings), bound)
        finally:
            workers.close()
            trainings.close()


def _is_worth_saying(record: logging.LogRecord) -> bool:
    """Not that a browser went on before it had what it asked for, which Starlette reports as an error of the server."""
    return "No response returned." not in str(record.exc_info and record.exc_info[1])


def build(places: Places, trainings: Trainings, keys: Keys, limits: Limits, workers: Workers) -> FastAPI:
    """Put the page together.

    Returns:
        An ASGI app whose every route is behind the gate.
    """
    os.environ.setdefault("NICEGUI_STORAGE_PATH", str(places.temp / "storage"))  # read at the import; nothing is kept
    import nicegui

    from zoo.ui.page import show_page
    from zoo.ui.visit import Shared

    store = Store(places.temp, QUOTA_UPLOADS * limits.upload, limits.files, limits.session)
    store.uploads.mkdir(exist_ok=True)
    owners: dict[str, str] = {}
    board = Board(places, trainings, pages=owners)
    exports = Exports(places, trainings)
    shared = Shared(places, trainings, store, board, exports, Asked(places, store, workers, trainings))

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        watching = asyncio.create_task(board.watch())
        yield
        watching.cancel()

    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan)
    app.add_middleware(
        Gate, keys=keys, upload_limit=limits.upload, store=store, owners=owners, leave=shared.end_session
    )

    def session_of(request: Request) -> str:
        session = keys.session(request.headers.get("cookie", ""))
        if session is None:
            raise HTTPException(401)
        return session

    @nicegui.ui.page("/")
    def page(request: Request, tab: str = "", run: str = "") -> None:
        client = nicegui.ui.context.client
        owners[client.id] = session_of(request)
        client.on_delete(lambda: owners.pop(client.id, None))
        show_page(shared, owners[client.id], tab, run)

    @app.post(UPLOAD_PATH)
    async def upload(request: Request) -> Response:
        """Keep files; answers what the session calls each of them, with its name and size."""
        session = session_of(request)
        kept: list[dict[str, str]] = []
        async with request.form(max_files=limits.files, max_fields=limits.files) as form:
            for file in form.getlist("files"):
                if not isinstance(file, UploadFile):
                    return PlainTextResponse("files: expected files", 400)
                try:
                    key = await run_in_threadpool(store.add, session, file.filename or "", file.file)
                except UploadError as error:
                    for entry in kept:  # the page is told of none
                        store.forget(session, entry["key"])
                    return PlainTextResponse(str(error), 413)
                kept.append({"key": key, "name": store.owned(session, key).name})
        return JSONResponse(kept)

    @app.get("/_zoo/media/{system}/{recipe}/{started}/{step}/{name}")
    def media(system: str, recipe: str, started: str, step: str, name: str) -> FileResponse:
        """A sound or picture of a run."""
        try:
            path = places.run(f"{system}/{recipe}/{started}") / MEDIA_NAME / check_name(step) / check_name(name)
        except ValueError as error:
            raise HTTPException(404) from error
        if not is_media(name) or not path.is_file() or not path.resolve().is_relative_to(places.runs.resolve()):
            raise HTTPException(404)
        return FileResponse(path, media_type=MEDIA_TYPES[path.suffix.lower()])

    @app.get("/_zoo/curves/{system}/{recipe}/{started}")
    def curves(
        system: str, recipe: str, started: str, metric: Annotated[list[str], Query(default_factory=list)]
    ) -> Response:
        """Chosen columns of a run's metrics.csv."""
        try:
            content = chosen_columns(places.run(f"{system}/{recipe}/{started}"), metric)
        except ValueError as error:
            raise HTTPException(404) from error
        headers = {"content-disposition": f'attachment; filename="{system}-{recipe}-{started}.csv"'}
        return Response(content, media_type="text/csv", headers=headers)

    @app.get("/_zoo/exports/{system}/{recipe}/{started}/{name}.zip")
    def export(system: str, recipe: str, started: str, name: str) -> StreamingResponse:
        """An export of a run."""
        try:
            blocks = exports.zipped(f"{system}/{recipe}/{started}", name)
        except ValueError as error:
            raise HTTPException(404) from error
        saved_as = f"{system}-{recipe}-{started}-{name}.zip"  # of characters that need no quoting
        headers = {"content-disposition": f'attachment; filename="{saved_as}"'}
        return StreamingResponse(blocks, media_type="application/zip", headers=headers)

    @app.get("/_zoo/results/{job}/{name}")
    def result(job: str, name: str, request: Request) -> FileResponse:
        """A result of a prediction, for the session that asked for it."""
        try:
            path = store.result(session_of(request), job, name)
        except ValueError as error:
            raise HTTPException(404) from error
        kind = MEDIA_TYPES.get(path.suffix.lower())
        if kind is None:
            return FileResponse(path, media_type="application/octet-stream", filename=path.name)
        return FileResponse(path, media_type=kind)

    @app.get("/_zoo/{rest:path}")
    def nothing(rest: str) -> None:
        """Before NiceGUI makes a page of its own that says so."""
        raise HTTPException(404)

    nicegui.core.app.config.socket_io_js_transports = ["websocket"]
    nicegui.ui.run_with(
        app,
        title="zoo",
        language="en-US",
        tailwind=False,
        reconnect_timeout=RECONNECT_SECONDS,
        show_welcome_message=False,
        favicon="🐘",
    )
    return app
