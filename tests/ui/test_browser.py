"""The page in a browser: a training is begun, watched, stopped, resumed; a file is vocoded; strangers see nothing."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.harness import environment
from zoo.audio.io import files

pytest.importorskip("gradio", reason="needs the extra `ui`")
sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright")

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PASSWORD = "correct horse"
PATIENCE = 120_000  # ms; a training process needs seconds to start, more on a busy machine

pytestmark = pytest.mark.browser


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`zoo ui` in a process of its own; trainings that a failed test left behind are killed."""
    command = [sys.executable, "-m", "zoo", "ui", "--port", "0", "--password_env", "ZOO_TEST_PASSWORD"]
    extra = {"ZOO_TEST_PASSWORD": PASSWORD, "TMPDIR": str(tmp_path)}
    process = subprocess.Popen(command, cwd=tmp_path, env=environment(**extra), stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    address = re.search(r"http://127\.0\.0\.1:\d+/", process.stdout.readline())
    assert address
    yield process, address.group()
    process.terminate()
    assert process.wait(90) == 143
    from zoo.ui.jobs.records import read_record

    for record in map(read_record, (tmp_path / "runs").glob("*/*/*")):
        if record and record.process():
            os.kill(record.pid, signal.SIGKILL)


@pytest.fixture
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        if os.environ.get("CI"):
            pytest.fail("CI must not skip the browser test: apt-get install chromium")
        pytest.skip("no chromium")
    with sync_api.sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield made
        made.close()


def enter(browser: Any, address: str, problems: list[str]) -> Any:
    """Open the page, log in, and write down every request that leaves the machine and every script's error."""
    page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
    page.set_default_timeout(PATIENCE)
    page.on("request", lambda request: problems.append(request.url) if not request.url.startswith(address) else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(address)
    page.get_by_placeholder("Password").fill(PASSWORD)
    page.get_by_role("button", name="Enter").click()
    page.get_by_role("tab", name="Train").wait_for()
    page.on("console", lambda said: problems.append(said.text) if said.type == "error" else None)
    return page


def last_step(page: Any) -> int:
    chart = page.locator("#losses svg")
    chart.wait_for()
    return int(chart.get_attribute("data-last-step"))


def wait_for_step(page: Any, step: int) -> None:
    end = time.monotonic() + PATIENCE / 1000
    while last_step(page) < step:
        assert time.monotonic() < end
        page.wait_for_timeout(200)


def state(page: Any, word: str) -> None:
    page.locator(f"#status [data-state={word}]").wait_for()


def shown(page: Any, folder: Path, name: str) -> None:
    """Keep a picture when somebody asks for it, to look at the page."""
    if os.environ.get("ZOO_SCREENSHOTS"):
        page.screenshot(path=Path(os.environ["ZOO_SCREENSHOTS"]) / f"{name}.png", full_page=True)


def test_the_page(server: tuple[subprocess.Popen[str], str], browser: Any, tmp_path: Path) -> None:
    process, address = server
    problems: list[str] = []
    page = enter(browser, address, problems)

    page.locator("#system input").click()
    page.get_by_role("option", name="hifigan").click()
    page.get_by_text("HiFi-GAN, tiny nets").wait_for()
    page.get_by_label("Steps").fill("100000")
    page.get_by_label("Batch size").fill("1")
    page.get_by_role("button", name="Intervals").click()
    page.get_by_label("Log interval").fill("1")
    page.get_by_label("Validation interval").fill("13")
    page.get_by_label("Any other key").fill("data.init_args.val_items=1")
    shown(page, tmp_path, "train")
    page.get_by_role("button", name="Start training").click()
    page.locator("#answer .good").wait_for(state="attached")  # the complete config has been read and checked
    state(page, "running")
    wait_for_step(page, 1)

    page.close()  # closing the page stops nothing; who comes again is shown what runs
    page = enter(browser, address, problems)
    state(page, "running")
    wait_for_step(page, last_step(page) + 1)
    page.locator("#media audio").first.wait_for()
    shown(page, tmp_path, "watch")
    page.get_by_role("button", name="Stop").click()
    state(page, "stopped")
    stopped_at = last_step(page)

    page.get_by_role("button", name="Resume").click()
    state(page, "running")
    stranger_sees_nothing(browser, address)
    upload = tmp_path / "tone.wav"
    files.write(upload, 0.3 * np.sin(np.arange(11025, dtype=np.float32) / 10), 22050)
    wait_for_step(page, stopped_at + 1)
    page.get_by_role("button", name="Stop").click()
    state(page, "stopped")

    page.get_by_role("tab", name="Inspect").click()
    page.get_by_role("button", name="Inspect").click()
    page.get_by_role("tab", name="Predict").click()
    page.locator("#upload input[type=file]").set_input_files(upload)
    page.get_by_text("tone.wav").wait_for()
    page.get_by_label("Other keys of the run's config").fill("model.init_args.media_items=2")
    page.get_by_role("button", name="Run", exact=True).click()
    player = page.locator("#result audio")
    player.wait_for()
    heard = page.request.get(address.rstrip("/") + player.get_attribute("src"))
    (tmp_path / "heard.wav").write_bytes(heard.body())
    assert len(files.read(tmp_path / "heard.wav")[0].reshape(-1)) > 10000
    shown(page, tmp_path, "predict")
    page.get_by_role("tab", name="Inspect").click()
    assert "zoo.hifigan.HiFiGANTask" in page.locator("#report pre").inner_text()
    shown(page, tmp_path, "inspect")
    assert problems == []
    assert process.poll() is None


def stranger_sees_nothing(browser: Any, address: str) -> None:
    """Without the password there is a form and nothing else, and other addresses of this machine do not answer."""
    context = browser.new_context()
    page = context.new_page()
    page.goto(address)
    assert page.get_by_placeholder("Password").is_visible()
    assert page.get_by_role("tab").count() == 0
    for path in ("config", "theme.css", "gradio_api/info", "_zoo/media/a/b/c/d/e.wav"):
        assert context.request.get(address + path).status == 401
    context.close()
    port = int(address.rstrip("/").rpartition(":")[2])
    for host in {"127.0.0.2", *socket.gethostbyname_ex(socket.gethostname())[2]} - {"127.0.0.1"}:
        with pytest.raises(OSError):
            socket.create_connection((host, port), timeout=2).close()
