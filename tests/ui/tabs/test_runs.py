"""The tab Runs without a browser: what it shows, what its buttons do, what hostile names and other sessions cannot."""

import asyncio
import contextlib
import io
import json
import os
import shutil
import threading
import time
import zipfile
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nicegui", reason="needs the extra `ui`")

from nicegui import ElementFilter, ui
from nicegui.testing import User
from nicegui.testing.user_interaction import UserInteraction
from nicegui.testing.user_simulation import user_simulation

from tests.ui.conftest import shared_of
from tests.ui.test_board import make, write
from zoo.ui.board import Board
from zoo.ui.exports import Exports, offers_onnx
from zoo.ui.jobs.runs import read_notes, rename, tag
from zoo.ui.jobs.trainings import Trainings
from zoo.ui.places import Places
from zoo.ui.store import MIB, Store
from zoo.ui.tabs.runs import RunsTab, filtered
from zoo.ui.visit import Shared, Visit

ONE, TWO = "flow/smoke/20260101-000001", "hifigan/base/20260101-000002"
HOSTILE = ["<img src=x onerror=alert(1)>", "{{ 7*7 }}", "\u202egnp.exe", "'\"><script>alert(1)</script>", "${HOME}"]


@pytest.fixture
def shared(places: Places, trainings: Trainings) -> Shared:
    for number, name in enumerate((ONE, TWO)):
        folder = make(places, name, 100 * (number + 1))
        write(folder, "train.log", "fit finished at step 3\n")
        write(folder, "process.json", json.dumps({"exit_code": 0, "owner": "me" if number else "they"}))
    board = Board(places, trainings)
    board.scan()
    return shared_of(places, trainings, Store(places.temp, MIB), board)


@contextlib.asynccontextmanager
async def opened(shared: Shared, session: str = "me") -> AsyncIterator[tuple[User, RunsTab]]:
    """A page with this tab alone."""
    made: list[RunsTab] = []

    def root() -> None:
        visit = Visit(shared, session)
        visit.tabs = ui.tabs(value="runs")
        made.append(RunsTab(visit))

    async with user_simulation(root) as user:
        await user.open("/")
        await user.should_see(f"{len(shared.board.rows)} runs", retries=50)
        yield user, made[-1]


