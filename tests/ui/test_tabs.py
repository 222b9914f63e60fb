"""What the tabs answer, with a stand-in for the command line and without a browser."""

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("gradio", reason="needs the extra `ui`")

import gradio

from zoo.ui.jobs.trainings import Trainings
from zoo.ui.page import Page
from zoo.ui.places import Places
from zoo.ui.store import Store
from zoo.ui.tabs.inspect import InspectTab
from zoo.ui.tabs.predict import NEWEST, PredictTab
from zoo.ui.tabs.train import AS_RECIPE, TrainTab
from zoo.ui.tabs.watch import WatchTab

ME = SimpleNamespace(session_hash="me")
MINE = "0123456789abcdef"


def session_of(request: Any) -> str:
    return MINE


def chosen(tab: TrainTab, lines: str = "", **other: str) -> list[Any]:
    """What the page sends for an untouched form of a recipe."""
    base, _, *updates = tab._show("hifigan", "smoke", ME)
    values = [update["value"] for update in updates[len(tab.groups) :]]
    choices = {"fragment": AS_RECIPE, "weights": "", "data": AS_RECIPE} | other
    return ["hifigan", "smoke", *choices.values(), base, lines, *values]


def test_a_recipe_is_checked_and_started(places: Places, trainings: Trainings) -> None:
    (places.data / "mine").mkdir()
    with gradio.Blocks():
        tab = TrainTab(places, trainings)
    *_, (answer, config) = tab._check(*chosen(tab, fragment="cpu"))
    assert "understood" in answer and "smoke.yaml --config" in config and config.rstrip().endswith("--print_config")
    *_, (answer, run, _) = tab._start(*chosen(tab, "trainer.max_steps=3", data="mine"))
    try:
        changes = (places.run(run["value"]) / "changes.yaml").read_text()
        assert "max_steps: 3" in changes and f"root: {places.data / 'mine'}" in changes
    finally:
        trainings.stop(run["value"])
    for wrong in ({"data": "../x"}, {"weights": "/etc/passwd"}, {"fragment": "../hifigan/smoke"}):
        with pytest.raises(gradio.Error, match=r"there (is|are) no"):
            list(tab._start(*chosen(tab, **wrong)))
    with pytest.raises(gradio.Error, match="decided by"):
        list(tab._start(*chosen(tab, "ckpt_path=x")))


def test_the_complete_config_comes_later_and_only_to_who_still_looks(
    places: Places, trainings: Trainings, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "model: {init_args: {compile: false}}\ntrainer: {max_steps: 40}"
    monkeypatch.setattr(trainings, "parse", lambda *_: text)
    with gradio.Blocks():
        tab = TrainTab(places, trainings)
    base = tab._show("hifigan", "smoke", ME)[0]
    later = dict(zip(tab.controls, tab._show_rest("hifigan", "smoke", base, ME)[2 + len(tab.groups) :], strict=True))
    assert later["Compile"]["visible"] and later["Steps"] == gradio.skip()  # what may be edited by now is left alone
    tab._show("flow", "smoke", ME)
    assert all(update == gradio.skip() for update in tab._show_rest("hifigan", "smoke", base, ME))

    def refuse(*_: Any) -> str:
        raise ValueError("zoo fit: error: no such key")

    monkeypatch.setattr(trainings, "parse", refuse)
    assert "no such key" in tab._show_rest("flow", "smoke", {}, ME)[1]


def test_a_run_is_watched(places: Places, trainings: Trainings) -> None:
    run = places.new_run("hifigan", "smoke")
    folder = places.run(run)
    (folder / "metrics.csv").write_text("step,train/loss,train/lr_adam\n0,2,0.1\n1,1,0.1\n")
    (folder / "train.log").write_text("<script>\n")
    with gradio.Blocks():
        tab = WatchTab(places, trainings)
    status, losses, rates, log, media, *_, seen = tab.refresh(run, [], 0.0, False, {})
    assert 'data-state="active"' in status and "<b>2</b>" in status
    assert "train/loss" in losses and "train/lr_adam" in rates and "&lt;script&gt;" in log and "No sounds" in media
    assert all(update == gradio.skip() for update in tab.refresh(run, [], 0.0, False, seen))
    with pytest.raises(gradio.Error, match="is no name"):
        tab.refresh("a/../b", [], 0.0, False, {})


def test_files_are_worked_on_and_checkpoints_inspected(places: Places, trainings: Trainings) -> None:
    run = places.new_run("hifigan", "smoke")
    (places.run(run) / "step_1.ckpt").touch()
    store = Store(places.temp, 2**20)
    upload = str(store.add(MINE, "a.wav", io.BytesIO(b"sound")))
    with gradio.Blocks():
        inspect, predict = InspectTab(places, trainings), PredictTab(places, trainings, store, session_of)
    assert f"said inspect {run}/step_1.ckpt" in list(inspect._inspect(run, "step_1.ckpt"))[-1]
    answer = list(predict._predict(run, NEWEST, upload, "", ME))[-1][0]
    assert f"said predict --ckpt_path {places.run(run)} --input" in answer  # nothing was written: its last words
    for arguments in ((run, NEWEST, "/etc/hostname", ""), (run, "../x", upload, ""), (run, NEWEST, None, "")):
        with pytest.raises(gradio.Error):
            list(predict._predict(*arguments, ME))


def test_whoever_comes_is_shown_what_runs(places: Places, trainings: Trainings, tmp_path: Path) -> None:
    page = Page(places, trainings, Store(places.temp, 2**20), session_of)
    assert page._arrive()[0] == []
    run = places.new_run("toy", "smoke")
    trainings.start([tmp_path / "recipe.yaml"], {}, run, "me")
    try:
        runs, watched, *_, tabs = page._arrive()
        assert (runs, watched["value"], tabs["selected"]) == ([run], run, "watch")
        assert page._list_runs([run], run, run, run) == [gradio.skip()] * 5
        assert page._list_runs([], None, None, None)[1]["value"] == run
    finally:
        trainings.stop(run)
