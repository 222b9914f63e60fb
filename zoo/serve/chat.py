"""An OpenAI-compatible face of a served language model: `/v1/models` and `/v1/chat/completions`, whole or streamed."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeGuard

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from zoo.runs.interactive import CHAT, CHAT_GONE, CHAT_STREAM, Field
from zoo.serve.questions import read_json
from zoo.serve.queue import Queue, new_session
from zoo.ui.warm.pool import Finished

PREFIX = "/v1/"
LOOK_SECONDS = 0.02  # between two looks at a growing text
MAX_STOPS = 4
ROLES = ("system", "developer", "user", "assistant")
KNOWN = (
    "model", "messages", "max_tokens", "max_completion_tokens", "temperature", "top_p", "stop", "seed", "stream",
    "stream_options", "n",
)  # fmt: skip
IGNORED = ("user", "metadata", "store", "service_tier", "parallel_tool_calls")
RANGES = {"temperature": (0, 2), "top_p": (0, 1), "max_tokens": (1, 2**20), "seed": (0, 2**31)}
PLAIN_TEXT = ("response_format", {"type": "text"})
NOTHING: tuple[Any, ...] = (None, False, [], {})  # what clients send of parameters that they do not use


def chat_field(queue: Queue) -> Field:
    """What the run says of chats: the names of its models are the field's choices.

    Raises:
        HTTPException: 503 while it loads, 404 when it is no language model.
    """
    if queue.fields is None:
        raise HTTPException(503, "the run is loading", {"Retry-After": "2"})
    found = next((each for each in queue.fields if each.name == CHAT), None)
    if found is None:
        raise HTTPException(404, "this run is no language model; see /openapi.json")
    return found


def checked(given: dict[str, Any], models: tuple[str, ...]) -> dict[str, Any]:
    """A request with what is asked of the worker; raises 400 or 404 with the parameter that is wrong."""
    for name, value in given.items():
        if name not in KNOWN and name not in IGNORED and value not in NOTHING and (name, value) != PLAIN_TEXT:
            raise _wrong(f"{name[:40]} is not supported", name[:40])
    if given.get("n") not in (None, 1) or given.get("n") is True:
        raise _wrong("n is 1", "n")
    if given.get("stream") not in (None, True, False):
        raise _wrong("stream is true or false", "stream")
    if not isinstance(given.get("stream_options") or {}, dict):
        raise _wrong("stream_options is an object", "stream_options")
    model = given.get("model")
    if model is None:
        raise _wrong(f"name a model: {', '.join(models)}", "model")
    if model not in models:
        raise _no_model(model, models)
    said: dict[str, Any] = {"model": model, "messages": _messages(given.get("messages"))}
    if given.get("max_completion_tokens") is not None:
        given = {**given, "max_tokens": given["max_completion_tokens"]}
    for name, (low, high) in RANGES.items():
        value = given.get(name)
        if value is None:
            continue
        whole = name in ("max_tokens", "seed")
        if isinstance(value, bool) or not isinstance(value, int if whole else int | float) or not low <= value <= high:
            raise _wrong(f"{name} is a {'whole ' if whole else ''}number from {low} to {high}", name)
        said[name] = value
    if said.get("top_p") == 0:
        raise _wrong("top_p is above 0", "top_p")
    stop = given.get("stop") or []
    stop = [stop] if isinstance(stop, str) else stop
    if not isinstance(stop, list) or len(stop) > MAX_STOPS or not all(_is_text(each) and each for each in stop):
        raise _wrong(f"stop is a text, or at most {MAX_STOPS}", "stop")
    return {"seed": secrets.randbelow(2**31), **said, "stop": stop}


def _messages(given: Any) -> list[dict[str, str]]:
    if not isinstance(given, list) or not given:
        raise _wrong("messages is a list of messages", "messages")
    found = []
    for each in given:
        role, content = (each.get("role"), each.get("content")) if isinstance(each, dict) else (None, None)
        if isinstance(content, list) and all(isinstance(part, dict) and part.get("type") == "text" for part in content):
            content = "".join(str(part.get("text", "")) for part in content)
        if role not in ROLES or not _is_text(content):
            raise _wrong(f"a message has a role ({', '.join(ROLES)}) and a content of text", "messages")
        found.append({"role": "system" if role == "developer" else role, "content": content})
    return found


def _is_text(value: Any) -> TypeGuard[str]:
    """Whether it is a text that has bytes; half a surrogate pair, which JSON can hold, has none."""
    return isinstance(value, str) and not any("\ud800" <= letter <= "\udfff" for letter in value)


def _wrong(message: str, parameter: str, code: int = 400) -> HTTPException:
    return HTTPException(code, {"error": message, "field": parameter})


def _no_model(name: Any, models: Sequence[str]) -> HTTPException:
    return _wrong(f"there is no model {str(name)[:60]!r}; there are {', '.join(models)}", "model", 404)


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "zoo"}


def error_body(said: Any, code: int) -> dict[str, Any]:
    """An error as OpenAI's clients read it."""
    about = said if isinstance(said, dict) else {"error": said}
    kind = "invalid_request_error" if code < 500 else "server_error"
    return {"error": {"message": about.get("error"), "type": kind, "param": about.get("field"), "code": code}}


