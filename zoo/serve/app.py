"""The HTTP application of one model: a request model made from its fields, and `/predict`."""

from __future__ import annotations

import asyncio
import base64
import mimetypes
import secrets
import shutil
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pydantic
from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, Response
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from prometheus_client import CollectorRegistry, Gauge, Histogram, generate_latest
from starlette.background import BackgroundTask
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import UploadFile
from starlette.middleware.body_limit import RequestBodyLimitMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware

from zoo import __version__
from zoo.runs.inference.base import Inference
from zoo.runs.inference.forms import FILE_FIELDS, FILE_OUTPUTS, InputField, Output, form_model
from zoo.serve.batching import MicroBatcher

JSON, FORM = "application/json", "multipart/form-data"
BATCHES = (1, 2, 4, 8, 16, 32, 64)
ANY_FILE = "application/octet-stream"
BEARER = HTTPBearer(auto_error=False)


@dataclass(frozen=True)
class ServeSettings:
    """Limits of a server.

    Args:
        max_batch: most requests that are computed together, where the system gains by it.
        max_wait_ms: how long the first of them waits for others.
        max_queue: requests that may wait; one more gets 429.
        max_upload_mib: largest request.
        timeout_seconds: a request without a result after so long gets 504.
    """

    max_batch: int = 16
    max_wait_ms: float = 5.0
    max_queue: int = 64
    max_upload_mib: int = 64
    timeout_seconds: float = 300.0


def create_app(model: Inference, settings: ServeSettings, token: str, hosts: Sequence[str], title: str) -> FastAPI:
    """Build the application of a model.

    Args:
        token: what requests carry as `Authorization: Bearer TOKEN`; `/healthz` needs none.
        hosts: names under which requests may reach it.
        title: of the OpenAPI document.
    """
    batcher = MicroBatcher(model, settings.max_batch, settings.max_wait_ms / 1000, settings.max_queue)
    fields = model.fields()
    request_model = form_model(fields)

    def check_token(credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(BEARER)]) -> None:
        given = "" if credentials is None else credentials.credentials
        if not secrets.compare_digest(given.encode(), token.encode()):
            raise HTTPException(401, "expected the header Authorization: Bearer TOKEN", {"WWW-Authenticate": "Bearer"})

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        worker = asyncio.create_task(batcher.run())
        yield
        worker.cancel()

    app = FastAPI(title=title, version=__version__, docs_url=None, redoc_url=None, lifespan=lifespan)
    app.add_middleware(RequestBodyLimitMiddleware, max_body_size=settings.max_upload_mib * 2**20)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=list(hosts))
    metrics = Metrics(batcher)
    body = request_model.model_json_schema()
    body["properties"] |= {field.name: _file_schema(field) for field in fields if field.kind in FILE_FIELDS}
    content = {kind: {"schema": body} for kind in (JSON, FORM)}

    @app.post("/predict", dependencies=[Depends(check_token)], openapi_extra={"requestBody": {"content": content}})
    async def predict(request: Request) -> Response:
        """Compute a result; with Accept: audio/*, image/* or application/octet-stream its first such file."""
        folder = Path(tempfile.mkdtemp(prefix="zoo-serve-"))
        remove = BackgroundTask(shutil.rmtree, folder, ignore_errors=True)
        try:
            with metrics.seconds.time():
                values = await read_values(request, request_model, fields, folder)
                (folder / "result").mkdir()
                parts = await batcher.submit(values, folder / "result", settings.timeout_seconds)
            return respond(request, parts, folder / "result", remove)
        except BaseException:
            await remove()
            raise

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        return {"status": "ready"}

    @app.get("/metrics", dependencies=[Depends(check_token)])
    async def prometheus() -> Response:
        return Response(generate_latest(metrics.registry), media_type="text/plain; version=0.0.4")

    return app


class Metrics:
    """Figures for Prometheus: seconds of predictions, length of the queue, sizes of batches."""

    def __init__(self, batcher: MicroBatcher) -> None:
        self.registry = CollectorRegistry()
        self.seconds = Histogram("zoo_request_seconds", "Time of a prediction", registry=self.registry)
        queue = Gauge("zoo_queue_length", "Requests that wait", registry=self.registry)
        queue.set_function(batcher.queue.qsize)
        batches = Histogram("zoo_batch_size", "Requests computed together", buckets=BATCHES, registry=self.registry)
        batcher.observe_batch = batches.observe


