"""The page as a whole in a browser: every tab without any run."""

from typing import Any

import pytest

pytest.importorskip("nicegui", reason="needs the extra `ui`")

from tests.ui.browser import check_layout, open_page
from tests.ui.serving import Server

pytestmark = pytest.mark.browser
TABS = ("Train", "Watch", "Runs", "Predict")


def test_an_empty_page_states_what_to_do(server: Server, browser: Any) -> None:
    problems: list[str] = []
    page = open_page(browser, server, problems)
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
