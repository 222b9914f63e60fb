"""Pages of a started server, spoken to as a browser's script would, or worse."""

from __future__ import annotations

import asyncio
import json
import re
import time
from contextlib import asynccontextmanager
from html import unescape
from typing import Any

import httpx
import socketio

from tests.ui.serving import Server
from zoo.ui.security import SOCKET_PATH


class OpenPage:
    """An open page: its elements as the server describes them, all that was received, and a way to send anything.

    Args:
        elements: by id; `events` lists what the server listens to.
        said: every message from the server as text.
    """

    def __init__(self, elements: dict[str, Any], client_id: str) -> None:
        self.elements = elements
        self.client_id = client_id
        self.said: list[str] = []
        self.socket = socketio.AsyncClient(reconnection=False)
        self.socket.on("*", self._hear)

    async def _hear(self, event: str, content: Any = None, *_: Any) -> None:
        self.said.append(json.dumps([event, content], default=str))
        if event == "update":
            for key, element in content.items():
                if key != "_id":
                    self.elements[key] = element or {}

    async def send(self, element: str, listener: str, arguments: Any) -> None:
        """Send an event of an element."""
        event = {"id": int(element), "client_id": self.client_id, "listener_id": listener, "args": arguments}
        await self.socket.emit("event", event)

    def listeners(self) -> list[tuple[str, str, str, str]]:
        """Element, component or tag, kind of event and listener, of all that can be told something."""
        found = []
        for key, element in self.elements.items():
            kind = str(element.get("component") or element.get("tag"))
            for event in element.get("events") or ():
                found.append((key, kind, event["type"], event["listener_id"]))
        return found

    def labelled(self, label: str) -> str:
        """The element with this label or text."""
        for key, element in self.elements.items():
            props = element.get("props") or {}
            if label in (props.get("label"), props.get("aria-label"), element.get("text")):
                return key
        raise LookupError(label)

    async def press(self, label: str) -> None:
        """Press a button."""
        key = self.labelled(label)
        listener = next(each for each in self.listeners() if each[0] == key and each[2] == "click")
        await self.send(key, listener[3], {})

    async def quiet(self, seconds: float = 0.5, most: float = 30.0) -> None:
        """Wait until nothing but timers has been heard for a while."""
        end = time.monotonic() + most
        count = -1
        while count != len(self.said) and time.monotonic() < end:
            count = len(self.said)
            await asyncio.sleep(seconds)


@asynccontextmanager
async def opened(server: Server, client: httpx.Client, address: str = "/") -> Any:
    """Open a page and its socket."""
    text = client.get(address).text
    described = re.search(r"parseElements\(String\.raw`(.*?)`\)", text, re.DOTALL)
    query = re.search(r"query: (\{.*?\}),\n", text)
    assert described and query
    options = json.loads(unescape(query[1]).replace("'", '"').replace("True", "true").replace("False", "false"))
    elements = json.loads(unescape(described[1]).replace("&#36;", "$"))
    page = OpenPage(elements, options["client_id"])
    host = str(client.base_url).rstrip("/")
    headers = {"Cookie": "; ".join(f"{name}={value}" for name, value in client.cookies.items()), "Origin": host}
    query_text = "&".join(f"{name}={value}" for name, value in options.items())
    await page.socket.connect(
        f"{host}?{query_text}", headers=headers, transports=["websocket"], socketio_path=SOCKET_PATH
    )
    hello = {**options, "document_id": "d", "tab_id": "t", "old_tab_id": None}
    assert await page.socket.call("handshake", hello) is True
    yield page
    await page.socket.disconnect()
