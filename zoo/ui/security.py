"""The gate in front of every route: who may ask, from where, and how much may be sent."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import json
import re
import secrets
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from html import escape
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs, urlsplit

from zoo.ui.store import MIB, Store

HOSTS = ("127.0.0.1", "localhost")
LOGIN_PATH = "/_zoo/login"
UPLOAD_PATH = "/_zoo/upload"
SOCKET_PATH = "/_nicegui_ws/socket.io/"
OTHER_LIMIT = 1 * MIB  # what the page sends besides files: values of its elements
_LOGIN_LIMIT = 4096
_GUESS_SECONDS = 1.0
LEAVE_SECONDS = 60.0  # without an open page; one that is loaded anew is back sooner
# What the page is made of; of NiceGUI's own routes only what it ships, none that takes files or serves others
_READ = re.compile(
    r"/|/favicon\.ico|/_nicegui/[0-9.]+/(static|libraries|components|resources|dynamic_resources|esm)/.+"
    r"|/_zoo/(media|curves|results|exports)/.+"
)
# NiceGUI's page holds inline scripts and compiles its templates; nothing may come from or go to another host
_POLICY = "; ".join(
    (
        "default-src 'self'",
        "script-src 'self' 'unsafe-inline' 'unsafe-eval'",
        "style-src 'self' 'unsafe-inline'",
        "img-src 'self' data: blob:",
        "media-src 'self' data: blob:",
        "font-src 'self' data:",
        "worker-src 'self' blob:",
        "object-src 'none'",
        "base-uri 'self'",
        "form-action 'self'",
        "frame-ancestors 'none'",
    )
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",  # under no-referrer a browser's form has the origin "null"
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(self), geolocation=()",
}
_PAGE = """<!doctype html><meta charset="utf-8"><title>zoo</title><meta name="viewport" content="width=device-width">
<style>body{{font:16px/1.5 system-ui,sans-serif;background:#f5f6f8;color:#1f2733;display:grid;place-items:center;
height:90vh}}main{{background:#fff;padding:2rem 2.5rem;border-radius:12px;box-shadow:0 1px 8px #0002;max-width:26rem}}
h1{{font-size:1.3rem;margin:0 0 .6rem}}input,button{{font:inherit;padding:.5rem .7rem;border-radius:8px;
border:1px solid #c5ccd6}}button{{background:#0f766e;color:#fff;border:0;margin-left:.4rem}}p.bad{{color:#b42318}}
</style>
<main><h1>zoo</h1>{body}</main>"""

Scope = dict[str, Any]
Receive = Callable[[], Any]
Send = Callable[[dict[str, Any]], Any]


@dataclass
class Keys:
    """What opens the page: a token in the first address, or a password typed into a form.

    Args:
        password: None for a token.
        token: made anew for each server.
        cookie: the cookie's name; cookies of a host are shared by its ports, so the port belongs in it.
    """

    password: str | None = None
    token: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    cookie: str = "zoo_ui"
    sessions: set[str] = field(default_factory=set)

    def fits(self, given: str) -> bool:
        """Whether this is the password or, without one, the token; takes the same time for every wrong one."""
        wanted = self.token if self.password is None else self.password
        return hmac.compare_digest(given.encode(), wanted.encode())

    def admit(self) -> str:
        """A new session's cookie."""
        session = secrets.token_urlsafe(32)
        self.sessions.add(session)
        return f"{self.cookie}={session}; Path=/; HttpOnly; SameSite=Strict"

    def session(self, cookies: str) -> str | None:
        """The name of the session whose secret a Cookie header holds; None without one."""
        try:
            morsel = SimpleCookie(cookies).get(self.cookie)
        except CookieError:
            return None
        given = morsel.value if morsel else ""
        known = any([hmac.compare_digest(given.encode(), session.encode()) for session in self.sessions])
        return hashlib.sha256(given.encode()).hexdigest()[:32] if known else None


class Gate:
    """ASGI middleware: checks Host, Origin, session, address and size before anything behind it sees a request.

    Args:
        store: knows how many bytes may still be stored and whose uploads are whose.
        owners: session of each open page, by its NiceGUI client; filled where pages are made.
        leave: told a session whose last page has been closed for a while.
    """

    def __init__(
        self,
        app: Any,
        keys: Keys,
        upload_limit: int,
        store: Store,
        owners: Mapping[str, str],
        leave: Callable[[str], None],
    ) -> None:
        self.app = app
        self.keys = keys
        self.upload_limit = upload_limit
        self.store = store
        self.owners = owners
        self.leave = leave
        self._guessing = asyncio.Lock()
        self._coming = 0  # bytes of uploads under way
        self._pages: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        headers = {key.decode("latin-1").lower(): value.decode("latin-1") for key, value in scope["headers"]}
        send = hardened(send)
        if not is_from_here(scope, headers):
            await _refuse(scope, send, 403, "This page answers only to itself, under 127.0.0.1 or localhost.")
            return
        if scope["type"] == "http" and await self._enter(scope, headers, receive, send):
            return
        session = self.keys.session(headers.get("cookie", ""))
        if session is None:
            await self._send_away(scope, send)
        elif scope["type"] == "websocket":
            await self._stay(session, scope, receive, send)
        elif scope["path"] == UPLOAD_PATH and scope["method"] == "POST":
            await self._upload(headers, scope, receive, send)
        elif _READ.fullmatch(scope["path"]) and scope["method"] in ("GET", "HEAD"):
            await self.app(scope, receive, send)
        else:
            await _refuse(scope, send, 404, "There is no such page.")

    async def _stay(self, session: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Hold the connection of one of the session's pages; when its last one has been gone for a while, it ends."""
        client = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("client_id", [""])
        if scope["path"] != SOCKET_PATH or len(client) != 1 or self.owners.get(client[0]) != session:
            await _refuse(scope, send, 404, "")
            return

        async def checked() -> dict[str, Any]:
            message = await receive()
            if message["type"] == "websocket.receive" and not _speaks_for(message, client[0]):
                return {"type": "websocket.disconnect", "code": 1008}
            return message

        self._pages[session] += 1
        try:
            await self.app(scope, checked, send)
        finally:
            self._pages[session] -= 1
            asyncio.get_running_loop().call_later(LEAVE_SECONDS, self._leave, session)

    def _leave(self, session: str) -> None:
        if not self._pages[session]:
            del self._pages[session]
            self.leave(session)

    async def _enter(self, scope: Scope, headers: dict[str, str], receive: Receive, send: Send) -> bool:
        """Answer what has to do with entering; tells whether there was such a thing."""
        if self.keys.password is None:
            given = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("token")
            if scope["path"] != "/" or scope["method"] != "GET" or not given:
                return False
            if not self.keys.fits(given[-1]):
                return False
            await _redirect(send, self.keys.admit())
            return True
        if scope["path"] != LOGIN_PATH:
            return False
        if scope["method"] != "POST":
            await _answer(send, 200, _login_form(""))
            return True
        body = await _body(receive, _LOGIN_LIMIT)
        given = parse_qs((body or b"").decode("utf-8", "replace")).get("password", [""])
        async with self._guessing:  # one guess at a time
            if self.keys.fits(given[-1]):
                await _redirect(send, self.keys.admit())
                return True
            await asyncio.sleep(_GUESS_SECONDS)
        await _answer(send, 401, _login_form("That is not the password."))
        return True

    async def _send_away(self, scope: Scope, send: Send) -> None:
        if self.keys.password is None:
            await _refuse(scope, send, 401, "Open the address that <code>zoo ui</code> printed: it carries the token.")
        elif scope["type"] == "http" and scope["path"] == "/" and scope["method"] == "GET":
            await _answer(send, 401, _login_form(""))
        else:
            await _refuse(scope, send, 401, "Log in first.")

    async def _upload(self, headers: dict[str, str], scope: Scope, receive: Receive, send: Send) -> None:
        """Pass an upload on unless it is too large, also when it lies about that."""
        limit = min(self.upload_limit, max(self.store.room() - self._coming, 0))
        hint = f"uploads may have {limit // MIB} MiB here (--max_upload_mib; what is stored counts as well)"
        claimed = headers.get("content-length", str(limit))
        if not claimed.isdigit() or int(claimed) > limit:
            await _say(send, 413, hint)
            return
        seen = 0
        begun = False

        async def counted() -> dict[str, Any]:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > limit:
                raise _TooLargeError
            return message

        async def passed_on(message: dict[str, Any]) -> None:
            nonlocal begun
            if begun or seen <= limit:  # else it is what an app makes of the error
                begun = True
                await send(message)

        self._coming += int(claimed)
        try:
            with contextlib.suppress(_TooLargeError):
                await self.app(scope, counted, passed_on)
        finally:
            self._coming -= int(claimed)
        if seen > limit and not begun:
            await _say(send, 413, hint)


class _TooLargeError(Exception):
    """A body without or with a false length went beyond the limit."""


def _speaks_for(message: dict[str, Any], client: str) -> bool:
    """Whether a frame of Socket.IO is text that names no client but this one, at whatever place it is read from."""
    text = message.get("text")
    if text is None or len(text) > OTHER_LIMIT:
        return False
    start = text.find("[")
    if start < 0:  # pings, and what opens and closes
        return True
    try:
        _, *arguments = json.loads(text[start:])
    except (ValueError, TypeError, RecursionError):
        return False
    return all(isinstance(each, dict) and each.get("client_id", client) == client for each in arguments)


def is_from_here(scope: Scope, headers: Mapping[str, str], hosts: Collection[str] = HOSTS) -> bool:
    """Whether Host is one of ours, by default loopback (no DNS rebinding), and Origin, if any, is the page itself."""
    host = headers.get("host", "")
    try:
        parsed = urlsplit(f"//{host}")
        named = parsed.hostname in hosts and "@" not in host and (parsed.port is None or parsed.port > 0)
    except ValueError:
        return False
    origin = headers.get("origin")
    if origin is None:
        return named and scope["type"] == "http"
    return named and origin in (f"http://{host}", f"https://{host}")


def hardened(send: Send) -> Send:
    """The same with headers that keep a browser from other hosts, frames and guesses."""

    async def sender(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            ours = {key.encode(): value.encode() for key, value in _HEADERS.items()}
            kept = [(key, value) for key, value in message.get("headers", []) if key.lower() not in ours]
            kept = [(key, value) for key, value in kept if not key.lower().startswith(b"access-control-")]
            message = {**message, "headers": [*kept, *ours.items()]}
        await send(message)

    return sender


async def _body(receive: Receive, limit: int) -> bytes | None:
    body, more = b"", True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            return None
        body += message.get("body", b"")
        more = message.get("more_body", False)
        if len(body) > limit:
            return None
    return body


def _login_form(problem: str) -> str:
    said = f'<p class="bad">{escape(problem)}</p>' if problem else ""
    return (
        f'{said}<form method="post" action="{LOGIN_PATH}"><input type="password" name="password" '
        'placeholder="Password" autofocus autocomplete="current-password"><button>Enter</button></form>'
    )


async def _refuse(scope: Scope, send: Send, status: int, body: str) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008})
        return
    await _answer(send, status, f"<p>{body}</p>")


async def _answer(send: Send, status: int, body: str) -> None:
    content = _PAGE.format(body=body).encode()
    headers = [(b"content-type", b"text/html; charset=utf-8"), (b"content-length", str(len(content)).encode())]
    await send(
        {"type": "http.response.start", "status": status, "headers": [*headers, (b"cache-control", b"no-store")]}
    )
    await send({"type": "http.response.body", "body": content})


async def _say(send: Send, status: int, line: str) -> None:
    content = line.encode()
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(content)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})


async def _redirect(send: Send, cookie: str) -> None:
    headers = [(b"location", b"/"), (b"set-cookie", cookie.encode()), (b"cache-control", b"no-store")]
    await send({"type": "http.response.start", "status": 303, "headers": headers})
    await send({"type": "http.response.body", "body": b""})
