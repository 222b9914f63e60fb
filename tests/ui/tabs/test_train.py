"""The tab Train without a browser: what is shown, what is written, and what is refused."""

import asyncio
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("nicegui", reason="needs the extra `ui`")

from nicegui import ui
from nicegui.testing.user_simulation import user_simulation

from tests.ui.conftest import shared_of
from zoo.common.configs import load_recipe, load_yaml
from zoo.ui.board import Board
from zoo.ui.forms.values import as_text, merged
from zoo.ui.jobs.records import read_record
from zoo.ui.jobs.trainings import Trainings
from zoo.ui.places import CHANGES_NAME, Places
from zoo.ui.store import Store
from zoo.ui.tabs.fields import Field
from zoo.ui.tabs.train import TrainTab
from zoo.ui.visit import Visit

pytestmark = pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
BATCH = "data.init_args.batch_size"


class Quick(Trainings):
    """Its parser lays files over each other, and works only while `gate` is open; its trainings are the stand-in."""

    def __init__(self, places: Places, program: Sequence[str]) -> None:
        super().__init__(places, (), program)
        self.gate = threading.Event()
        self.gate.set()
        self.says = ""
        self.adds: dict[str, Any] = {}
        self.parsed: list[tuple[str, dict[str, Any]]] = []

    def parse(self, configs: Sequence[Path], changes: Mapping[str, Any]) -> str:
        assert self.gate.wait(20)
        self.parsed.append((configs[0].stem, dict(changes)))
        if self.says and changes:
            raise ValueError(self.says)
        config: dict[str, Any] = {"samples": {"items": 4, "seed": 0}, "trainer": {"accelerator": "auto"}}
        for file in configs:
            config = merged(config, load_recipe(file))
        return yaml.safe_dump(merged(merged(config, changes), self.adds if changes else {}))


class Opened:
    """A page with the tab in it, and hands on its elements."""

    def __init__(self, visit: Visit, tab: TrainTab) -> None:
        self.visit, self.tab = visit, tab

    @property
    def trainings(self) -> Any:
        return self.visit.shared.trainings

    def field(self, label: str) -> Field:
        return next(each for each in self.tab.form.fields if each.control.label == label)

    def choose(self, system: str, recipe: str = "") -> None:
        self.tab.system.set_value(system)
        if recipe:
            self.tab.recipe.set_value(recipe)

    def press(self, button: ui.button) -> None:
        """What the browser's click does, which reaches no button that is disabled or gone."""
        if button.enabled and not button.is_deleted:
            with button.client:
                for listener in list(button._event_listeners.values()):
                    button._handle_event({"listener_id": listener.id, "args": []})

    async def until(self, condition: Callable[[], object]) -> None:
        for _ in range(1000):
            if condition():
                return
            await asyncio.sleep(0.02)
        raise AssertionError(self.said())

    async def complete(self) -> None:
        await self.until(lambda: self.tab.draft.is_complete)

    def said(self) -> str:
        return str(self.tab.form.answer.text)

    def rows(self) -> list[tuple[str, ...]]:
        """The table of differences as it is shown."""
        texts = [e.text.replace("\u200b", "") for e in self.tab.form.table.descendants() if isinstance(e, ui.label)]
        return list(zip(texts[3::3], texts[4::3], texts[5::3], strict=True)) if texts[:1] == ["Key"] else []

    def changes(self, run: str) -> dict[str, Any]:
        file = self.visit.shared.places.run(run) / CHANGES_NAME
        return load_yaml(file.read_text()) if file.is_file() else {}


@asynccontextmanager
async def opened(places: Places, trainings: Trainings) -> AsyncIterator[Opened]:
    store = Store(places.temp, 2**20)
    shared = shared_of(places, trainings, store, Board(places, trainings))
    made: list[Opened] = []

    def page() -> None:
        visit = Visit(shared, "me")
        with ui.tabs() as visit.tabs:
            ui.tab("train")
            ui.tab("watch")
        visit.tabs.set_value("train")
        made.append(Opened(visit, TrainTab(visit)))

    async with user_simulation(root=page) as user:
        client = await user.open("/")
        try:
            yield made[0]
        finally:
            client.delete()


