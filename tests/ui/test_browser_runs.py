"""Runs in a browser: two people see each other's queue; everything by the keyboard; a phone."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nicegui", reason="needs the extra `ui`")

from tests.harness import REPOSITORY, environment
from tests.ui.browser import NARROW, barriers, enter, keep, too_wide
from tests.ui.serving import Server

pytestmark = pytest.mark.browser
FIRST, SECOND = "20260101-000001", "20260101-000002"
HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of the flow smoke recipe."""
    folder = tmp_path_factory.mktemp("trained") / FIRST
    recipe = REPOSITORY / "configs/flow/smoke.yaml"
    command = [sys.executable, "-m", "zoo", "fit", "--config", str(recipe), f"--trainer.default_root_dir={folder}"]
    subprocess.run(command, env=environment(), check=True, capture_output=True, timeout=400)
    return folder


def fill(made: Server, trained: Path) -> Path:
    """Three runs, one of them queued by a server that has ended."""
    runs = made.folder / "runs/flow/smoke"
    shutil.copytree(trained, runs / FIRST)
    shutil.copytree(trained, runs / SECOND)
    config = (runs / SECOND / "config.yaml").read_text().replace("seed_everything: 63", "seed_everything: 64")
    (runs / SECOND / "config.yaml").write_text(config)
    left = runs / "20260101-000003"
    left.mkdir()
    record = {"queued": 1.0, "server": "1 x 1", "configs": [str(REPOSITORY / "configs/flow/smoke.yaml")]}
    (left / "process.json").write_text(json.dumps(record))
    return runs


def tab_to(page: Any, name: str, most: int = 60) -> None:
    """Press Tab until the focus is on what has this name."""
    for _ in range(most):
        page.keyboard.press("Tab")
        if page.evaluate("(document.activeElement.ariaLabel || document.activeElement.innerText || '').trim()") == name:
            return
    raise AssertionError(f"no way by the keyboard to {name}")


def card(page: Any, name: str) -> Any:
    return page.get_by_role("row").filter(has=page.get_by_role("button", name=name, exact=True))


def test_two_people(server: Server, browser: Any, trained: Path) -> None:
    runs = fill(server, trained)
    problems: list[str] = []
    mine = enter(browser, server, problems, path="?tab=runs")
    theirs = enter(browser, server, problems, NARROW, path="?tab=runs")
    for page in (mine, theirs):
        page.get_by_text("0 running, 1 queued").wait_for()
        card(page, FIRST).wait_for()
        assert barriers(page) == [] and too_wide(page) == 0
    keep(mine, "runs-wide")
    keep(theirs, "runs-narrow")

    mine.get_by_role("button", name="Queue again").click()  # nothing else runs: it begins
    mine.get_by_text("step 0 of 20 · you").or_(mine.get_by_text("of 20 · you")).first.wait_for()
    theirs.get_by_text("of 20 · another session").first.wait_for()
    for page in (mine, theirs):
        page.get_by_role("region", name="Trainings and queue").wait_for(state="hidden")
        card(page, "20260101-000003").get_by_text("finished").wait_for()

    card(mine, FIRST).get_by_role("button", name=FIRST, exact=True).focus()  # rename and tag by the keyboard
    mine.keyboard.press("Enter")
    mine.get_by_role("heading", name=FIRST).wait_for()
    tab_to(mine, "Delete …")
    mine.keyboard.press("Tab")
    mine.keyboard.type(HOSTILE)
    mine.keyboard.press("Tab")
    mine.keyboard.type("good, <b>bold</b>")
    mine.keyboard.press("Enter")
    mine.get_by_role("heading", name=HOSTILE).wait_for()
    card(theirs, HOSTILE).get_by_text("<b>bold</b>").wait_for()
    assert not theirs.locator("img[src=x]").count()
    mine.get_by_text("valid", exact=True).first.wait_for()
    assert barriers(mine) == [] and too_wide(mine) == 0
    keep(mine, "run-wide")

    for name in (HOSTILE, SECOND):  # compared, on the phone
        theirs.get_by_role("checkbox", name=f"Select {name}").click()
    theirs.get_by_role("button", name="Compare").click()
    theirs.get_by_role("heading", name="2 runs compared").wait_for()
    theirs.get_by_role("region", name="Differences of the configs").get_by_text("seed_everything").wait_for()
    assert barriers(theirs) == [] and too_wide(theirs) == 0
    keep(theirs, "compared-narrow")
    theirs.get_by_role("button", name="All runs").click()
    theirs.get_by_role("button", name="Clear selection").click()
    theirs.get_by_role("button", name=HOSTILE, exact=True).click()
    theirs.get_by_text("Last sign of life").wait_for()
    assert barriers(theirs) == [] and too_wide(theirs) == 0
    keep(theirs, "run-narrow")

    tab_to(mine, "Delete …", 120)  # deleted by the keyboard, while the other looks at it
    mine.keyboard.press("Enter")
    dialog = mine.get_by_role("dialog", name="Delete this run?")
    dialog.get_by_text(f"flow/smoke/{FIRST}").wait_for()
    mine.wait_for_function("document.activeElement.innerText === 'Keep'")
    mine.wait_for_timeout(500)  # of the dialog's coming
    assert barriers(mine) == []
    keep(mine, "delete-wide")
    mine.keyboard.press("Tab")
    mine.keyboard.press("Enter")
    card(mine, SECOND).wait_for()
    theirs.get_by_text("was deleted").wait_for()
    card(theirs, SECOND).wait_for()
    card(theirs, HOSTILE).wait_for(state="detached")
    assert not (runs / FIRST).exists()
    assert problems == []


def test_an_export_is_cancelled_made_and_downloaded(server: Server, browser: Any, trained: Path) -> None:
    runs = fill(server, trained)
    problems: list[str] = []
    page = enter(browser, server, problems, path="?tab=runs")
    card(page, FIRST).get_by_role("button", name=FIRST, exact=True).click()
    page.get_by_role("button", name="Export", exact=True).click()
    page.get_by_role("button", name="Cancel export").click()
    page.get_by_text("cancelled", exact=True).wait_for()
    assert not (runs / FIRST / "exports").exists()
    page.get_by_role("button", name="Export", exact=True).click()
    page.get_by_text("newest is ready").wait_for()
    with page.expect_download() as coming:
        page.get_by_role("link", name="Download newest.zip").click()
    assert coming.value.suggested_filename == f"flow-smoke-{FIRST}-newest.zip"
    assert Path(coming.value.path()).stat().st_size > 1000
    page.get_by_role("button", name="Inspect").click()
    page.get_by_role("region", name="Report of inspect").get_by_text("zoo.flow.FlowTask").wait_for()
    assert problems == []
