"""The page in Debian's chromium: fixtures and questions that the browser tests share."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.ui.serving import Server, started

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PATIENCE = 120_000  # ms; a training process needs seconds to start, more on a busy machine
WIDE, NARROW = {"width": 1280, "height": 800}, {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    if CHROMIUM is None:
        if os.environ.get("CI"):
            pytest.fail("CI must not skip the browser tests: apt-get install chromium")
        pytest.skip("no chromium")
    with sync_api.sync_playwright() as playwright:
        options = [
            "--no-sandbox",
            "--disable-gpu",
            "--use-fake-ui-for-media-stream",
            "--use-fake-device-for-media-stream",
        ]
        made = playwright.chromium.launch(executable_path=CHROMIUM, args=options)
        yield made
        made.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A server in a folder of its own; trainings that a failed test left behind are killed."""
    yield from started(tmp_path)
    kill_trainings(tmp_path)


def kill_trainings(folder: Path) -> None:
    """End what the pages of a folder have started."""
    from zoo.ui.jobs.records import read_record

    for record in map(read_record, (folder / "runs").glob("*/*/*")):
        if record and record.process():
            os.kill(record.pid, signal.SIGKILL)


def enter(browser: Any, server: Server, problems: list[str], size: dict[str, int] | None = None, path: str = "") -> Any:
    """Open a page of a new session, and write down what goes wrong in it."""
    page = browser.new_context(viewport=size or WIDE).new_page()
    page.set_default_timeout(PATIENCE)
    home = server.address.partition("?")[0]
    page.on("request", lambda request: problems.append(request.url) if not request.url.startswith(home) else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(server.address)
    page.on("console", lambda said: problems.append(said.text) if said.type == "error" else None)
    if path:
        page.goto(home + path)
    page.get_by_role("tab", name="Train").wait_for()
    return page


def barriers(page: Any) -> list[str]:
    """What axe-core finds in a page as it is shown, of the serious kinds."""
    from axe_playwright_python.sync_playwright import Axe

    page.add_style_tag(content="* { transition: none !important; animation: none !important; }")  # nothing half faded
    found = []
    for violation in Axe().run(page).response["violations"]:
        if violation["impact"] in ("serious", "critical"):
            found += [f"{violation['id']}: {node['html'][:200]}" for node in violation["nodes"]]
    return found


def too_wide(page: Any) -> int:
    """Pixels that a page can be scrolled sideways."""
    return int(page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))


def keep(page: Any, name: str) -> None:
    """Keep a picture when somebody asks for it ($ZOO_SCREENSHOTS), to look at the page."""
    folder = os.environ.get("ZOO_SCREENSHOTS")
    if folder:
        page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)


@contextmanager
def busy(processes: int = 2) -> Iterator[None]:
    """Keep cores busy."""
    context = multiprocessing.get_context("spawn")
    spinning = [context.Process(target=_spin, args=(os.getpid(),), daemon=True) for _ in range(processes)]
    for process in spinning:
        process.start()
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.join()


def _spin(parent: int) -> None:
    while os.getppid() == parent:  # a killed test run leaves nothing behind
        pass