def _file_schema(field: InputField) -> dict[str, Any]:
    kinds = f"a file that ends in {', '.join(field.allowed)}" if field.allowed else "a file"
    return {"type": "string", "format": "binary", "title": field.label, "description": kinds}


async def read_values(
    request: Request, request_model: type[pydantic.BaseModel], fields: Sequence[InputField], folder: Path
) -> dict[str, Any]:
    """Read and validate the values of a request, JSON or a form; files of a form are stored in the folder.

    Raises:
        RequestValidationError: 422, with the field that is wrong.
        HTTPException: 415 for another content type, 422 for a body that cannot be read.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    files = {field.name: field for field in fields if field.kind in FILE_FIELDS}
    if kind == JSON:
        try:
            given = await request.json()
        except (ValueError, RecursionError) as error:
            raise HTTPException(422, f"the body is no JSON: {error}") from error
        for name in files.keys() & set(given if isinstance(given, dict) else ()):
            raise _invalid(name, f"a file; send the request as {FORM}", given[name])
    elif kind == FORM:
        given = {}
        async with request.form(max_files=len(fields) + 1, max_fields=len(fields) + 64) as form:
            for name in form:
                entries = form.getlist(name)
                several = any(field.name == name and field.kind == "choices" for field in fields)
                if isinstance(entries[0], UploadFile) != (name in files) or (len(entries) > 1 and not several):
                    raise _invalid(name, f"expected {'one file' if name in files else 'a value and no file'}", name)
                given[name] = entries if several else entries[0]
            for name in files.keys() & given.keys():
                given[name] = await run_in_threadpool(_store, files[name], given[name], folder)
    else:
        raise HTTPException(415, f"expected content of type {JSON} or {FORM}, found {kind[:60]!r}")
    try:
        return dict(request_model.model_validate(given))
    except pydantic.ValidationError as error:
        raise RequestValidationError(
            error.errors(include_url=False, include_context=False, include_input=False)
        ) from error


def _invalid(name: str, message: str, value: Any) -> RequestValidationError:
    return RequestValidationError([{"type": "value_error", "loc": (name,), "msg": message, "input": str(value)[:60]}])


def _store(field: InputField, upload: UploadFile, folder: Path) -> Path:
    """Store an upload under a name of ours; only its suffix is the sender's."""
    suffix = Path(upload.filename or "").suffix.lower()
    if field.allowed and suffix not in field.allowed:
        raise _invalid(field.name, f"expected a file that ends in {', '.join(field.allowed)}", upload.filename)
    path = folder / f"{field.name}{suffix}"
    with path.open("wb") as file:
        shutil.copyfileobj(upload.file, file)
    return path


def respond(request: Request, parts: Sequence[Output], folder: Path, remove: BackgroundTask) -> Response:
    """Send the first file that the request accepts by name, or all parts as JSON, files in base64."""
    for entry in request.headers.get("accept", "").split(","):
        accepted = entry.partition(";")[0].strip().lower()
        if accepted in (JSON, "*/*", ""):
            break
        for part in parts:
            media_type = _media_type(part.name)
            if part.kind in FILE_OUTPUTS and accepted in (media_type, f"{media_type.partition('/')[0]}/*", ANY_FILE):
                return FileResponse(folder / part.name, media_type=media_type, filename=part.name, background=remove)
    rows = []
    for part in parts:
        row: dict[str, Any] = {"kind": part.kind, "title": part.title}
        if part.kind in FILE_OUTPUTS:
            content = base64.b64encode((folder / part.name).read_bytes()).decode()
            row |= {"name": part.name, "media_type": _media_type(part.name), "base64": content}
        else:
            row["data"] = part.data
        rows.append(row)
    return JSONResponse({"parts": rows}, background=remove)


def _media_type(name: str) -> str:
    return mimetypes.guess_type(name)[0] or ANY_FILE
