"""The tab Watch in a browser: rows as they come, zoom, smoothing, other runs, samples, failures, more steps."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("nicegui", reason="needs the extra `ui`")

from tests.ui.browser import check_layout, open_page
from tests.ui.conftest import make_run
from tests.ui.serving import Server
from zoo.audio.io import files
from zoo.ui.folders import Folders

pytestmark = pytest.mark.browser
RUN = "flow/smoke/20260101-000000"
HOSTILE = "<img src=x onerror=alert(1)>"


def add_rows(folder: Path, *rows: str) -> None:
    with (folder / "metrics.csv").open("a") as file:
        file.write("".join(f"{row}\n" for row in rows))


def chart(page: Any, expression: str) -> Any:
    """Evaluate an expression on the ECharts instance of the chart `loss`."""
    plot = page.locator("section.zoo-chart").filter(has_text="loss").locator(".zoo-chart-plot")
    return plot.evaluate(f"element => {{ const chart = getElement(+element.id.slice(1)).chart; return {expression}; }}")


def wait_until(page: Any, check: Any) -> None:
    end = time.monotonic() + 60
    while not check():
        assert time.monotonic() < end
        page.wait_for_timeout(100)


def make_runs(server: Server) -> Path:
    folders = Folders(server.folder, server.folder / "runs", server.folder / "data", server.folder)
    folder = make_run(folders, RUN, rows=60, total=100)
    other = make_run(folders, "flow/smoke/other", rows=30, total=77)
    failed = make_run(folders, "flow/smoke/failed", rows=0)
    (failed / "console.log").write_text("zoo: error: lower data.init_args.batch_size\nvalidation error: 0.3\n")
    (failed / "train.log").write_text("2026-11-22 17:40:31,494 ERROR monitor: ended by ValueError\n")
    for step in (10, 20):
        place = folder / "media" / f"step_{step:08d}"
        place.mkdir(parents=True)
        files.write(place / "tone.wav", 0.1 * np.sin(np.arange(22050 * 20, dtype=np.float32) / 10), 22050)
        (place / "answers.csv").write_text(f"question,answer\n{HOSTILE},{step}\n")
    (other / "train.log").write_text("2026-01-01 00:00:00,000 INFO fit finished at step 77\n")
    (other / "step_00000077.ckpt").write_bytes(b"PK\x05\x06" + bytes(18))  # an empty zip
    return folder


def resume_further(page: Any, server: Server) -> None:
    page.goto(f"{server.home}/?tab=watch&run=flow/smoke/other")  # a finished run is resumed with more steps
    page.get_by_role("button", name="Resume").click()
    dialog = page.get_by_role("dialog", name="Train further")
    dialog.get_by_role("spinbutton", name="Train up to step").fill("1")
    dialog.get_by_role("button", name="Resume").click()
    dialog.get_by_text("expected a number above").wait_for()
    dialog.get_by_role("spinbutton", name="Train up to step").fill("100")
    dialog.get_by_role("button", name="Resume").click()
    record = server.folder / "runs/flow/smoke/other/process.json"
    wait_until(page, record.is_file)
    assert "--trainer.max_steps=100" in record.read_text()


def test_curves_samples_and_failures(server: Server, browser: Any) -> None:
    folder = make_runs(server)
    problems: list[str] = []
    page = open_page(browser, server, problems, f"?tab=watch&run={RUN}")
    page.get_by_text("step 60 of 100 · 60 %").wait_for()
    plot = page.locator("section.zoo-chart").filter(has_text="loss").locator(".zoo-chart-plot")
    plot.hover()
    page.keyboard.down("Control")
    page.mouse.wheel(0, -300)
    page.keyboard.up("Control")
    zoom = "chart.getOption().dataZoom[0]"
    wait_until(page, lambda: chart(page, zoom)["end"] - chart(page, zoom)["start"] < 99)
    add_rows(folder, "60,0,0.01,0.02")
    page.get_by_text("step 61 of 100 · 61 %").wait_for()
    wait_until(page, lambda: chart(page, "chart.getOption().series[0].data.length") == 61)
    assert chart(page, zoom)["end"] - chart(page, zoom)["start"] < 99  # an update keeps the zoom
    page.get_by_role("switch", name="Log scale").click()
    wait_until(page, lambda: chart(page, "chart.getOption().yAxis[0].type") == "log")
    page.get_by_role("slider", name="Smoothing").locator("[tabindex]").focus()
    page.keyboard.press("ArrowRight")
    wait_until(page, lambda: chart(page, "chart.getOption().series.length") == 4)
    page.get_by_label("Other runs").click()
    page.get_by_role("option", name="flow/smoke/other").click()
    page.keyboard.press("Escape")
    wait_until(page, lambda: chart(page, "chart.getOption().series.length") == 8)
    page.get_by_text("at step 20").wait_for()
    page.locator("audio").evaluate("audio => audio.play()")
    (folder / "media" / "step_00000030").mkdir()
    (folder / "media" / "step_00000030" / "answers.csv").write_text("question,answer\nlast,30\n")
    page.get_by_text("at step 20 (1 newer)").wait_for()
    assert not page.locator("audio").evaluate("audio => audio.paused")  # what plays stays
    page.get_by_role("slider", name="Samples at step").locator("[tabindex]").focus()
    page.keyboard.press("ArrowRight")
    page.get_by_text("at step 30").wait_for()
    page.keyboard.press("ArrowLeft")
    page.get_by_text("at step 20 (1 newer)").wait_for()
    page.get_by_role("rowheader", name=HOSTILE).wait_for()
    check_layout(page, "watch")

    page.goto(f"{server.home}/?tab=watch&run=flow/smoke/failed")
    page.get_by_text("lower data.init_args.batch_size").wait_for()
    page.get_by_text("Log", exact=True).click()
    page.get_by_label("Log", exact=True).get_by_text("ended by ValueError").wait_for()
    check_layout(page, "watch_failed")

    resume_further(page, server)
    assert problems == []
