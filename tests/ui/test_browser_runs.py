"""The tab Runs in a browser: a run is opened, labelled, inspected, exported, compared and deleted."""

import re
import shutil
from typing import Any

import pytest

pytest.importorskip("nicegui", reason="needs the extra `ui`")

from tests.harness import RUNS
from tests.ui.browser import check_layout, open_page
from tests.ui.serving import Server

pytestmark = pytest.mark.browser
FIRST, SECOND, BROKEN = "20260101-000001", "20260101-000002", "20260101-000003"
HOSTILE = "<img src=x onerror=alert(1)>"


def fill(server: Server) -> Any:
    runs = server.folder / "runs/flow/smoke"
    for name in (FIRST, SECOND):
        shutil.copytree(RUNS / "flow/smoke", runs / name)
    config = (runs / SECOND / "config.yaml").read_text()
    (runs / SECOND / "config.yaml").write_text(re.sub(r"seed_everything: \d+", "seed_everything: 987", config))
    (runs / BROKEN).mkdir()
    (runs / BROKEN / "step_00000001.ckpt").write_bytes(b"PK no zip")
    return runs


def select(page: Any, *names: str) -> None:
    for name in names:
        page.get_by_role("checkbox", name=f"Select {name}", exact=True).click()
        page.get_by_text(re.compile("selected$")).first.wait_for()


def compare(page: Any) -> None:
    select(page, HOSTILE, BROKEN)  # a run without a config cannot be compared; another choice can
    page.get_by_role("button", name="Compare").click()
    page.get_by_text("neither a run").first.wait_for()
    select(page, BROKEN, SECOND)
    page.get_by_role("button", name="Compare").click()
    page.get_by_role("region", name="Report of compare").get_by_text("987").wait_for()
    check_layout(page, "compared")
    page.get_by_role("button", name="Curves in Watch").click()
    page.get_by_role("heading", name="Watch").wait_for()
    page.get_by_role("tab", name="Runs").click()


def test_runs_are_opened_compared_and_deleted(server: Server, browser: Any) -> None:
    runs = fill(server)
    problems: list[str] = []
    page = open_page(browser, server, problems, "?tab=runs")
    page.get_by_role("button", name=FIRST, exact=True).wait_for()
    page.get_by_label("Filter the table").fill("corrupt")
    page.get_by_role("button", name=FIRST, exact=True).wait_for(state="detached")
    page.get_by_label("Filter the table").fill("")
    page.get_by_role("button", name=FIRST, exact=True).wait_for()
    check_layout(page, "runs")

    # in the table: a busy page may still show the cards of the narrow layout, which are about to go
    page.locator("tbody").get_by_role("button", name=FIRST, exact=True).press("Enter")
    page.get_by_role("heading", name=FIRST).wait_for()
    page.get_by_label("Label", exact=True).fill(HOSTILE)
    page.keyboard.press("Enter")
    page.get_by_role("heading", name=HOSTILE).wait_for()
    page.get_by_role("region", name="Checkpoints").get_by_text("step_00000003.ckpt").wait_for()
    page.get_by_label("Label", exact=True).fill("not saved")
    page.get_by_role("button", name="Inspect").click()
    page.get_by_text("zoo inspect succeeded").wait_for()
    assert page.get_by_label("Label", exact=True).input_value() == "not saved"
    page.get_by_role("region", name="Report of inspect").get_by_text("zoo.flow.FlowTask").wait_for()
    page.get_by_role("button", name="Export").click()
    page.get_by_text("zoo export ...").wait_for()
    page.get_by_role("button", name="Export").click()  # again: the run stays locked until the first one has ended
    page.get_by_text("is being exported").wait_for()
    page.get_by_role("button", name="Close").click()
    page.get_by_text("is being exported").wait_for(state="detached")
    page.locator(".zoo-run").get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    page.get_by_text("is being exported").wait_for()
    page.get_by_role("button", name="Close").click()
    page.get_by_text("zoo export succeeded").wait_for()
    (exported,) = (runs / FIRST / "exports").iterdir()
    assert list(exported.glob("*.safetensors"))
    check_layout(page, "run")

    page.get_by_role("button", name="All runs").first.click()
    page.get_by_role("button", name=BROKEN, exact=True).click()
    page.get_by_role("button", name="Inspect").click()
    page.get_by_text("zoo inspect failed").wait_for()
    page.get_by_role("button", name="All runs").first.click()

    compare(page)

    page.get_by_role("button", name=HOSTILE, exact=True).click()
    page.locator(".zoo-run").get_by_role("button", name="Delete").click()
    dialog = page.get_by_role("dialog", name="Delete this run?")
    dialog.get_by_text(f"flow/smoke/{FIRST}").wait_for()
    dialog.get_by_role("button", name="Keep").click()
    dialog.wait_for(state="detached")
    assert (runs / FIRST).is_dir()
    page.locator(".zoo-run").get_by_role("button", name="Delete").click()
    dialog.get_by_role("button", name="Delete").click()
    page.get_by_role("button", name=SECOND, exact=True).wait_for()
    page.get_by_role("button", name=HOSTILE, exact=True).wait_for(state="detached")
    assert not (runs / FIRST).exists() and not page.locator("img[src=x]").count()
    assert problems == []