@pytest.fixture
def quick(places: Places, trainings: Trainings) -> Iterator[Quick]:
    (places.data / "mine").mkdir()
    yield Quick(places, (sys.executable, str(places.work / "stand_in.py")))
    for record in map(read_record, places.runs.glob("*/*/*")):
        if record and record.process():
            os.kill(record.pid, signal.SIGKILL)


def on_the_page(places: Places, trainings: Trainings, story: Callable[[Opened], Awaitable[None]]) -> None:
    async def run() -> None:
        async with opened(places, trainings) as page:
            await story(page)

    asyncio.run(run())


def test_what_the_file_names_is_edited_while_the_rest_is_read(places: Places, quick: Quick) -> None:
    async def story(page: Opened) -> None:
        quick.gate.clear()
        page.choose("flow")
        assert page.tab.draft.recipe == "smoke" and not page.tab.draft.is_complete
        steps, kept = page.field("Steps"), page.field("Checkpoints kept")
        assert steps.element.enabled and steps.element.value == "20"
        assert kept.box.visible and not kept.element.enabled and kept.element.value == ""
        form = page.tab.form
        assert not any(button.enabled for button in (form.start_button, form.try_button, form.check_button))
        steps.element.set_value("7")
        quick.gate.set()
        await page.complete()
        assert steps.element.value == "7" and form.start_button.enabled and kept.element.enabled
        assert kept.element.value == "2"
        assert page.rows() == [("trainer.max_steps", "20", "7")]
        page.choose("hifigan")
        page.choose("flow")  # what has been read once is there at once, and nothing of the edits is
        assert page.tab.draft.is_complete and page.tab.form.start_button.enabled and page.rows() == []

    on_the_page(places, quick, story)


def test_a_former_form_reaches_nothing(places: Places, quick: Quick) -> None:
    async def story(page: Opened) -> None:
        page.choose("flow")
        await page.complete()
        before, form = page.tab.draft, page.tab.form
        old = [page.field(label) for label in ("Steps", "Batch size", "Learning rate", "Warm-up steps")]
        for field in old:
            field.element.set_value("3")
        page.choose("compressed_ad")
        await page.complete()
        with page.visit.tabs.client:
            for field in old:  # a message that was under way
                field.element.set_value("9999")
            form.lines.set_value("seed_everything=1")
            page.press(form.start_button)
            assert form._press(form._start) is None
        assert form.start_button.is_deleted
        assert page.tab.draft is not before and page.tab.draft.edits == {} and page.rows() == []
        assert page.visit.run == "" and places.list_runs() == []
        page.press(page.tab.form.start_button)
        await page.until(lambda: page.visit.run)
        assert page.visit.run.startswith("compressed_ad/smoke/") and page.changes(page.visit.run) == {}

    on_the_page(places, quick, story)


def test_start_trains_what_is_shown_and_watches_it(places: Places, quick: Quick) -> None:
    async def story(page: Opened) -> None:
        page.choose("flow")
        await page.complete()
        page.field("Batch size").element.set_value("8")
        page.field("Learning rate").element.set_value("1e-4")
        page.field("Loss guard").element.set_value(True)
        page.field("Guard's action").element.set_value("reduce")
        page.tab.form.lines.set_value("samples.seed=3")
        await page.until(lambda: page.tab.form.data.enabled)
        page.tab.form.data.set_value("mine")
        await page.until(lambda: len(page.rows()) == 6)
        assert page.rows()[:2] == [(BATCH, "16", "8"), ("model.init_args.optimizer.init_args.lr", "0.001", "0.0001")]
        page.press(page.tab.form.start_button)
        assert not page.tab.form.start_button.enabled
        await page.until(lambda: page.visit.run)
        first = page.visit.run
        assert page.visit.tabs.value == "watch" and quick.owner(first) == "me"
        changes = page.changes(first)
        guard = changes["trainer"]["callbacks"][-1]
        assert (guard["class_path"], guard["init_args"]["action"]) == ("zoo.training.LossGuard", "reduce")
        assert changes["data"]["init_args"] == {"batch_size": 8, "root": str(places.data / "mine")}
        assert changes["samples"] == {"seed": 3}
        command = read_record(places.run(first)).command
        assert str(places.recipe("flow", "smoke")) in command and "hifigan" not in " ".join(command)
        page.press(page.tab.form.start_button)  # the same once more
        await page.until(lambda: page.visit.run != first)
        assert "1st in line" in page.said() and sum(bool(changes) for _, changes in quick.parsed) == 1  # checked once

    on_the_page(places, quick, story)


