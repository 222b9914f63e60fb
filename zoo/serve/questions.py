"""What a request says, by the fields of the run; and the same as OpenAPI."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

from fastapi import HTTPException, Request
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import UploadFile

from zoo.common.reading.text import load_json
from zoo.runs.interactive import FILES, MAX_TEXT, Field, checked
from zoo.ui.security import OTHER_LIMIT

JSON, FORM = "application/json", "multipart/form-data"


class Wrong(HTTPException):
    """422: what was given cannot be used."""

    def __init__(self, error: str, field: str | None = None) -> None:
        super().__init__(422, {"error": error, "field": field})


async def read_values(
    request: Request, fields: Sequence[Field], keep: Callable[[str, IO[bytes]], Path]
) -> dict[str, Any]:
    """The values of a request, checked field by field.

    Args:
        keep: stores a file under its sender's name.

    Raises:
        HTTPException: 415 for another content type, 422 with the field that is wrong, and what reading the body raises.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    declared = {field.name: field for field in fields}
    if kind == JSON:
        given = await read_json(request)
        for name in given.keys() & {field.name for field in fields if field.kind in FILES}:
            if given[name] is not None:
                raise Wrong(f"{declared[name].label}: a file; send the request as {FORM}", name)
        _check_names(given, declared)
        return _checked(fields, given)
    if kind != FORM:
        raise HTTPException(415, f"expected content of type {JSON} or {FORM}, found {kind[:60]!r}")
    async with request.form(max_files=len(fields) + 1, max_fields=len(fields) + 64, max_part_size=OTHER_LIMIT) as form:
        given = {name: form.getlist(name) for name in form}
        _check_names(given, declared)
        said = {name: _said(declared[name], entries) for name, entries in given.items()}
        _checked([field for field in fields if field.kind not in FILES], said, only=True)
        for name, value in said.items():
            if isinstance(value, UploadFile):  # the sound ones are stored, once nothing else is wrong
                _checked([declared[name]], {name: Path(value.filename or "")}, only=True)
                said[name] = await run_in_threadpool(keep, value.filename or "", value.file)
        return _checked(fields, said)


async def read_json(request: Request) -> dict[str, Any]:
    """The object that a request holds."""
    body = b""
    async for block in request.stream():
        body += block
        if len(body) > OTHER_LIMIT:
            raise HTTPException(413, f"JSON may have {OTHER_LIMIT} bytes")
    try:
        given = load_json(body)
    except ValueError as error:
        raise Wrong(f"this is no JSON: {error}") from error
    if not isinstance(given, dict):
        raise Wrong(f"expected an object of fields, found {type(given).__name__}")
    return given


def _check_names(given: dict[str, Any], declared: dict[str, Field]) -> None:
    for name in given.keys() - declared.keys():
        raise Wrong(f"there is no field {name[:40]!r}; the fields are {', '.join(declared)}", name[:40])


def _said(field: Field, entries: Sequence[Any]) -> Any:
    """What a form says of a field, in the types that JSON has."""
    if field.kind == "choices" and not any(isinstance(entry, UploadFile) for entry in entries):
        return [entry for entry in entries if entry]
    if len(entries) > 1:
        raise Wrong(f"{field.label}: given {len(entries)} times", field.name)
    (entry,) = entries
    if isinstance(entry, UploadFile) != (field.kind in FILES) and entry != "":
        raise Wrong(f"{field.label}: expected {'a file' if field.kind in FILES else 'no file'}", field.name)
    if field.kind in ("int", "float", "bool") and entry:
        try:
            return load_json(entry)
        except ValueError:
            return entry  # which says what was found
    return entry


def _checked(fields: Sequence[Field], given: dict[str, Any], only: bool = False) -> dict[str, Any]:
    """Each field's value; `only` those that are given."""
    found: dict[str, Any] = {}
    for field in fields:
        if only and field.name not in given:
            continue
        try:
            found |= checked([field], {field.name: given.get(field.name)})
        except ValueError as error:
            raise Wrong(str(error), field.name) from error
    return found