def in_page(shared: Shared, steps: Callable[[User, RunsTab], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        async with opened(shared) as (user, tab):
            await steps(user, tab)

    asyncio.run(asyncio.wait_for(run(), 120))


def press(user: User, text: str) -> None:
    """Click the newest visible button with this text."""
    assert user.client is not None
    with user.client:
        shown = ElementFilter(kind=ui.button, only_visible=True, local_scope=False)
        found = [each for each in shown if each.text == text]
    UserInteraction(user, {max(found, key=lambda each: each.id)}, text).click()


async def until(holds: Callable[[], Any]) -> None:
    end = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < end
        await asyncio.sleep(0.05)


def listed(tab: RunsTab) -> list[str]:
    return [line.name for line in tab.body.default_slot.children]


def test_the_list_sorts_filters_and_follows(shared: Shared, places: Places) -> None:
    async def steps(user: User, tab: RunsTab) -> None:
        assert tab._lines[TWO].cells["owner"].text == "you" and tab._lines[ONE].cells["owner"].text == "another session"
        assert tab._lines[ONE].cells["step"].text == "1 of 100" and "0.5" in tab._lines[ONE].cells["best"].text
        tab.sort_by("step")
        tab.sort_by("run")
        assert listed(tab) == [ONE, TWO] and tab.heads["run"].props["aria-sort"] == "ascending"
        tab.sort_by("run")
        assert listed(tab) == [TWO, ONE] and tab.heads["run"].props["aria-sort"] == "descending"
        user.find(ui.input).type("HIFI finished")
        assert listed(tab) == [TWO]
        await user.should_see("1 of 2 runs")
        user.find(ui.input).clear()
        make(places, "flow/smoke/20260101-000003")
        shared.board.scan()
        await until(lambda: len(listed(tab)) == 3)
        shutil.rmtree(places.runs / ONE)
        shared.board.scan()
        await until(lambda: ONE not in listed(tab))

    in_page(shared, steps)


def test_filters() -> None:
    from types import SimpleNamespace

    def row(name: str, word: str, *tags: str) -> Any:
        run = SimpleNamespace(recipe=name.rpartition("/")[0], monitor="val/loss")
        return SimpleNamespace(name=name, word=word, tags=tags, label=None, run=run)

    rows = [row(ONE, "finished", "good"), row(TWO, "failed"), row("flow/x/1", "failed", "good", "old")]
    assert filtered(rows, "", "any", "any", "any") == rows
    assert filtered(rows, "val/LOSS 1", "flow", "any", "good") == [rows[0], rows[2]]
    assert filtered(rows, "", "any", "failed", "good") == [rows[2]]
    assert filtered(rows, "nothing", "any", "any", "any") == []


def test_notes_are_saved_shown_and_kept_from_harm(shared: Shared, places: Places) -> None:
    async def steps(user: User, tab: RunsTab) -> None:
        press(user, "20260101-000001")
        assert tab.visit.run == ONE
        for text in HOSTILE[:2] + HOSTILE[3:]:
            tab.details.label.set_value(text)
            tab.details.tags.set_value(f"{text}, b ,, b")
            press(user, "Save notes")
            await until(lambda text=text: read_notes(places.runs / ONE).tags == (text, "b"))
            await until(lambda text=text: tab.details.name.text == text)
        for text in (HOSTILE[2], "x" * 65, "a\nb"):
            tab.details.label.set_value(text)
            press(user, "Save notes")
            await user.should_see("printable characters", retries=50)
        rename(places, ONE, "from elsewhere")
        tag(places, ONE, ["seen"])
        shared.board.scan()
        await until(lambda: tab.details.label.value == "from elsewhere" and tab.details.tags.value == "seen")
        press(user, "All runs")
        await user.should_see("from elsewhere", retries=50)
        await user.should_see("seen")

    in_page(shared, steps)


def test_a_run_is_deleted_after_a_question_that_names_it(shared: Shared, places: Places) -> None:
    async def steps(user: User, tab: RunsTab) -> None:
        press(user, "20260101-000001")
        press(user, "Delete …")
        await user.should_see(f"{ONE}: ", retries=50)
        press(user, "Keep")
        await asyncio.sleep(0.3)
        assert (places.runs / ONE).is_dir()
        press(user, "Delete …")
        await user.should_see("came from another session", retries=50)
        press(user, "Delete")
        await until(lambda: not (places.runs / ONE).exists())
        await until(lambda: listed(tab) == [TWO])
        assert tab.list.visible

    in_page(shared, steps)


def test_what_is_written_to_is_not_deleted(shared: Shared, places: Places) -> None:
    from zoo.common.locks import lock_folder

    async def steps(user: User, tab: RunsTab) -> None:
        press(user, "20260101-000001")
        with lock_folder(places.runs / ONE, "fit"):
            press(user, "Delete …")
            await user.should_see("Delete this run?", retries=50)
            press(user, "Delete")
            await user.should_see("stop or cancel it first", retries=50)
        assert (places.runs / ONE / "config.yaml").is_file()

    in_page(shared, steps)


def test_what_another_session_deleted_meanwhile_is_told_in_one_line(shared: Shared, places: Places) -> None:
    async def steps(user: User, tab: RunsTab) -> None:
        press(user, "20260101-000001")
        shutil.rmtree(places.runs / ONE)
        for button in ("Save notes", "Inspect", "Export"):
            press(user, button)
        await until(lambda: sum("there is no run" in str(note) for note in user.notify.messages) >= 3)
        shared.board.scan()
        await user.should_see(f"{ONE} was deleted", retries=50)
        await until(lambda: tab.list.visible)

    in_page(shared, steps)


def test_inspect_and_config(shared: Shared, places: Places) -> None:
    write(places.runs / ONE, "step_00000001.ckpt", "x")
    write(places.runs / ONE, "config.yaml", "label: <script>alert(1)</script>\n")
    shared.board.scan()

    async def steps(user: User, tab: RunsTab) -> None:
        tab.open(ONE)
        await user.should_see("Checkpoints", retries=50)
        await until(lambda: tab.details.inspect.enabled and tab.details._sound)
        press(user, "Inspect")
        await user.should_see(f"said inspect {ONE}", retries=100)
        tab.details.checkpoint.set_value("step_00000001.ckpt")
        press(user, "Inspect")
        await user.should_see(f"said inspect {ONE}/step_00000001.ckpt", retries=100)
        tab.details.config.set_value(True)
        await user.should_see("label: <script>", retries=50)

    in_page(shared, steps)


def test_two_are_compared_and_laid_over_each_other(shared: Shared) -> None:
    async def steps(user: User, tab: RunsTab) -> None:
        tab._lines[ONE].box.set_value(True)
        assert not tab.compare_button.enabled
        tab._lines[TWO].box.set_value(True)
        await user.should_see("2 runs selected")
        press(user, "Compare")
        await user.should_see("2 runs compared", retries=50)
        shown = [element.content for element in tab.compared.content.descendants() if isinstance(element, ui.html)]
        assert any("trainer.max_steps" in text and "<td>100</td><td>200</td>" in text for text in shown)
        press(user, "Curves in Watch")
        assert (tab.visit.run, tab.visit.beside, tab.visit.tabs.value) == (ONE, [TWO], "watch")
        tab.visit.choose(TWO)
        assert tab.visit.beside == []

    in_page(shared, steps)


def test_the_queue_is_seen_cancelled_and_adopted(shared: Shared, places: Places, trainings: Trainings) -> None:
    recipe = next(iter(places.recipes("flow").values()))
    for number in (1, 2, 3):
        trainings.start([recipe], {}, places.new_run("flow", "smoke"), "me" if number < 3 else "they")
    shared.board.scan()

    async def steps(user: User, tab: RunsTab) -> None:
        await user.should_see("1 running, 2 queued (1 training at a time)", retries=50)
        running, *late = [job.name for job in tab.jobs.default_slot.children]
        await until(lambda: "number 1 in the queue" in tab._jobs[late[0]].said.text)
        owners = {name: tab._jobs[name].said.text.rpartition(" · ")[2] for name in late}
        theirs = next(name for name, owner in owners.items() if owner == "another session")
        mine = next(name for name, owner in owners.items() if owner == "you")
        await tab._jobs[mine]._cancel()
        await until(lambda: mine not in tab._jobs)
        assert not (places.runs / mine).exists()
        asking = asyncio.create_task(_within(user, tab._jobs[theirs]._cancel))
        await user.should_see("was queued by another session", retries=50)
        press(user, "Cancel it")
        await asking
        await until(lambda: theirs not in tab._jobs)
        folder = make(places, "flow/smoke/left")
        write(folder, "process.json", json.dumps({"queued": 1.0, "server": "1 x 1", "configs": [str(recipe)]}))
        shared.board.scan()
        await user.should_see("starts when it is queued again", retries=50)
        press(user, "Queue again")
        await until(lambda: trainings.state("flow/smoke/left") == "queued")
        await user.should_see("number 1 in the queue", retries=50)
        tab._jobs[running].stop._handle_event(
            {"args": None, "listener_id": next(iter(tab._jobs[running].stop._event_listeners))}
        )
        await until(lambda: trainings.state(running) in ("stopping", "stopped"))

    try:
        in_page(shared, steps)
    finally:
        end(trainings, shared.board)


async def _within(user: User, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    assert user.client is not None
    with user.client:
        await work()


def end(trainings: Trainings, board: Board) -> None:
    """Stop what a test has started."""
    board.scan()
    for work in (trainings.cancel, trainings.stop):  # what is queued first: else its turn comes
        for name in board.rows:
            with contextlib.suppress(ValueError):
                work(name)
    for child in trainings._children.values():
        child.process.wait(60)
    trainings.tick()


EXPORT = """
import pathlib, sys, time
args = sys.argv[1:]
assert args[0] == "export"
if "slow" in args[1]:
    time.sleep(60)
if "bad" in args[1]:
    sys.exit("zoo: error: " + args[1] + " has no ONNX export")
folder = pathlib.Path(args[2])
(folder / "frozen").mkdir(parents=True)
(folder / "model.safetensors").write_bytes(b"weights" * 1000)
(folder / "frozen/config.json").write_text(" ".join(args[3:]))
(folder / "link").symlink_to("/etc/hostname")
"""


@pytest.fixture
def exports(places: Places) -> Exports:
    import sys

    script = places.work / "export.py"
    script.write_text(EXPORT)
    for name in ("good", "bad", "slow"):
        write(make(places, f"flow/smoke/{name}"), "step_00000001.ckpt", "x")
    return Exports(places, Trainings(places, (), (sys.executable, str(script))))


def wait(holds: Callable[[], Any]) -> None:
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_exports_are_whole_or_not_there(exports: Exports, places: Places) -> None:
    run = "flow/smoke/good"
    for _ in range(2):  # again over the former one
        exports.start(run, "step_00000001.ckpt", False, True, "me")
        with pytest.raises(ValueError, match="being written"):
            exports.start(run, "", True, False, "me")
        with pytest.raises(ValueError, match="being written"):
            exports.delete_run(run)
        wait(lambda: not exports.under_way(run))
        assert exports.last(run).sound, exports.last(run).said
    assert list(exports.finished(run)) == ["step_00000001-raw-onnx"]
    assert not list((places.runs / run / "exports").glob(".*"))
    content = b"".join(exports.zipped(run, "step_00000001-raw-onnx"))
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        assert archive.testzip() is None
        held = {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}
    assert held == {"model.safetensors": b"weights" * 1000, "frozen/config.json": b"--ema=false --onnx=true"}
    assert content == b"".join(exports.zipped(run, "step_00000001-raw-onnx"))


def test_a_failed_or_cancelled_export_leaves_nothing(exports: Exports, places: Places) -> None:
    exports.start("flow/smoke/bad", "", True, True, "me")
    exports.start("flow/smoke/slow", "", True, False, "me")
    with pytest.raises(ValueError, match="as many as may"):
        exports.start("flow/smoke/good", "", True, False, "me")
    wait(lambda: not exports.under_way("flow/smoke/bad"))
    assert exports.last("flow/smoke/bad").said == "zoo: error: flow/smoke/bad has no ONNX export"
    wait(lambda: exports.trainings._helpers)
    exports.end_session("they")
    assert exports.under_way("flow/smoke/slow")
    exports.end_session("me")
    wait(lambda: not exports.under_way("flow/smoke/slow"))
    assert exports.last("flow/smoke/slow").said == "cancelled" and not exports.trainings._helpers
    for name in ("bad", "slow"):
        assert not (places.runs / "flow/smoke" / name / "exports").exists()


def test_exports_stay_in_the_run(exports: Exports, places: Places, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / "mine").mkdir(parents=True)
    (outside / "mine/secret").write_text("secret")
    run = "flow/smoke/good"
    (places.runs / run / "exports").symlink_to(outside)
    assert exports.finished(run) == {}
    exports.start(run, "", True, False, "me")
    wait(lambda: not exports.under_way(run))
    assert "link" in exports.last(run).said and [path.name for path in outside.iterdir()] == ["mine"]
    (places.runs / run / "exports").unlink()
    (places.runs / run / "exports").mkdir()
    (places.runs / run / "exports/mine").symlink_to(outside / "mine")
    (places.runs / run / "exports/newest").symlink_to(outside / "mine")
    assert exports.finished(run) == {}
    for name in ("mine", "newest", "..", "../mine", "", "a/b", ".making-1"):
        with pytest.raises(ValueError):
            exports.zipped(run, name)
    exports.start(run, "", True, False, "me")
    wait(lambda: not exports.under_way(run))
    assert (outside / "mine/secret").read_text() == "secret" and not (outside / "mine/model.safetensors").exists()
    for bad in ("../x", "step.ckpt", "/etc/hostname", "exports"):
        with pytest.raises(ValueError):
            exports.start(run, bad, True, False, "me")


def test_onnx_is_offered_where_the_system_has_it() -> None:
    pytest.importorskip("onnx")
    assert offers_onnx("zoo.hifigan.HiFiGANTask") and offers_onnx("zoo.miipher.VocoderTask")
    for task in ("zoo.flow.FlowTask", "", "zoo", "zoo.../../x.y", "os.path.join", "zoo.nothing.Task"):
        assert not offers_onnx(task)


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "../../x", "flow/../..", "/etc/passwd", "flow/smoke/..", "flow/smoke/x/../..", "a/b/c/d", "a//b"],
)
def test_names_that_lead_elsewhere_are_no_runs(shared: Shared, places: Places, name: str) -> None:
    for work in (
        shared.exports.delete_run,
        lambda name: rename(places, name, "a"),
        lambda name: tag(places, name, []),
        lambda name: shared.exports.start(name, "", True, False, "me"),
        shared.exports.finished,
    ):
        with pytest.raises(ValueError):
            work(name)
    assert set(places.list_runs()) == {ONE, TWO}


def test_deleting_follows_no_link(shared: Shared, places: Places, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    write(outside / "flow/smoke", "config.yaml", "a: 1")
    (places.runs / "flow/smoke/out").symlink_to(outside / "flow/smoke")
    (places.runs / "flow/smoke/in").symlink_to(places.runs / TWO)
    (places.runs / ONE / "media").symlink_to(outside)
    (places.runs / ONE / "step_00000001.ckpt").symlink_to(outside / "flow")
    for name in ("flow/smoke/out", "flow/smoke/in"):
        with pytest.raises(ValueError):
            shared.exports.delete_run(name)
    shared.exports.delete_run(ONE)
    assert not (places.runs / ONE).exists()
    assert (outside / "flow/smoke/config.yaml").is_file() and (places.runs / TWO / "config.yaml").is_file()


def test_two_sessions_delete_at_once(shared: Shared, places: Places, trainings: Trainings) -> None:
    """Also from two servers over the same runs: one of them is told that there is none."""
    other = Exports(places, Trainings(places))
    said: list[str] = []

    def delete(exports: Exports, name: str) -> None:
        try:
            exports.delete_run(name)
            said.append("gone")
        except ValueError as error:
            said.append(str(error))

    for number in range(5):
        name = f"flow/smoke/n{number}"
        for path in make(places, name).iterdir():
            os.utime(path, (1e9, 1e9))  # nobody has written for a while
        said.clear()
        threads = [threading.Thread(target=delete, args=(each, name)) for each in (shared.exports, other, other)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert said.count("gone") == 1 and sum("there is no run" in line for line in said) == 2, said
        assert all("\n" not in line for line in said)
        assert not (places.runs / name).exists() and not list(places.runs.glob("flow/smoke/.deleted-*"))


def test_a_training_that_starts_is_not_deleted(shared: Shared, places: Places, trainings: Trainings) -> None:
    """Whichever comes first: the folder is whole with its training, or gone without one."""
    recipe = next(iter(places.recipes("flow").values()))
    try:
        for _ in range(4):
            run = places.new_run("flow", "smoke")
            deleted: list[str] = []

            def delete(run: str = run, deleted: list[str] = deleted) -> None:
                with contextlib.suppress(ValueError):
                    shared.exports.delete_run(run)
                    deleted.append(run)

            thread = threading.Thread(target=delete)
            thread.start()
            with contextlib.suppress(ValueError):
                trainings.start([recipe], {}, run, "me")
            thread.join()
            assert (places.runs / run).exists() == (not deleted)
            if not deleted:
                assert trainings.state(run) in ("running", "queued")
            else:
                assert run not in trainings._queue and run not in trainings._children
    finally:
        end(trainings, shared.board)
