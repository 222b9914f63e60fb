"""The page as a whole in a browser: who gets in, ten tabs at once, every tab for everyone."""

import socket
import time
from typing import Any

import pytest

pytest.importorskip("nicegui", reason="needs the extra `ui`")

from tests.ui.browser import NARROW, WIDE, barriers, enter, keep, too_wide
from tests.ui.serving import Server

pytestmark = pytest.mark.browser
TABS = ("Train", "Watch", "Runs", "Predict")


def test_an_empty_page_is_for_everyone(server: Server, browser: Any) -> None:
    """Without any run: every tab says what to do, at both widths, by mouse and by keyboard."""
    problems: list[str] = []
    found = {}
    for size in (WIDE, NARROW):
        begun = time.monotonic()
        page = enter(browser, server, problems, size)
        print(f"first content after {time.monotonic() - begun:.2f} s")
        assert page.evaluate("document.documentElement.lang") == "en-US"
        page.get_by_role("tab", name=TABS[0]).focus()
        for number, tab in enumerate(TABS):
            if number:
                page.keyboard.press("ArrowRight")
                page.keyboard.press("Enter")
            page.locator(".q-tab-panel").get_by_role("heading", name=tab, exact=True).wait_for()
            page.wait_for_timeout(500)
            keep(page, f"empty_{tab.lower()}_{size['width']}")
            found[tab, size["width"]] = (barriers(page), too_wide(page))
    assert found == dict.fromkeys(found, ([], 0))
    assert problems == []


def test_ten_tabs_live_side_by_side(server: Server, browser: Any) -> None:
    """A browser opens six connections to a host; pages that hold one each would block the seventh."""
    problems: list[str] = []
    first = enter(browser, server, problems)
    pages = [first, *(first.context.new_page() for _ in range(9))]
    for page in pages[1:]:
        page.set_default_timeout(30_000)
        page.goto(server.address.partition("?")[0])
    for page in pages:
        page.get_by_role("tab", name="Runs").click()
        page.locator(".q-tab-panel").get_by_role("heading", name="Runs", exact=True).wait_for()
    assert problems == []


def test_a_stranger_sees_nothing(server: Server, browser: Any) -> None:
    """Without the token there is a word on it and nothing else, and other addresses of this machine do not answer."""
    address = server.address.partition("?")[0]
    context = browser.new_context()
    page = context.new_page()
    page.goto(address)
    assert "zoo ui" in page.inner_text("body") and page.get_by_role("tab").count() == 0
    for path in ("", "_nicegui/3.18.0/static/nicegui.js", "_zoo/media/a/b/c/d/e.wav", "_nicegui_ws/socket.io/"):
        assert context.request.get(address + path).status == 401
    context.close()
    port = int(address.rstrip("/").rpartition(":")[2])
    for host in {"127.0.0.2", *socket.gethostbyname_ex(socket.gethostname())[2]} - {"127.0.0.1"}:
        with pytest.raises(OSError):
            socket.create_connection((host, port), timeout=2).close()
