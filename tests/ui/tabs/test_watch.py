"""The tab Watch without a browser: what it shows of a run, and what its buttons do."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("nicegui", reason="needs the extra `ui`")

from nicegui import ui
from nicegui.testing.user_simulation import user_simulation

from zoo.runs.run_info import read_run
from zoo.ui.board import Board, Row
from zoo.ui.jobs.trainings import Trainings
from zoo.ui.places import Places
from zoo.ui.readings import Load
from zoo.ui.tabs.watch import WatchTab, best_in_words, share_of
from zoo.ui.visit import Visit

HOSTILE = "<img src=x onerror=alert(1)>"
CONFIG = "# recipe: flow/smoke\ntrainer:\n  max_steps: {}\ncheckpoints:\n  monitor: val/loss\n  mode: min\n"


def make_run(places: Places, name: str, rows: int = 4, total: int = 10) -> Path:
    folder = places.runs / name
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(CONFIG.format(total))
    lines = [f"{step},0,{1 / (step + 1)},{2 / (step + 1)},1" for step in range(rows)]
    (folder / "metrics.csv").write_text("\n".join([f"step,epoch,train/loss,val/loss,train/{HOSTILE}", *lines, ""]))
    (folder / "train.log").write_text(f"a line with {HOSTILE}\n")
    return folder


def visited(places: Places, trainings: Trainings, run: str, test: Callable[[WatchTab, Any], Awaitable[None]]) -> None:
    """Open the tab and use it."""
    board = Board(places, trainings, loads=[Load("CPU", 50.0, 2**30, 2**31)])
    board.scan()
    made: list[WatchTab] = []

    def root() -> None:
        shared: Any = SimpleNamespace(places=places, trainings=trainings, board=board)
        visit = Visit(shared, "me", run)
        with ui.tabs() as visit.tabs:
            ui.tab("watch")
        visit.tabs.set_value("watch")
        made.append(WatchTab(visit))

    async def main() -> None:
        async with user_simulation(root) as user:
            await user.open("/")
            with made[0].body.client:
                await made[0].refresh()
                await test(made[0], user)

    asyncio.run(main())


def test_a_run_with_its_curves(places: Places, trainings: Trainings) -> None:
    folder = make_run(places, "flow/smoke/a")

    async def test(tab: WatchTab, user: Any) -> None:
        await user.should_see("step 4 of 10 · 40 %")
        await user.should_see("best val/loss 0.5 at step 4")
        await user.should_see(f"train/{HOSTILE}")  # as text of an element, which the browser escapes
        charts = {chart.panel.title: chart for chart in tab.charts._charts}
        assert set(charts) == {"loss", f"train/{HOSTILE}"}
        assert charts["loss"].chart.options["series"][0]["data"][-1] == (3, 0.25)
        before = charts["loss"].chart.options
        await tab.refresh()
        assert charts["loss"].chart.options is before  # what has not changed is not sent again
        with (folder / "metrics.csv").open("a") as file:
            file.write("4,0,,0.1,\n")
        await tab.refresh()
        assert charts["loss"].chart.options["series"][1]["data"][-1] == (4, 0.1)
        tab.log_fold.set_value(True)
        await tab.refresh()
        assert tab.log.text == f"a line with {HOSTILE}"
        tab.wanted.set_value("LOSS")
        assert [chart.panel.title for chart in charts.values() if chart.card.visible] == ["loss"]
        tab.log_scale.set_value(True)
        tab.smoothing.set_value(0.5)
        await tab.refresh()
        assert charts["loss"].chart.options["yAxis"]["type"] == "log"
        assert len(charts["loss"].chart.options["series"]) == 4

    visited(places, trainings, "flow/smoke/a", test)


def test_the_chosen_run_stays_and_another_is_chosen_by_hand(places: Places, trainings: Trainings) -> None:
    make_run(places, "flow/smoke/a")

    async def test(tab: WatchTab, user: Any) -> None:
        make_run(places, "flow/smoke/b", rows=2, total=2)
        tab.visit.shared.board.scan()
        await tab.refresh()
        assert (tab.visit.run, tab.run.value) == ("flow/smoke/a", "flow/smoke/a")
        assert "flow/smoke/b" in tab.run.options and list(tab.beside.options) == ["flow/smoke/b"]
        tab.run.set_value("flow/smoke/b")
        await tab.refresh()
        assert tab.visit.run == "flow/smoke/b"
        await user.should_see("step 2 of 2 · 100 %")

    visited(places, trainings, "flow/smoke/a", test)


def test_other_runs_are_laid_over_with_the_differences_of_their_configs(places: Places, trainings: Trainings) -> None:
    make_run(places, "flow/smoke/a")
    make_run(places, "flow/smoke/b", total=77)
    make_run(places, "hifigan/smoke/c")

    async def test(tab: WatchTab, user: Any) -> None:
        assert list(tab.beside.options) == ["flow/smoke/b"]
        tab.beside.set_value(["flow/smoke/b"])
        await tab.refresh()
        series = tab.charts._charts[0].chart.options["series"]
        assert [each["name"] for each in series] == [
            f"smoke/{run} {stage}/loss" for run in "ab" for stage in ("train", "val")
        ]
        await user.should_see("77")

    visited(places, trainings, "flow/smoke/a", test)


def test_why_it_failed_and_whose_it_is(places: Places, trainings: Trainings) -> None:
    folder = make_run(places, "flow/smoke/a")
    (folder / "console.log").write_text("zoo: error: lower data.init_args.batch_size\n")
    (folder / "train.log").write_text("2026-11-22 17:40:31,494 ERROR monitor: ended by ValueError\n")
    (folder / "step_00000004.ckpt").mkdir()
    (folder / "step_00000004.ckpt" / "shard").touch()

    async def test(tab: WatchTab, user: Any) -> None:
        tab.visit.shared.board.rows = {
            "flow/smoke/a": Row("flow/smoke/a", "failed", read_run(folder, places.runs), "x")
        }
        await tab.refresh()
        await user.should_see("lower data.init_args.batch_size")
        await user.should_see("started by another session")
        assert not tab.stop.enabled and tab.resume.enabled and not tab.cancel.visible

    visited(places, trainings, "flow/smoke/a", test)


def test_samples_by_step_and_the_newest_is_followed_until_somebody_looks_back(
    places: Places, trainings: Trainings
) -> None:
    media = make_run(places, "flow/smoke/a") / "media"
    for step in (1, 2):
        (media / f"step_{step:08d}").mkdir(parents=True)
        (media / f"step_{step:08d}" / "tone.wav").touch()
        (media / f"step_{step:08d}" / "answers.csv").write_text(f"question\n{HOSTILE}{step}\n")

    async def test(tab: WatchTab, user: Any) -> None:
        samples = tab.samples
        await samples.refresh()
        await user.should_see("after batch 2")
        assert samples._shown[0] == "step_00000002"
        samples._playing.add("tone.wav")
        (media / "step_00000003").mkdir()
        (media / "step_00000003" / "tone.wav").touch()
        await samples.refresh()  # what is heard goes on
        assert samples._shown[0] == "step_00000002"
        samples._playing.clear()
        await samples.refresh()
        assert samples._shown[0] == "step_00000003"
        samples.slider.set_value(0)
        await asyncio.sleep(0.2)
        assert samples._shown[0] == "step_00000001"
        (media / "step_00000004").mkdir()
        await samples.refresh()
        assert samples._shown[0] == "step_00000001"
        await user.should_see("after batch 1 (3 newer)")

    visited(places, trainings, "flow/smoke/a", test)


def test_what_is_said_without_a_run(places: Places, trainings: Trainings) -> None:
    async def test(tab: WatchTab, user: Any) -> None:
        await user.should_see("No run yet: start one in the tab Train")
        assert not tab.body.visible
        await user.should_see("50 %")

    visited(places, trainings, "", test)


def test_how_far_and_how_well(places: Places) -> None:
    run = read_run(make_run(places, "flow/smoke/a"), places.runs)
    assert share_of(run) == 0.4
    assert best_in_words(run, "x.ckpt") == "best val/loss 0.5 at step 4 (x.ckpt)"