@pytest.mark.parametrize("late", ["edit", "recipe", "machine"])
def test_what_changes_after_the_press_is_not_started(late: str, places: Places, quick: Quick) -> None:
    async def story(page: Opened) -> None:
        page.choose("flow")
        await page.complete()
        page.field("Steps").element.set_value("7")
        quick.gate.clear()
        page.press(page.tab.form.start_button)
        await page.until(lambda: "Reading" in page.said())
        if late == "edit":
            page.field("Steps").element.set_value("8")
        elif late == "recipe":
            page.choose("hifigan")
        else:
            page.tab.machine.set_value("cpu")
        quick.gate.set()
        await page.until(lambda: len(quick.parsed) >= 2)
        await asyncio.sleep(0.3)
        assert places.list_runs() == [] and page.visit.run == ""
        if late == "edit":
            assert "has changed" in page.said()
        if late == "machine":  # the recipe's edits stay, as the recipe does
            assert page.rows() == [("machine", "as in the recipe", "cpu"), ("trainer.max_steps", "20", "7")]

    on_the_page(places, quick, story)


def test_errors_stand_at_their_field(places: Places, quick: Quick) -> None:
    async def story(page: Opened) -> None:
        page.choose("flow")
        await page.complete()
        size, steps, early = page.field("Batch size"), page.field("Steps"), page.field("Early stopping")
        size.element.set_value("0")
        assert size.element.error == "expected 1 or more, not 0"
        page.press(page.tab.form.start_button)
        await page.until(lambda: "batch_size: expected 1 or more" in page.said())
        size.element.set_value("8")
        assert size.element.error is None
        for hostile in ({"class_path": "os.system"}, ["/etc/passwd"], 3):
            steps.element.set_value(hostile)
            early.element.set_value(hostile)
            assert "trainer.max_steps" in page.tab.draft.problems
            assert page.tab.draft.problems["early.on"] == "expected true or false"
        steps.element.set_value("7")
        early.element.set_value(False)
        assert page.tab.draft.problems == {} and page.tab.draft.changes() == {
            "data": {"init_args": {"batch_size": 8}},
            "trainer": {"max_steps": 7},
        }
        quick.says = "zoo: error: Parser key \"batch_size\": Expected a <class 'int'>. Got value: 8"
        page.press(page.tab.form.check_button)
        await page.until(lambda: "Parser key" in page.said())
        assert "Parser key" in size.element.error and steps.element.error is None
        page.tab.form.lines.set_value("data.init_args.root=/etc")
        assert "no paths" in page.tab.form.lines.error
        page.press(page.tab.form.start_button)
        await asyncio.sleep(0.2)
        assert places.list_runs() == [] and "no paths" in page.said()

    on_the_page(places, quick, story)


def test_a_config_that_is_not_the_form_is_not_started(places: Places, quick: Quick) -> None:
    async def story(page: Opened) -> None:
        page.choose("flow")
        await page.complete()
        page.field("Batch size").element.set_value("8")
        quick.adds = {"data": {"init_args": {"batch_size": 16}}}
        page.press(page.tab.form.start_button)
        await page.until(lambda: "would hold 16, not 8" in page.said())
        assert "would hold 16" in page.field("Batch size").element.error and places.list_runs() == []
        page.field("Batch size").element.set_value("4")
        quick.adds = {"model": {"init_args": {"chunk": 32}}}  # follows from what was edited: shown, and no objection
        page.press(page.tab.form.check_button)
        await page.until(lambda: "is understood" in page.said())
        labels = [each.text for each in page.tab.form.table.descendants() if isinstance(each, ui.label)]
        assert "follows" in labels and "batch_size: 4" in page.tab.form.config.text

    on_the_page(places, quick, story)


