"""The tab Watch in a browser: rows as they come, zoom, smoothing, samples, other runs, failures, a telephone."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("nicegui", reason="needs the extra `ui`")

from tests.ui.browser import NARROW, barriers, enter, keep, too_wide
from tests.ui.serving import Server
from tests.ui.tabs.test_watch import HOSTILE, make_run
from zoo.audio.io import files
from zoo.ui.places import Places

pytestmark = pytest.mark.browser
RUN = "flow/smoke/20260101-000000"
ROWS, METRICS, UPDATES = 5000, 20, 8


def places(server: Server) -> Places:
    return Places(server.folder, server.folder / "runs", server.folder, server.folder)


def add_row(folder: Path, row: str) -> None:
    with (folder / "metrics.csv").open("a") as file:
        file.write(row + "\n")


def chart(page: Any, title: str, expression: str) -> Any:
    """Ask the ECharts instance of a chart."""
    plot = page.locator("section.zoo-chart").filter(has_text=title).locator(".zoo-chart-plot")
    return plot.evaluate(f"element => {{ const chart = getElement(+element.id.slice(1)).chart; return {expression}; }}")


def wait_until(page: Any, check: Any) -> None:
    end = time.monotonic() + 60
    while not check():
        assert time.monotonic() < end
        page.wait_for_timeout(100)


def test_a_row_is_seen_soon(server: Server, browser: Any) -> None:
    folder = make_run(places(server), RUN, rows=1, total=10_000)
    names = [f"train/metric_{number}" for number in range(METRICS)]
    rows = [f"{step},0," + ",".join([f"{np.sin(step / 100):.17g}"] * METRICS) for step in range(ROWS)]
    (folder / "metrics.csv").write_text("\n".join([",".join(["step", "epoch", *names]), *rows, ""]))
    problems: list[str] = []
    page = enter(browser, server, problems, path=f"?tab=watch&run={RUN}")
    page.locator("section.zoo-chart").nth(METRICS - 1).wait_for()
    shown = page.locator("section.zoo-chart").filter(has_text="train/metric_3").locator(".zoo-small")
    taken = []
    for number in range(UPDATES):
        value = str(1000 + number)
        began = time.monotonic()
        add_row(folder, f"{ROWS + number},0," + ",".join([value] * METRICS))
        shown.get_by_text(value).wait_for()
        taken.append(time.monotonic() - began)
        page.wait_for_timeout(137 * number % 500)
    print(f"from the row to the screen: median {np.median(taken):.2f} s, at most {max(taken):.2f} s")
    assert problems == []


def test_all_of_a_run(server: Server, browser: Any) -> None:
    folder = make_run(places(server), RUN, rows=60, total=100)
    make_run(places(server), "flow/smoke/other", rows=30, total=77)
    failed = make_run(places(server), "flow/smoke/failed", rows=0)
    (failed / "console.log").write_text("zoo: error: lower data.init_args.batch_size\n")
    (failed / "train.log").write_text("2026-11-22 17:40:31,494 ERROR monitor: ended by ValueError\n")
    for step in (10, 20):
        place = folder / "media" / f"step_{step:08d}"
        place.mkdir(parents=True)
        files.write(place / "tone.wav", 0.1 * np.sin(np.arange(22050 * 20, dtype=np.float32) / 10), 22050)
        (place / "answers.csv").write_text(f"question,answer\n{HOSTILE},{step}\n")
    problems: list[str] = []
    page = enter(browser, server, problems, path=f"?tab=watch&run={RUN}")
    page.get_by_text("step 60 of 100 · 60 %").wait_for()
    page.locator("section.zoo-chart").filter(has_text=HOSTILE).wait_for()  # escaped, or it would have run

    plot = page.locator("section.zoo-chart").filter(has_text="loss").locator(".zoo-chart-plot")
    plot.hover()  # its tooltip holds the names
    page.keyboard.down("Control")
    page.mouse.wheel(0, -300)
    page.keyboard.up("Control")
    zoom = "chart.getOption().dataZoom[0]"
    wait_until(page, lambda: chart(page, "loss", zoom)["end"] - chart(page, "loss", zoom)["start"] < 99)
    add_row(folder, "60,0,0.01,0.02,1")
    page.get_by_text("step 61 of 100 · 61 %").wait_for()
    wait_until(page, lambda: chart(page, "loss", "chart.getOption().series[0].data.length") == 61)
    assert chart(page, "loss", zoom)["end"] - chart(page, "loss", zoom)["start"] < 99  # an update keeps it
    page.get_by_role("button", name="Menu of the chart loss").click()
    with page.expect_download() as saved:
        page.get_by_text("Save as CSV").click()
    assert Path(saved.value.path()).read_text().splitlines()[-1] == "60,0,0.01,0.02"
    page.get_by_role("button", name="Menu of the chart loss").click()
    with page.expect_download() as saved:
        page.get_by_text("Save as SVG").click()
    assert saved.value.suggested_filename == "loss.svg" and "<svg" in Path(saved.value.path()).read_text()
    page.get_by_role("button", name="Menu of the chart loss").click()
    page.get_by_text("Show all steps").click()
    wait_until(page, lambda: chart(page, "loss", zoom)["end"] - chart(page, "loss", zoom)["start"] == 100)

    page.get_by_role("switch", name="Log scale").click()
    wait_until(page, lambda: chart(page, "loss", "chart.getOption().yAxis[0].type") == "log")
    page.get_by_role("slider", name="Smoothing").locator("[tabindex]").focus()
    page.keyboard.press("ArrowRight")
    wait_until(page, lambda: chart(page, "loss", "chart.getOption().series.length") == 4)
    page.get_by_label("Other runs").click()
    page.get_by_role("option", name="smoke/other").click()
    page.keyboard.press("Escape")
    wait_until(page, lambda: chart(page, "loss", "chart.getOption().series.length") == 8)
    page.get_by_text("Differences of the configs").click()
    page.get_by_role("cell", name="77", exact=True).wait_for()

    page.get_by_text("after batch 20").wait_for()
    page.locator("audio").evaluate("sound => sound.play()")
    (folder / "media" / "step_00000030").mkdir()
    (folder / "media" / "step_00000030" / "answers.csv").write_text("question,answer\nlast,30\n")
    page.get_by_text("after batch 20 (1 newer)").wait_for()
    assert not page.locator("audio").evaluate("sound => sound.paused")
    page.locator("audio").evaluate("sound => sound.pause()")
    page.get_by_text("after batch 30").wait_for()
    page.get_by_role("slider", name="Samples after batch").locator("[tabindex]").focus()
    for said in ("after batch 20 (1 newer)", "after batch 10 (2 newer)"):
        page.keyboard.press("ArrowLeft")
        page.get_by_text(said).wait_for()
    page.get_by_role("cell", name=HOSTILE).or_(page.get_by_role("rowheader", name=HOSTILE)).wait_for()
    assert barriers(page) == []
    keep(page, "watch")

    page.goto(f"{server.address.partition('?')[0]}?tab=watch&run=flow/smoke/failed")
    page.get_by_text("lower data.init_args.batch_size").wait_for()
    page.get_by_text("Log", exact=True).click()
    page.get_by_label("Log", exact=True).get_by_text("ended by ValueError").wait_for()
    assert barriers(page) == []
    keep(page, "watch_failed")

    page.set_viewport_size(NARROW)
    page.goto(f"{server.address.partition('?')[0]}?tab=watch&run={RUN}")
    page.locator("section.zoo-chart svg").first.wait_for()
    assert too_wide(page) <= 0
    assert page.locator(".zoo-chart-plot").first.bounding_box()["height"] >= 220
    keep(page, "watch_narrow")
    assert problems == []
