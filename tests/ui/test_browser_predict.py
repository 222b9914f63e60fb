"""The tab Predict in a browser: a run is opened, its form filled in, and recordings come back."""

import io
import re
import shutil
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("nicegui", reason="needs the extra `ui`")

from tests.harness import RUNS
from tests.ui.browser import check_layout, open_page
from tests.ui.serving import Server, start_server
from zoo.audio.io import files

pytestmark = pytest.mark.browser
RUN = "hifigan/smoke/20240101-000000"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    shutil.copytree(RUNS / "hifigan/smoke", folder / "runs" / RUN)
    yield from start_server(folder, "--max_upload_mib", "1")


@pytest.fixture
def page(server: Server, browser: Any) -> Iterator[Any]:
    problems: list[str] = []
    page = open_page(browser, server, problems, "?tab=predict")
    yield page
    page.context.close()
    assert [each for each in problems if "413" not in each] == []


def load(page: Any) -> Any:
    """Open the run; returns the button that sends its form."""
    page.get_by_label("Run", exact=True).click()
    page.get_by_role("option", name=RUN).click()
    page.get_by_role("button", name="Open", exact=True).click()
    page.get_by_text(f"{RUN} is ready.").wait_for()
    return page.get_by_role("button", name="Predict", exact=True)


def give(page: Any, *paths: Path) -> None:
    page.locator("input[type=file]").set_input_files(paths)
    page.locator(".zoo-drop [role=status]", has_text="uploaded").wait_for()


def tone(path: Path, seconds: float = 0.5) -> Path:
    files.write(path, 0.1 * np.sin(np.arange(int(16000 * seconds), dtype=np.float32) / 10), 16000)
    return path


def newest(page: Any) -> Any:
    return page.locator(".zoo-card").first


def test_recordings_are_compared_by_ear(page: Any, server: Server, tmp_path: Path) -> None:
    send = load(page)
    send.click()
    page.get_by_role("alert").get_by_text("Field required").wait_for()
    words = tmp_path / "words.txt"
    words.write_text("no audio")
    give(page, words)
    send.click()
    page.get_by_role("alert").get_by_text("expected a file that ends in").wait_for()
    page.get_by_role("button", name="Remove words.txt").click()
    large = tmp_path / "large.wav"
    large.write_bytes(bytes(2 * 2**20))
    page.locator("input[type=file]").set_input_files(large)
    page.get_by_text("Not uploaded:").wait_for()

    give(page, tone(tmp_path / "音声.wav"))
    send.focus()
    page.keyboard.press("Enter")
    player = newest(page).locator(".zoo-compare")
    player.wait_for()
    page.wait_for_function("() => document.querySelector('.zoo-compare input').max > 0.4")
    position = player.get_by_role("slider")
    position.fill("0.25")
    page.keyboard.press("b")
    assert player.get_by_role("button", pressed=True).inner_text().startswith("B")
    assert position.input_value() == "0.25"  # changing between them keeps the position
    page.keyboard.press("Space")
    player.get_by_role("button", name=re.compile("Pause")).wait_for()
    assert player.locator("audio").evaluate_all("all => all.map(each => each.paused)") == [True, False]
    assert newest(page).get_by_role("img").count() == 1  # spectrograms
    assert newest(page).get_by_text("音声.wav").count() > 0
    address = newest(page).get_by_role("link", name="Download result.wav").get_attribute("href")
    with wave.open(io.BytesIO(page.request.get(server.home + address).body())) as sound:
        assert sound.getnframes() > 5000
    check_layout(page, "predict")

    give(page, tone(tmp_path / "two.wav"))
    send.click()
    page.locator(".zoo-card").nth(2).wait_for()  # a job for each file
    newest(page).get_by_text("done in").wait_for()
    page.reload()
    page.get_by_role("tab", name="Predict").click()
    newest(page).locator(".zoo-compare").wait_for()  # results are there when the page is loaded again


@pytest.mark.slow
def test_the_microphone_records(page: Any) -> None:
    send = load(page)
    page.get_by_role("button", name="Recording: record").click()
    page.get_by_role("button", name="Recording: stop recording").wait_for()
    page.wait_for_timeout(1200)
    page.get_by_role("button", name="Recording: stop recording").click()
    page.locator(".zoo-drop [role=status]", has_text="uploaded").wait_for()
    send.click()
    newest(page).locator(".zoo-compare").wait_for()