def test_every_key_is_found_and_edited(places: Places, quick: Quick) -> None:
    async def story(page: Opened) -> None:
        page.choose("flow")
        await page.complete()
        form, tree = page.tab.form, page.tab.form.tree
        form.all_keys.set_value(True)
        assert form.found.text.split()[0] == form.found.text.split()[2]  # all of them
        form.search.set_value("batch size")  # as the help says
        shown = [node["id"] for node in tree.nodes() if "value" in node]
        assert f"={BATCH}" in shown and len(shown) < 10
        assert not any("init_from" in node or "default_root_dir" in node for node in shown)
        with tree.client:
            for handler in tree._select_handlers:
                handler(type("Event", (), {"value": f"={BATCH}"}))
        assert form.editor is not None and form.editor.element.value == "16"
        form.editor.element.set_value("8")
        assert page.field("Batch size").element.value == "8" and page.rows() == [(BATCH, "16", "8")]
        assert [node["value"] for node in tree.nodes() if node.get("edited")] == ["8"]
        form.editor.element.set_value("/etc/passwd")
        assert "no paths" in form.editor.element.error and BATCH in page.tab.draft.problems
        page.field("Batch size").element.set_value("4")
        assert form.editor.element.value == "4" and form.editor.element.error is None
        form._undo(BATCH)
        assert (form.editor.element.value, page.field("Batch size").element.value, page.rows()) == ("16", "16", [])

    on_the_page(places, quick, story)


def test_layers_of_the_custom_mode(places: Places, quick: Quick) -> None:
    async def story(page: Opened) -> None:
        page.choose("audiosr", "finetune_unet_only")
        await page.complete()
        mode, layers = page.field("Training mode"), page.field("Layers (custom)")
        assert mode.box.visible and not layers.box.visible
        mode.element.set_value("custom")
        assert layers.box.visible
        layers.element.set_value(["out"])
        assert page.tab.draft.changes() == {"model": {"init_args": {"trains": ["out"]}}}
        mode.element.set_value("full")
        assert page.tab.draft.value("model.init_args.trains") == "full" and not layers.box.visible

    on_the_page(places, quick, story)


def test_one_step_is_tried(places: Places, quick: Quick) -> None:
    async def story(page: Opened) -> None:
        page.choose("flow")
        await page.complete()
        page.press(page.tab.form.try_button)
        await page.until(lambda: "It works" in page.said())
        quick.call = lambda *args: (1, "recipe: build failed  out of memory\nzoo: error: it does not fit")  # type: ignore
        page.press(page.tab.form.try_button)
        await page.until(lambda: "does not fit" in page.said())
        labels = [each.text for each in page.tab.form.rows.descendants() if isinstance(each, ui.label)]
        assert labels == ["build failed out of memory"]

    on_the_page(places, quick, story)


def test_a_recipe_that_cannot_be_read_says_so(places: Places, quick: Quick) -> None:
    async def story(page: Opened) -> None:
        def parse(configs: Sequence[Path], changes: Mapping[str, Any]) -> str:
            raise ValueError("zoo: error: unknown key x")

        quick.parse = parse  # type: ignore[method-assign]
        page.choose("flow")
        await page.until(lambda: "unknown key x" in page.said())
        assert not page.tab.form.start_button.enabled

    on_the_page(places, quick, story)


def test_what_a_recipe_needs_is_told(places: Places, quick: Quick, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ZOO_DATA", raising=False)

    async def story(page: Opened) -> None:
        page.choose("hifigan", "base")
        await page.complete()
        texts = [each.text for each in page.tab.about.descendants() if isinstance(each, ui.label)]
        assert any("the paper's recipe" in text for text in texts)
        assert "Reads data/ljspeech (data.init_args.root): not there." in texts
        page.tab.draft.set("data.init_args.root", as_text("data/mine"), places.rules())
        page.tab._describe()
        texts = [each.text for each in page.tab.about.descendants() if isinstance(each, ui.label)]
        assert "Reads data/mine (data.init_args.root): there." in texts

    on_the_page(places, quick, story)
