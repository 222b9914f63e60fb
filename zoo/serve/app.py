"""The HTTP application of one model: `/predict` validates by a pydantic model that is made from its fields."""

from __future__ import annotations

import asyncio
import base64
import mimetypes
import secrets
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import pydantic
from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, Response
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from prometheus_client import generate_latest
from starlette.background import BackgroundTask
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData, UploadFile
from starlette.middleware.body_limit import RequestBodyLimitMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware

from zoo import __version__
from zoo.runs.inference.base import Inference
from zoo.runs.inference.forms import FILE_FIELDS, FILE_OUTPUTS, InputField, Output, form_model
from zoo.serve.batching import MicroBatcher

JSON, FORM, ANY_FILE = "application/json", "multipart/form-data", "application/octet-stream"
BEARER = HTTPBearer(auto_error=False)
mimetypes.add_type("audio/wav", ".wav")  # Python's is audio/x-wav


def create_app(
    model: Inference, token: str, hosts: Sequence[str], title: str, max_batch: int = 16, max_wait_ms: float = 5.0,
    max_queue: int = 64, max_upload_mib: int = 64, timeout_seconds: float = 300.0,
) -> FastAPI:  # fmt: skip
    """Build the application of a model; for the limits see `zoo.serve.commands.main`.

    `token` is what requests carry as `Authorization: Bearer TOKEN` (`/healthz` needs none), `hosts` are the names under
    which they may reach it, `title` is that of the OpenAPI document.
    """
    batcher = MicroBatcher(model, max_batch, max_wait_ms / 1000, max_queue)
    fields = model.fields()
    request_model = form_model(fields)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        worker = asyncio.create_task(batcher.run())
        yield
        worker.cancel()

    app = FastAPI(title=title, version=__version__, docs_url=None, redoc_url=None, lifespan=lifespan)
    app.add_middleware(RequestBodyLimitMiddleware, max_body_size=max_upload_mib * 2**20)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=list(hosts))
    authorized = [Depends(token_check(token))]

    @app.post("/predict", dependencies=authorized, openapi_extra={"requestBody": describe_body(request_model, fields)})
    async def predict(request: Request) -> Response:
        """Compute a result; with Accept: audio/*, image/* or application/octet-stream its first such file."""
        folder = Path(tempfile.mkdtemp(prefix="zoo-serve-"))
        remove = BackgroundTask(shutil.rmtree, folder, ignore_errors=True)
        try:
            values = await read_values(request, request_model, fields, folder)
            (folder / "result").mkdir()
            outputs = await batcher.submit(values, folder / "result", timeout_seconds)
            return respond(request, outputs, folder / "result", remove)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)  # awaiting may be cut short where the server ends
            raise

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        return {"status": "ready"}

    @app.get("/metrics", dependencies=authorized)
    async def metrics() -> Response:
        return Response(generate_latest(batcher.metrics), media_type="text/plain; version=0.0.4")

    return app


def token_check(token: str) -> Callable[..., None]:
    """Return a dependency that refuses requests without the token by 401."""

    def check(credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(BEARER)]) -> None:
        if credentials is None or not secrets.compare_digest(credentials.credentials.encode(), token.encode()):
            raise HTTPException(401, "expected the header Authorization: Bearer TOKEN", {"WWW-Authenticate": "Bearer"})

    return check


def describe_body(request_model: type[pydantic.BaseModel], fields: Sequence[InputField]) -> dict[str, Any]:
    """Describe the body of a request, JSON or a form, for the OpenAPI document."""
    schema = request_model.model_json_schema()
    schema["properties"] |= {
        field.name: {"type": "string", "format": "binary", "title": field.label}
        for field in fields
        if field.kind in FILE_FIELDS
    }
    return {"content": {kind: {"schema": schema} for kind in (JSON, FORM)}}


async def read_values(
    request: Request, request_model: type[pydantic.BaseModel], fields: Sequence[InputField], folder: Path
) -> dict[str, Any]:
    """Read and validate the values of a request, JSON or a form; files of a form are stored in the folder.

    Raises RequestValidationError (422) for a wrong field, HTTPException for another content type or no readable body.
    """
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    files = [field.name for field in fields if field.kind in FILE_FIELDS]
    if content_type == JSON:
        try:
            values = await request.json()
        except (ValueError, RecursionError) as error:
            raise HTTPException(422, f"the body is no JSON: {error}") from error
        if isinstance(values, dict):
            _check_files({name: [value] for name, value in values.items()}, files)
    elif content_type == FORM:
        async with request.form(max_files=len(fields) + 1, max_fields=len(fields) + 64) as form:
            _check_files({name: form.getlist(name) for name in form}, files)
            values = await run_in_threadpool(_read_form, form, fields, folder)
    else:
        raise HTTPException(415, f"expected content of type {JSON} or {FORM}, found {content_type[:60]!r}")
    try:
        return dict(request_model.model_validate(values))
    except pydantic.ValidationError as error:
        details = error.errors(include_url=False, include_context=False, include_input=False)
        raise RequestValidationError(details) from error


def _check_files(values: dict[str, list[Any]], files: Sequence[str]) -> None:
    """Refuse a path where a file is to be uploaded, which would be read here, and a file where a value is expected."""
    for name, entries in values.items():
        if any(isinstance(each, UploadFile) != (name in files) for each in entries):
            message = f"expected a file, sent as {FORM}" if name in files else "expected a value, not a file"
            raise RequestValidationError([{"type": "value_error", "loc": (name,), "msg": message, "input": None}])


def _read_form(form: FormData, fields: Sequence[InputField], folder: Path) -> dict[str, Any]:
    """Collect the values of a form; an upload is stored under a name of ours, only its suffix is the sender's."""
    lists = [field.name for field in fields if field.kind == "choices"]
    values: dict[str, Any] = {}
    for name in form:
        entries = form.getlist(name)
        values[name] = entries if name in lists or len(entries) > 1 else entries[0]
        if isinstance(upload := values[name], UploadFile):
            suffix = Path(upload.filename or "").suffix.lower()[:16]
            values[name] = folder / f"{name}{suffix if suffix[1:].isalnum() else ''}"
            with values[name].open("wb") as file:
                shutil.copyfileobj(upload.file, file)
    return values


def respond(request: Request, outputs: Sequence[Output], folder: Path, remove: BackgroundTask) -> Response:
    """Send the first file that the request accepts by name, or all outputs as JSON, files in base64."""
    types = {each.name: mimetypes.guess_type(each.name)[0] or ANY_FILE for each in outputs if each.kind in FILE_OUTPUTS}
    for entry in request.headers.get("accept", "").split(","):
        accepted = entry.partition(";")[0].strip().lower()
        if accepted in (JSON, "*/*", ""):
            break
        for name, media_type in types.items():
            if accepted in (media_type, f"{media_type.partition('/')[0]}/*", ANY_FILE):
                return FileResponse(folder / name, media_type=media_type, filename=name, background=remove)
    parts: list[dict[str, Any]] = [{"kind": each.kind, "title": each.title} for each in outputs]
    for part, output in zip(parts, outputs, strict=True):
        if output.name in types:
            content = base64.b64encode((folder / output.name).read_bytes()).decode()
            part |= {"name": output.name, "media_type": types[output.name], "base64": content}
        else:
            part["data"] = output.data
    return JSONResponse({"parts": parts}, background=remove)
