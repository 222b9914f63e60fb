"""The server: our own FastAPI app behind the gate, with Gradio's page mounted in it."""

from __future__ import annotations

import os
import signal
import socket
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import UploadFile

from zoo.runs.listing import MEDIA_NAME
from zoo.ui.jobs.trainings import Queue, Trainings
from zoo.ui.places import Places, check_name
from zoo.ui.readings import MEDIA_TYPES, is_media
from zoo.ui.security import UPLOAD_PATH, Gate, Keys
from zoo.ui.store import MAX_FILES, MIB, Store, UploadError

HOST = "127.0.0.1"
QUOTA_UPLOADS = 4  # the temporary folder holds so many of the largest uploads


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

    bound = _bind(port)
    port = bound.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="zoo-ui-", ignore_cleanup_errors=True) as folder:
        places = Places(Path.cwd(), runs.absolute(), Path(folder), data.absolute())
        trainings = Trainings(places, secrets, at_once=queue.at_once, waiting=queue.most, tied=queue.tied)
        keys = Keys(password, cookie=f"zoo_ui_{port}")
        app = build(places, trainings, keys, limits)
        empty = Path(folder) / "empty"
        empty.mkdir()
        os.chdir(empty)  # Gradio serves what lies below the working directory
        where = f"http://{HOST}:{port}/" + ("" if password else f"?token={keys.token}")
        also = ", and the trainings save and end" if queue.tied else ", not the trainings"
        print(f"zoo: open {where}\nzoo: only this machine can; Ctrl-C ends the page{also}", flush=True)
        settings = uvicorn.Config(
            app, log_level="warning", access_log=False, server_header=False, timeout_graceful_shutdown=2
        )
        signal.signal(signal.SIGTERM, _leave)  # uvicorn repeats a signal when it has shut down; the default would kill
        try:
            uvicorn.Server(settings).run(sockets=[bound])
        finally:
            trainings.close()
            os.chdir(places.work)


def _leave(number: int, frame: Any) -> None:
    raise SystemExit(128 + number)


def _bind(port: int) -> socket.socket:
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((HOST, port))
    except OSError as error:
        bound.close()
        raise OSError(
            f"port {port} cannot be used ({error.strerror}); choose another with --port, or 0 for any"
        ) from error
    return bound


def build(places: Places, trainings: Trainings, keys: Keys, limits: Limits) -> FastAPI:
    """Put the page together.

    Returns:
        An ASGI app whose every route is behind the gate.
    """
    store = Store(places.temp, QUOTA_UPLOADS * limits.upload, limits.files, limits.session)
    store.uploads.mkdir(exist_ok=True)
    # read when Gradio is imported or a file comes in
    os.environ |= {"GRADIO_ANALYTICS_ENABLED": "False", "GRADIO_TEMP_DIR": str(store.uploads)}
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    import gradio

    from zoo.ui.page import Page
    from zoo.ui.style import CSS, theme

    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(Gate, keys=keys, upload_limit=limits.upload, store=store)

    def session_of(request: Request) -> str:
        session = keys.session(request.headers.get("cookie", ""))
        if session is None:
            raise HTTPException(401)
        return session

    @app.post(UPLOAD_PATH)
    async def upload(request: Request) -> Response:
        """In place of Gradio's: notes whose a file is."""
        session, kept = session_of(request), []
        async with request.form(max_files=limits.files, max_fields=limits.files) as form:
            for file in form.getlist("files"):
                if not isinstance(file, UploadFile):
                    return PlainTextResponse("files: expected files", 400)
                try:
                    kept.append(str(await run_in_threadpool(store.add, session, file.filename or "", file.file)))
                except UploadError as error:
                    for path in kept:  # the page is told of none
                        store.forget(session, path)
                    return PlainTextResponse(str(error), 413)
        return JSONResponse(kept)

    @app.get(f"{UPLOAD_PATH}_progress")
    def progress() -> Response:
        """What Gradio's page asks for while it sends."""
        return Response('data: {"msg": "done"}\n\n', media_type="text/event-stream")

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

    @app.get("/_zoo/results/{job}/{name}")
    def result(job: str, name: str, request: Request) -> FileResponse:
        """A result of `predict`, for the session that asked for it."""
        try:
            path = store.result(session_of(request), job, name)
        except ValueError as error:
            raise HTTPException(404) from error
        kind = MEDIA_TYPES.get(path.suffix.lower())
        if kind is None:
            return FileResponse(path, media_type="application/octet-stream", filename=path.name)
        return FileResponse(path, media_type=kind)

    page = Page(places, trainings, store, session_of)
    return gradio.mount_gradio_app(
        app,
        page.blocks,
        path="/",
        server_name=HOST,
        footer_links=[],
        allowed_paths=[],
        max_file_size=limits.upload,
        show_error=True,
        ssr_mode=False,
        pwa=False,
        mcp_server=False,
        enable_monitoring=False,
        theme=theme(),
        css=CSS,
    )