def openapi(title: str, fields: Sequence[Field], version: str) -> dict[str, Any]:
    """The endpoint as OpenAPI 3.1, with the run's own fields."""
    properties = {field.name: _schema(field) for field in fields}
    required = [field.name for field in fields if not field.optional and field.default in (None, "", ())]
    body = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    files = any(field.kind in FILES for field in fields)
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    refusals = {
        "401": "no or another token", "403": "under another name of this machine", "408": "the body did not come",
        "413": "too large", "415": "another content type", "422": "a field is wrong, or what it holds",
        "429": "too many wait; Retry-After tells when to come back", "500": "it could not be computed",
        "503": "loading, or ending", "504": "no answer within the deadline",
    }  # fmt: skip
    predicted = {
        "application/json": {"schema": {"$ref": "#/components/schemas/Answer"}},
        "audio/*": {},
        "image/*": {},
        "application/octet-stream": {},
    }
    contents = {FORM: {"schema": body}} if files else {JSON: {"schema": body}, FORM: {"schema": body}}
    predict = {
        "summary": "Compute an answer; with Accept: audio/*, image/* or application/octet-stream its first such file",
        "requestBody": {"required": True, "content": contents},
        "responses": {
            "200": {"description": "the answer", "content": predicted},
            **{code: {"description": why, "content": error} for code, why in refusals.items()},
        },
    }
    text = {"200": {"description": "text", "content": {"text/plain": {}}}}
    names = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in ("job", "name")]
    part = {
        "type": "object",
        "properties": {
            "kind": {"type": "string"}, "title": {"type": "string"}, "data": {},
            "name": {"type": "string"}, "link": {"type": "string"},
        },
    }  # fmt: skip
    parts = {"type": "array", "items": part}
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": version},
        "security": [{"token": []}],
        "paths": {
            "/predict": {"post": predict},
            "/results/{job}/{name}": {
                "get": {"summary": "A file of an answer, for a while", "parameters": names, "responses": text}
            },
            "/health": {"get": {"summary": "200 when ready, else 503", "security": [], "responses": text}},
            "/metrics": {"get": {"summary": "Prometheus", "responses": text}},
        },
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": {
                "Answer": {"type": "object", "properties": {"parts": parts, "seconds": {"type": "number"}}},
                "Error": {"type": "object", "properties": {"error": {"type": "string"}, "field": {}}},
            },
        },
    }


def _schema(field: Field) -> dict[str, Any]:
    about: dict[str, Any] = {"title": field.label}
    if field.help:
        about["description"] = field.help
    if field.kind in FILES:
        told = f"a file: {', '.join(field.suffixes)}" if field.suffixes else "a file"
        about |= {"type": "string", "format": "binary", "description": f"{told}; {field.help}".rstrip("; ")}
    elif field.kind in ("int", "float"):
        about["type"] = "integer" if field.kind == "int" else "number"
        about |= {key: value for key, value in (("minimum", field.low), ("maximum", field.high)) if value is not None}
    elif field.kind == "bool":
        about["type"] = "boolean"
    elif field.kind == "text":
        about |= {"type": "string", "maxLength": MAX_TEXT if field.high is None else int(field.high)}
    elif field.kind == "choice":
        about |= {"type": "string", "enum": list(field.choices)}
    else:
        about |= {"type": "array", "items": {"type": "string", "enum": list(field.choices)}, "uniqueItems": True}
        bounds = (("minItems", field.low), ("maxItems", field.high))
        about |= {key: int(value) for key, value in bounds if value is not None}
    if field.default not in (None, "", ()):
        about["default"] = list(field.default) if isinstance(field.default, tuple) else field.default
    if field.optional and "type" in about and field.kind not in FILES:
        about["type"] = [about["type"], "null"]
        if "enum" in about:
            about["enum"] = [*about["enum"], None]
    return about
