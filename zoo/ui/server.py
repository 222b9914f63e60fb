"""The server: a FastAPI app behind the access gate, with NiceGUI's page in it."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import FileResponse, JSONResponse, Response
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import UploadFile
from starlette.middleware import Middleware
from starlette.middleware.body_limit import RequestBodyLimitMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.routing import Route

from zoo.common.atomic_files import LOCK_NAME
from zoo.common.environment import listen
from zoo.common.locks import is_locked, lock_folder
from zoo.runs.run_folder import MEDIA_NAME
from zoo.ui.folders import MEDIA_TYPES, Folders, resolve_below
from zoo.ui.processes.command import child_environment
from zoo.ui.security import HOSTS, AccessGate, AccessToken

UPLOAD_PATH = "/_zoo/upload"
TEMP_PREFIX = "zoo-ui-"
MAX_FILES = 50  # of one upload
MAX_MESSAGE = 2**20  # bytes that a page sends at a time besides files
RECONNECT_SECONDS = 30.0  # a page that was asleep keeps its state


def serve(
    runs: Path, data: Path, port: int, token: str | None, token_env: str | None, max_upload_mib: int, at_once: int
) -> None:
    """Serve the page until a signal; for the arguments see `zoo.ui.commands.main`."""
    import uvicorn

    listener = listen(HOSTS[0], port)
    port = listener.getsockname()[1]
    access = AccessToken(port) if token is None else AccessToken(port, token)
    delete_stale_folders()
    temporary = tempfile.TemporaryDirectory(prefix=TEMP_PREFIX, ignore_cleanup_errors=True)
    with temporary as temp, lock_folder(Path(temp), "ui"):
        folders = Folders(Path.cwd(), runs, data, Path(temp))
        app = build_app(folders, access, child_environment(token_env), max_upload_mib * 2**20, at_once)
        value = access.value if token is None else f"(the value of ${token_env})"
        print(f"zoo: open http://{HOSTS[0]}:{port}/?token={value}", flush=True)
        print("zoo: Ctrl-C ends the page; trainings that run continue, those that wait are dropped", flush=True)
        config = uvicorn.Config(
            app, log_level="warning", access_log=False, server_header=False, timeout_graceful_shutdown=2,
            ws_max_size=MAX_MESSAGE,
        )  # fmt: skip
        logging.getLogger("uvicorn.error").addFilter(_is_server_error)
        for number in (signal.SIGINT, signal.SIGTERM):  # uvicorn raises the signal again when it has shut down
            signal.signal(number, _exit_once)
        if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # of nohup
            signal.signal(signal.SIGHUP, lambda *_: signal.raise_signal(signal.SIGTERM))  # the terminal was closed
        uvicorn.Server(config).run(sockets=[listener])


def delete_stale_folders() -> None:
    """Delete the temporary folders of servers that were killed: nothing locks them any more."""
    for lock in Path(tempfile.gettempdir()).glob(f"{TEMP_PREFIX}*/{LOCK_NAME}"):
        if not is_locked(lock.parent):
            shutil.rmtree(lock.parent, ignore_errors=True)


def _is_server_error(record: logging.LogRecord) -> bool:
    """Leave out what Starlette reports when a browser closes a request, or a second Ctrl-C ends the shutdown."""
    text = f"{record.getMessage()} {record.exc_info and record.exc_info[1]}"
    return "No response returned." not in text and "asyncio.exceptions.CancelledError" not in text


def _exit_once(number: int, frame: Any) -> None:
    for each in (number, getattr(signal, "SIGHUP", number)):  # a second one would interrupt the folder's removal
        signal.signal(each, signal.SIG_IGN)
    raise SystemExit(128 + number)


def build_app(
    folders: Folders, token: AccessToken, environment: dict[str, str], max_upload: int, trainings_at_once: int = 1
) -> FastAPI:
    """Build the app, whose every route is behind the gate; `environment` is that of the processes it starts."""
    os.environ.setdefault("NICEGUI_STORAGE_PATH", str(folders.temp / "storage"))  # read when nicegui is imported
    import nicegui

    from zoo.ui.page import build_page
    from zoo.ui.state import AppState

    state = AppState(folders, environment, trainings_at_once)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        refreshing = asyncio.create_task(state.refresh_forever())
        yield
        refreshing.cancel()
        await state.close()

    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan)
    app.state.zoo = state
    app.add_middleware(AccessGate, token=token)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=list(HOSTS))
    body_limit = Middleware(RequestBodyLimitMiddleware, max_body_size=max_upload)
    app.router.routes.append(Route(UPLOAD_PATH, receive_upload, methods=["POST"], middleware=[body_limit]))
    app.get("/_zoo/media/{path:path}")(send_sample)
    app.get("/_zoo/results/{path:path}")(send_result)
    nicegui.ui.page("/")(lambda tab="", run="": build_page(state, tab, run))
    nicegui.core.app.config.socket_io_js_transports = ["websocket"]
    nicegui.ui.run_with(
        app, title="zoo", language="en-US", tailwind=False, reconnect_timeout=RECONNECT_SECONDS,
        show_welcome_message=False, favicon="🐘",
    )  # fmt: skip
    return app


async def receive_upload(request: Request) -> Response:
    """Store the files of a form; replies with the key and name of each."""
    folders: Folders = request.app.state.zoo.folders
    uploads = []
    async with request.form(max_files=MAX_FILES, max_fields=MAX_FILES) as form:
        for file in form.getlist("files"):
            if isinstance(file, UploadFile):
                key = await run_in_threadpool(folders.store_upload, file.filename or "", file.file)
                uploads.append({"key": key, "name": Path(file.filename or "upload").name})
    return JSONResponse(uploads)


def send_sample(path: str, request: Request) -> FileResponse:
    """Send an audio file or picture of a run's samples."""
    file = Path(path)
    if file.suffix.lower() not in MEDIA_TYPES or file.parent.parent.name != MEDIA_NAME:
        raise HTTPException(404)
    return _send_file(request.app.state.zoo.folders.runs, path)


def send_result(path: str, request: Request) -> FileResponse:
    """Send a file of a prediction's results."""
    return _send_file(request.app.state.zoo.folders.temp / "results", path)


def _send_file(root: Path, name: str) -> FileResponse:
    """Send a file below a folder; a browser shows media, and saves others."""
    try:
        file = resolve_below(root, name)
    except ValueError as error:
        raise HTTPException(404) from error
    if not file.is_file():
        raise HTTPException(404)
    media_type = MEDIA_TYPES.get(file.suffix.lower())
    if media_type is None:
        return FileResponse(file, media_type="application/octet-stream", filename=file.name)
    return FileResponse(file, media_type=media_type)