def add_chat(app: FastAPI, queue: Queue) -> None:
    """Add the routes."""

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [_model(name) for name in chat_field(queue).choices]}

    @app.get("/v1/models/{name}")
    async def model(name: str) -> dict[str, Any]:
        names = chat_field(queue).choices
        if name not in names:
            raise _no_model(name, names)
        return _model(name)

    @app.post("/v1/chat/completions")
    async def completions(request: Request) -> Response:
        queue.let_in()
        field = chat_field(queue)
        end = asyncio.get_running_loop().time() + queue.limits.deadline
        given = await read_json(request)
        said = checked(given, field.choices)
        usage = bool((given.get("stream_options") or {}).get("include_usage"))
        talk = Talk(queue, request, said, end)
        if given.get("stream"):
            await talk.begun()
            return StreamingResponse(talk.events(usage), media_type="text/event-stream")
        return JSONResponse(talk.whole(await talk.answer()))


class Talk:
    """One completion under way.

    Args:
        end: time of the loop at which it is given up.
    """

    def __init__(self, queue: Queue, request: Request, said: dict[str, Any], end: float) -> None:
        self.queue, self.said = queue, said
        self.session = new_session()
        self.folder: Path | None = None
        self.head = {"id": f"chatcmpl-{self.session[:24]}", "created": int(time.time()), "model": said["model"]}
        queue.active += 1
        values = {**{each.name: each.default for each in queue.fields or ()}, "question": ".", CHAT: json.dumps(said)}
        self.task = asyncio.ensure_future(queue.ask(self.session, values, request, end, self._begin))
        self.task.add_done_callback(self._over)

    def _begin(self, folder: Path) -> None:
        self.folder = folder

    def _over(self, task: asyncio.Future[Any]) -> None:
        self.queue.active -= 1
        failed = task.cancelled() or task.exception() is not None
        if failed and self.folder is not None:
            with suppress(OSError):
                (self.folder / CHAT_GONE).touch()  # its rows are free from the next token on
        if failed:
            self.queue.end(self.session)

    async def answer(self) -> dict[str, Any]:
        """What the worker says in the end."""
        _, finished = await self.task
        self.queue.end(self.session)
        return answer_of(finished)

    async def begun(self) -> None:
        """Wait for the first text, or for a failure that still has a code of its own."""
        while not self.task.done() and not self._lines(0):
            await asyncio.sleep(LOOK_SECONDS)
        if self.task.done():
            self.task.result()

    def _lines(self, first: int) -> list[str]:
        """Pieces of text from a number on."""
        path = None if self.folder is None else self.folder / CHAT_STREAM
        if path is None or not path.is_file():
            return []
        lines = path.read_text(encoding="utf-8").split("\n")[:-1]
        return [json.loads(line) for line in lines[first:]]

    def whole(self, answer: dict[str, Any]) -> dict[str, Any]:
        """The completion as one object."""
        message = {"role": "assistant", "content": answer["text"]}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": answer["finish_reason"]}
        return {**self.head, "object": "chat.completion", "choices": [choice], "usage": usage_of(answer)}

    async def events(self, usage: bool) -> AsyncIterator[str]:
        """The completion as server-sent events."""
        told = 0
        try:
            yield self._event({"role": "assistant", "content": ""})
            while True:
                done = self.task.done()
                for piece in self._lines(told):
                    told += 1
                    yield self._event({"content": piece})
                if done:
                    break
                await asyncio.wait({self.task}, timeout=LOOK_SECONDS)
            try:
                answer = answer_of(self.task.result()[1])
            except HTTPException as error:
                yield f"data: {json.dumps(error_body(error.detail, error.status_code))}\n\n"
                return
            yield self._event({}, answer["finish_reason"])
            if usage:
                yield self._line({"choices": [], "usage": usage_of(answer)})
            yield "data: [DONE]\n\n"
        finally:
            if self.task.done():
                self.queue.end(self.session)
            else:
                self.task.cancel()  # and `_over` ends it, once the folder is known to be in use

    def _event(self, delta: dict[str, str], reason: str | None = None) -> str:
        return self._line({"choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}]})

    def _line(self, more: dict[str, Any]) -> str:
        return f"data: {json.dumps({**self.head, 'object': 'chat.completion.chunk', **more}, ensure_ascii=False)}\n\n"


def answer_of(finished: Finished) -> dict[str, Any]:
    """What the worker wrote into its only part."""
    answer: dict[str, Any] = json.loads(finished.parts[0].data)
    return answer


def usage_of(answer: dict[str, Any]) -> dict[str, int]:
    """Tokens that were read and written."""
    prompt, written = answer["prompt_tokens"], answer["completion_tokens"]
    return {"prompt_tokens": prompt, "completion_tokens": written, "total_tokens": prompt + written}
