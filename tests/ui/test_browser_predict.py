"""The tab Predict in a browser: small trained runs of each kind of result are opened, filled in and answer."""

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
from tests.ui.browser import check_layout, open_page, pick
from tests.ui.serving import Server, start_server
from zoo.audio.io import files
from zoo.ui.tabs.widgets import NEWEST

pytestmark = pytest.mark.browser
KINDS = ("hifigan/smoke", "flow/smoke", "ci_llm/smoke", "compressed_ad/smoke")
TIME = "20240101-000000"
MARKUP = "<img src=x onerror=alert(1)> {{ 7 * 7 }}"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    for recipe in KINDS:
        shutil.copytree(RUNS / recipe, folder / "runs" / recipe / TIME)
    (folder / "runs/flow/points" / TIME).mkdir(parents=True)
    (folder / "runs/flow/points" / TIME / "config.yaml").write_text("trainer: {max_steps: 1}\n")
    yield from start_server(folder, "--max_upload_mib", "1")


@pytest.fixture
def page(server: Server, browser: Any) -> Iterator[Any]:
    problems: list[str] = []
    page = open_page(browser, server, problems, "?tab=predict")
    yield page
    page.context.close()
    assert [each for each in problems if "413" not in each] == []


def load(page: Any, recipe: str) -> Any:
    """Open a run; returns the button that sends its form."""
    page.get_by_label("Run", exact=True).click()
    page.get_by_role("option", name=f"{recipe}/{TIME}").click()
    page.get_by_role("button", name="Open", exact=True).click()
    page.get_by_text(f"{recipe}/{TIME} is ready.").wait_for()
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
    send = load(page, "hifigan/smoke")
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
    send = load(page, "hifigan/smoke")
    page.get_by_role("button", name="Recording: record").click()
    page.get_by_role("button", name="Recording: stop recording").wait_for()
    page.wait_for_timeout(1200)
    page.get_by_role("button", name="Recording: stop recording").click()
    page.locator(".zoo-drop [role=status]", has_text="uploaded").wait_for()
    send.click()
    newest(page).locator(".zoo-compare").wait_for()


@pytest.mark.slow
def test_pictures_are_sampled(page: Any) -> None:
    send = load(page, "flow/smoke")
    page.get_by_role("spinbutton", name="Images").fill("100000")
    send.click()
    page.get_by_role("alert").get_by_text("less than or equal to 64").wait_for()
    page.get_by_role("spinbutton", name="Images").fill("6")
    page.get_by_label("Classes").click()
    page.get_by_role("option", name="7").click()
    page.keyboard.press("Escape")
    send.click()
    samples = newest(page).get_by_role("img", name="Samples", exact=True)
    samples.wait_for()
    assert samples.evaluate("each => each.decode().then(() => each.naturalWidth)") > 8
    newest(page).get_by_role("img", name="From noise").wait_for()
    check_layout(page, "predict_pictures")


def test_a_question_is_answered(page: Any) -> None:
    send = load(page, "ci_llm/smoke")
    send.click()
    page.get_by_role("alert").get_by_text("Field required").wait_for()
    page.get_by_label("Question").fill(MARKUP)
    send.click()
    newest(page).get_by_text("Likelihood of each answer").wait_for()
    assert page.locator("img[src=x]").count() == 0
    check_layout(page, "predict_question")


@pytest.mark.slow
def test_a_run_without_a_checkpoint_or_without_a_folder_states_so(page: Any, server: Server) -> None:
    page.get_by_label("Run", exact=True).click()
    page.get_by_role("option", name=f"flow/points/{TIME}").click()
    page.get_by_text("train first").wait_for()
    assert page.get_by_role("button", name="Open", exact=True).is_disabled()
    checkpoint = server.folder / "runs/flow/smoke" / TIME / "step_00000003.ckpt"
    shutil.copy(checkpoint, server.folder / "runs/flow/points" / TIME)
    page.get_by_text("train first").wait_for(state="hidden")
    pick(page, "Checkpoint", checkpoint.name)
    load(page, "flow/smoke")
    assert page.get_by_label("Checkpoint", exact=True).input_value() == NEWEST
    pick(page, "Device", "cpu")
    page.get_by_text("is ready.").wait_for(state="hidden")
    load(page, "flow/smoke")
    shutil.move(server.folder / "runs/flow/smoke" / TIME, server.folder / "gone")
    page.get_by_text("Choose a run.").wait_for()
    assert page.get_by_role("button", name="Predict", exact=True).count() == 0
