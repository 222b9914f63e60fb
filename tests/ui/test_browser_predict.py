"""Predict in a browser, with small trained runs of all systems: each is asked by its form, and answers."""

import io
import re
import shutil
import wave
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from tests.harness import REPOSITORY
from tests.ui.browser import NARROW, barriers, enter, keep, too_wide
from tests.ui.serving import Server, started
from zoo.audio.io import files

pytest.importorskip("nicegui", reason="needs the extra `ui`")

pytestmark = pytest.mark.browser

RECORDINGS = ("hifigan/smoke", "audiosr/smoke", "miipher/smoke_finetune")
SYSTEMS = (*RECORDINGS, "flow/smoke", "ci_llm/smoke", "compressed_ad/smoke")
TIME = "20240101-000000"
MARKUP = "<img src=x onerror=alert(1)> {{ 7 * 7 }}"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    for recipe in SYSTEMS:
        shutil.copytree(REPOSITORY / "tests" / "data" / "runs" / recipe, folder / "runs" / recipe / TIME)
    empty = folder / "runs" / "flow" / "points" / TIME
    empty.mkdir(parents=True)
    (empty / "config.yaml").write_text("trainer: {max_steps: 1}\n")
    (folder / "data" / "speech").mkdir(parents=True)
    tone(folder / "data" / "speech" / "one.wav")
    yield from started(folder, "--max_upload_mib", "1", "--data", str(folder / "data"))


def tone(path: Path, seconds: float = 0.5) -> Path:
    files.write(path, 0.3 * np.sin(np.arange(int(22050 * seconds), dtype=np.float32) / 10), 22050)
    return path


@pytest.fixture
def problems() -> Iterator[list[str]]:
    """What goes wrong in a page, but for what the server refuses."""
    found: list[str] = []
    yield found
    assert [line for line in found if "413" not in line and "404" not in line] == []


@pytest.fixture
def page(browser: Any, server: Server, problems: list[str]) -> Iterator[Any]:
    page = enter(browser, server, problems)
    page.get_by_role("tab", name="Predict").click()
    yield page
    page.context.close()


def choose(page: Any, run: str) -> None:
    page.get_by_label("Run", exact=True).click()
    page.get_by_role("option", name=run).click()


def load(page: Any, recipe: str, button: str = "Predict") -> Any:
    """Open a run; the button that sends its form."""
    choose(page, f"{recipe}/{TIME}")
    page.get_by_role("button", name="Open", exact=True).click()
    send = page.get_by_role("button", name=button, exact=True)
    send.wait_for()
    return send


def give(page: Any, *paths: Path) -> None:
    page.locator("input[type=file]").set_input_files(paths)
    page.locator(".zoo-drop [role=status]", has_text="uploaded").wait_for()


def newest(page: Any) -> Any:
    return page.locator(".zoo-card").first


def link(page: Any, name: str) -> str:
    return str(newest(page).get_by_role("link", name=f"Download {name}").get_attribute("href"))


def fine(page: Any, name: str) -> None:
    """Nothing serious for axe-core, also on a phone, and nothing to scroll sideways there."""
    size = page.viewport_size
    keep(page, f"predict_{name}")
    assert barriers(page) == []
    page.set_viewport_size(NARROW)
    page.wait_for_timeout(300)
    keep(page, f"predict_{name}_phone")
    assert too_wide(page) == 0
    page.set_viewport_size(size)


def test_recordings(page: Any, server: Server, tmp_path: Path) -> None:
    """By mouse and keys: an error, an answer that is heard, several files at once, and none for other sessions."""
    send = load(page, "hifigan/smoke")
    send.click()
    page.get_by_role("alert").get_by_text("Field required").wait_for()
    words = tmp_path / "words.txt"
    words.write_text("no sound")
    give(page, words)
    send.click()
    page.get_by_role("alert").get_by_text("expected a file that ends in").wait_for()
    page.get_by_role("button", name="Remove words.txt").click()
    large = tmp_path / "large.wav"
    large.write_bytes(bytes(2 * 2**20))
    page.locator("input[type=file]").set_input_files(large)
    page.get_by_text("Not uploaded:").wait_for()

    give(page, tone(tmp_path / "tone.wav"))
    send.focus()
    page.keyboard.press("Enter")
    player = newest(page).locator(".zoo-compare")
    player.wait_for()
    position = player.get_by_role("slider")
    page.wait_for_function("() => document.querySelector('.zoo-compare input').max > 0.4")
    player.get_by_role("button", name=re.compile("Play")).focus()
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    assert position.evaluate("each => each === document.activeElement")
    position.fill("0.25")
    page.keyboard.press("b")
    assert player.get_by_role("button", pressed=True).inner_text().startswith("B")
    assert position.input_value() == "0.25"  # changing between them keeps the position
    page.keyboard.press("Space")
    player.get_by_role("button", name=re.compile("Pause")).wait_for()
    assert player.locator("audio").evaluate_all("all => all.map(each => each.paused)") == [True, False]
    page.keyboard.press("a")
    assert player.locator("audio").evaluate_all("all => all.map(each => each.paused)") == [False, True]
    assert newest(page).get_by_role("img").count() == 1  # spectrograms

    result = link(page, "result.wav").lstrip("/")
    home = server.address.partition("?")[0]
    heard = page.request.get(home + result)
    with wave.open(io.BytesIO(heard.body())) as sound:
        assert sound.getnframes() > 5000
    stranger = server.enter()
    assert stranger.get(result).status_code == 404
    assert stranger.get(result.rpartition("/")[0] + "/input.wav").status_code == 404
    fine(page, "recordings")

    give(page, tone(tmp_path / "two.wav"))
    send.click()
    newest(page).get_by_text("results.zip").wait_for()
    with zipfile.ZipFile(io.BytesIO(page.request.get(home.rstrip("/") + link(page, "results.zip")).body())) as archive:
        assert {"01_tone/result.wav", "02_two/result.wav"} <= set(archive.namelist())
    page.reload()
    page.get_by_role("tab", name="Predict").click()
    newest(page).get_by_text("2 files").wait_for()  # answers are there when the page is loaded anew
    assert page.locator(".zoo-card").count() == 2


