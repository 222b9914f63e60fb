"""The page in Debian's chromium: fixtures and questions that the browser tests share."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.ui.serving import Server, start_server

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PATIENCE = 120_000  # ms; a training process needs seconds to start, more on a busy machine
WIDE, NARROW = {"width": 1280, "height": 800}, {"width": 390, "height": 844}
KEY_FOLDERS = ("checkpoints", "data", "model", "trainer")  # folders named like keys of a config


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    if CHROMIUM is None:
        if os.environ.get("CI"):
            pytest.fail("CI must not skip the browser tests: apt-get install chromium")
        pytest.skip("no chromium")
    with sync_api.sync_playwright() as playwright:
        options = ["--no-sandbox", "--disable-gpu", "--use-fake-ui-for-media-stream"]
        options += ["--use-fake-device-for-media-stream"]
        made = playwright.chromium.launch(executable_path=CHROMIUM, args=options)
        yield made
        made.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A server in a working folder with folders named like keys; trainings that a test left behind are killed."""
    for name in KEY_FOLDERS:
        (tmp_path / name).mkdir()
    yield from start_server(tmp_path, ZOO_DATA=str(tmp_path / "data"))
    kill_trainings(tmp_path)


def kill_trainings(folder: Path) -> None:
    """Kill what the pages of a folder have started."""
    from zoo.ui.processes.command import kill_tree
    from zoo.ui.processes.training_queue import read_record

    for record in map(read_record, (folder / "runs").glob("*/*/*")):
        if record and record.is_running():
            kill_tree(record.pid)


def open_page(browser: Any, server: Server, problems: list[str], path: str = "") -> Any:
    """Open a page and collect what goes wrong in it."""
    page = browser.new_context(viewport=WIDE).new_page()
    page.set_default_timeout(PATIENCE)
    page.on("request", lambda each: problems.append(each.url) if not each.url.startswith(server.home) else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(server.address)
    page.on("console", lambda each: problems.append(each.text) if each.type == "error" else None)
    if path:
        page.goto(f"{server.home}/{path}")
    page.get_by_role("tab", name="Train").wait_for()
    return page


def pick(page: Any, label: str, option: str) -> None:
    """Choose an option of a list."""
    page.get_by_role("combobox", name=label, exact=True).click()
    page.get_by_role("option", name=re.compile(rf"^{re.escape(option)}( |$)")).first.click()


def _resize(page: Any, size: Any) -> None:
    """Resize the window and wait until the page has its layout for it: its former elements are gone then."""
    page.set_viewport_size(size)
    page.wait_for_function("width => Quasar.Screen.width === width", arg=size["width"])
    page.wait_for_timeout(600)


def check_layout(page: Any, name: str) -> None:
    """Look at a page at both widths: axe-core finds nothing serious, nothing has to be scrolled sideways.

    With $ZOO_SCREENSHOTS pictures are written to that folder.
    """
    from axe_playwright_python.sync_playwright import Axe

    page.add_style_tag(content="* { transition: none !important; animation: none !important; }")  # nothing half faded
    for size in (NARROW, WIDE):
        _resize(page, size)
        if folder := os.environ.get("ZOO_SCREENSHOTS"):
            page.screenshot(path=Path(folder) / f"{name}_{size['width']}.png", full_page=True)
        violations = [
            each for each in Axe().run(page).response["violations"] if each["impact"] in ("serious", "critical")
        ]
        nodes = [f"{each['id']}: {node['html'][:200]}" for each in violations for node in each["nodes"]]
        assert nodes == [], (name, size, nodes)
        assert page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") == 0
