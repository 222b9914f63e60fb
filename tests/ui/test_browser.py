"""The page as a whole in a browser: every tab without any run, ten tabs at once, a stranger."""

import time
from typing import Any

import pytest

pytest.importorskip("nicegui", reason="needs the extra `ui`")

from tests.ui.browser import check_layout, open_page
from tests.ui.serving import Server

pytestmark = pytest.mark.browser
TABS = ("Train", "Watch", "Runs", "Predict")


def test_an_empty_page_states_what_to_do(server: Server, browser: Any) -> None:
    problems: list[str] = []
    began = time.monotonic()
    page = open_page(browser, server, problems)
    print(f"first content after {time.monotonic() - began:.2f} s")
    assert page.evaluate("document.documentElement.lang") == "en-US"
    page.get_by_role("tab", name=TABS[0]).focus()
    for number, tab in enumerate(TABS):  # by the keyboard
        if number:
            page.keyboard.press("ArrowRight")
            page.keyboard.press("Enter")
        page.locator(".q-tab-panel").get_by_role("heading", name=tab, exact=True).wait_for()
        check_layout(page, f"empty_{tab.lower()}")
        page.get_by_role("tab", name=tab).focus()
    assert problems == []


def test_ten_tabs_live_side_by_side(server: Server, browser: Any) -> None:
    """A browser opens six connections to a host; pages that hold one each would block the seventh."""
    problems: list[str] = []
    first = open_page(browser, server, problems)
    pages = [first, *(first.context.new_page() for _ in range(9))]
    for page in pages[1:]:
        page.set_default_timeout(60_000)
        page.goto(server.home)
    for page in pages:
        page.get_by_role("tab", name="Runs").click()
        page.locator(".q-tab-panel").get_by_role("heading", name="Runs", exact=True).wait_for()
    assert problems == []


def test_a_visitor_sees_nothing(server: Server, browser: Any) -> None:
    page = browser.new_context().new_page()
    page.goto(server.home)
    assert "zoo ui" in page.inner_text("body") and page.get_by_role("tab").count() == 0
    page.context.close()
