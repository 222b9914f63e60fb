"""Access to the page: a token becomes a cookie; Host, Origin and cookie of every connection are checked."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse, RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HOSTS = ("127.0.0.1", "localhost")
SAFE_METHODS = ("GET", "HEAD")
# NiceGUI's page holds inline scripts and compiles its templates; nothing may come from or go to another host
_POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; media-src 'self' data: blob:; font-src 'self' data:; worker-src 'self' blob:; "
    "object-src 'none'; base-uri 'self'; form-action 'self'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(self), geolocation=()",
}


@dataclass(frozen=True)
class AccessToken:
    """The secret of one server, and the cookie that holds it; ports share cookies, so the name has the port."""

    port: int
    value: str = field(default_factory=lambda: secrets.token_urlsafe(32))

    @property
    def cookie(self) -> str:
        """The name of the cookie."""
        return f"zoo_ui_{self.port}"

    def matches(self, value: str) -> bool:
        """Tell whether a value is the token; takes the same time for every wrong one."""
        return secrets.compare_digest(value.encode(), self.value.encode())


class AccessGate:
    """ASGI middleware in front of every route and websocket."""

    def __init__(self, app: ASGIApp, token: AccessToken) -> None:
        self.app = app
        self.token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        connection, send = HTTPConnection(scope), add_security_headers(send)
        brings_token = self.token.matches(connection.query_params.get("token", ""))
        response: PlainTextResponse | RedirectResponse | None = None
        if not is_same_origin(scope, connection.headers):
            response = PlainTextResponse("Requests come from this page alone.", 403)
        elif scope["type"] == "http" and scope["method"] == "GET" and scope["path"] == "/" and brings_token:
            response = RedirectResponse("/", 303)
            response.set_cookie(self.token.cookie, self.token.value, httponly=True, samesite="strict")
        elif not self.token.matches(connection.cookies.get(self.token.cookie, "")):
            response = PlainTextResponse("Open the address that `zoo ui` printed: it holds the token.", 401)
        await (response or self.app)(scope, receive, send)


def is_same_origin(scope: Scope, headers: Headers) -> bool:
    """Tell whether a request comes from the page itself; requests that change nothing may have no Origin."""
    origin = headers.get("origin")
    if origin is None:
        return scope["type"] == "http" and scope["method"] in SAFE_METHODS
    return origin == f"http://{headers.get('host', '')}"


def add_security_headers(send: Send) -> Send:
    """Return a `send` whose responses keep a browser from other hosts, frames and guesses of types."""

    async def send_with_headers(message: Message) -> None:
        if message["type"] in ("http.response.start", "websocket.http.response.start"):
            MutableHeaders(scope=message).update(HEADERS)
        await send(message)

    return send_with_headers