def test_a_recording_from_the_microphone(page: Any) -> None:
    send = load(page, "hifigan/smoke")
    page.get_by_role("button", name="Recording: record").focus()
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Recording: stop recording").wait_for()
    page.wait_for_timeout(1200)
    page.keyboard.press("Enter")
    page.locator(".zoo-drop [role=status]", has_text="uploaded").wait_for()
    send.click()
    newest(page).locator(".zoo-compare").wait_for()


def test_a_folder_of_the_server(page: Any, server: Server) -> None:
    load(page, "hifigan/smoke")
    page.get_by_text("A whole folder on the server").click()
    page.get_by_label("Folder", exact=True).click()
    page.get_by_role("option", name="data: speech").click()
    page.get_by_role("button", name="Predict the folder").click()
    newest(page).get_by_text("1 of 1 files are done").wait_for()
    (result,) = (server.folder / "runs" / "hifigan" / "smoke" / TIME / "predictions").glob("*/one.wav")
    assert len(files.read(result)[0].reshape(-1)) > 5000


@pytest.mark.parametrize("recipe", RECORDINGS[1:])
def test_other_systems_of_recordings(page: Any, tmp_path: Path, recipe: str) -> None:
    send = load(page, recipe)
    give(page, tone(tmp_path / "tone.wav"))
    send.click()
    newest(page).locator(".zoo-compare").first.wait_for()


def test_pictures(page: Any) -> None:
    send = load(page, "flow/smoke")
    page.get_by_role("spinbutton", name="Images").fill("100000")
    send.click()
    page.get_by_role("alert").get_by_text("less than or equal to 64").wait_for()
    page.get_by_role("spinbutton", name="Images").fill("6")
    page.get_by_label("Classes").click()
    page.get_by_role("option", name="7").click()
    page.keyboard.press("Escape")
    send.focus()
    page.keyboard.press("Enter")
    samples = newest(page).get_by_role("img", name="Samples", exact=True)
    samples.wait_for()
    assert samples.evaluate("each => each.decode().then(() => each.naturalWidth)") > 8
    newest(page).get_by_role("button", name="Hide").click()
    newest(page).get_by_role("img", name="From noise").wait_for(state="hidden")
    fine(page, "pictures")


def test_a_conversation(page: Any) -> None:
    load(page, "ci_llm/smoke", "Send")
    page.keyboard.press("Tab")
    question = page.get_by_label("Question")
    question.focus()
    page.keyboard.press("Enter")
    page.get_by_role("alert").get_by_text("Field required").wait_for()
    for number, said in enumerate(("What is 2 + 2?", MARKUP), 1):
        question.fill(said)
        page.keyboard.press("Enter")
        turn = page.locator(".zoo-turn").nth(number - 1)
        turn.get_by_text("Likelihood of each answer").wait_for()
        assert turn.locator(".zoo-chat").first.inner_text().split("\n")[1] == said
        assert question.input_value() == ""
    assert page.locator(".zoo-turn img").count() == 0
    assert page.locator(".zoo-turn").first.get_by_text("Crowd", exact=True).count() > 0
    fine(page, "conversation")


def test_rooms(page: Any, server: Server) -> None:
    send = load(page, "compressed_ad/smoke")
    page.get_by_role("spinbutton", name="Episodes").fill("2")
    send.click()
    newest(page).get_by_role("img", name=re.compile("Return")).wait_for()
    fine(page, "rooms")
    workers = psutil.Process(server.process.pid).children(recursive=True)
    for worker in workers:
        worker.suspend()  # it would be done before anybody finds the button
    send.click()
    send.click()
    page.get_by_text("number 1 in the line").first.wait_for()
    for card in (page.locator(".zoo-card").nth(0), page.locator(".zoo-card").nth(1)):
        if not card.get_by_role("button", name="Cancel").is_visible():
            card.get_by_role("button").first.click()
        card.get_by_role("button", name="Cancel").click()
        card.get_by_text("cancelled", exact=True).wait_for()
    for worker in workers:
        if worker.is_running():
            worker.resume()


def test_what_cannot_be_asked_says_what_to_do(page: Any, server: Server) -> None:
    choose(page, f"flow/points/{TIME}")
    page.get_by_text("train first").wait_for()
    assert page.get_by_role("button", name="Open", exact=True).is_disabled()
    load(page, "flow/smoke")
    shutil.move(server.folder / "runs" / "flow" / "smoke" / TIME, server.folder / "gone")
    page.get_by_text("This run is there no more").wait_for()
    assert page.get_by_role("button", name="Predict", exact=True).count() == 0
