import asyncio
import os
import random
import shutil
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from zoo.ui import board as boards
from zoo.ui.board import Board
from zoo.ui.jobs.runs import rename, tag
from zoo.ui.jobs.trainings import Trainings
from zoo.ui.places import Places

CONFIG = "trainer:\n  max_steps: {steps}\ncheckpoints:\n  monitor: val/loss\n"
NAMES = [f"flow/{recipe}/run{number}" for recipe in ("smoke", "base") for number in range(4)]


def write(folder: Path, name: str, text: str, mode: str = "w") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / name).open(mode) as file:
        file.write(text)


def make(places: Places, name: str, steps: int = 3) -> Path:
    folder = places.runs / name
    write(folder, "config.yaml", CONFIG.format(steps=steps))
    write(folder, "metrics.csv", "step,epoch,val/loss\n0,0,0.5\n")
    return folder


def something(draw: random.Random, places: Places, name: str) -> None:
    """One thing that happens to a run folder."""
    folder = places.runs / name
    other = places.runs / draw.choice(NAMES)
    if not folder.is_dir():
        make(places, name, draw.randint(1, 9))
        return
    kind = draw.randrange(11)
    if kind == 0:
        write(folder, "metrics.csv", f"{draw.randint(1, 99)},0,{draw.random():.3f}\n", "a")
    elif kind == 1:
        write(folder, "config.yaml", CONFIG.format(steps=draw.randint(1, 9999)))
    elif kind == 2:
        write(folder, f"step_{draw.randint(1, 99):08d}.ckpt", "x")
    elif kind == 3:
        for path in folder.glob("*.ckpt"):
            path.unlink()
    elif kind == 4:
        write(folder, "train.log", draw.choice(("fit finished at step 3\n", "ended by ValueError\n", "on it\n")), "a")
    elif kind == 5:
        shutil.rmtree(folder)
    elif kind == 6 and not other.exists():
        other.parent.mkdir(parents=True, exist_ok=True)
        folder.rename(other)
    elif kind == 7:
        rename(places, name, draw.choice((None, "a", "b")))
    elif kind == 8:
        tag(places, name, draw.sample(["x", "y", "<b>"], draw.randrange(3)))
    elif kind == 9:
        text = draw.choice(('{"exit_code": 0}', '{"exit_code": 1}', '{"queued": 5.0}', "{", '{"owner": "me"}'))
        write(folder, "process.json", text)
    elif kind == 10:
        for name in ("metrics.csv", "config.yaml"):
            (folder / name).unlink(missing_ok=True)


def comparable(board: Board) -> dict[str, Any]:
    return {name: boards.replace(row, size=None) for name, row in board.rows.items()}


@pytest.mark.parametrize(("seed", "every"), [*((seed, 1) for seed in range(8)), (8, 3), (9, 8)])
def test_rows_after_any_events_are_those_of_a_fresh_read(
    places: Places, trainings: Trainings, seed: int, every: int
) -> None:
    draw, board = random.Random(seed), Board(places, trainings, every=every)
    for _ in range(40):
        for _ in range(draw.randrange(3)):
            something(draw, places, draw.choice(NAMES))
        for _ in range(every):
            board.scan()
        fresh = Board(places, trainings)
        fresh.scan()
        assert comparable(board) == comparable(fresh)
        assert list(board.rows) == list(fresh.rows)
        assert set(board.rows) == set(places.list_runs())


def test_sizes_follow(places: Places, trainings: Trainings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boards, "SIZE_SECONDS", 0.0)
    folder, board = make(places, NAMES[0]), Board(places, trainings, every=1)
    board.scan()
    before = board.rows[NAMES[0]].size
    assert before == sum(path.stat().st_size for path in folder.iterdir())
    write(folder, "step_00000001.ckpt", "12345")
    board.scan()
    assert board.rows[NAMES[0]].size == before + 5


def test_a_quiet_run_is_not_read_again(places: Places, trainings: Trainings, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, board, read = make(places, NAMES[0]), Board(places, trainings, every=1), []
    for path in folder.iterdir():
        os.utime(path, (1e9, 1e9))
    monkeypatch.setattr(boards, "read_run", lambda *args, inner=boards.read_run: read.append(args) or inner(*args))
    asked = []
    monkeypatch.setattr(trainings, "state", lambda name, inner=trainings.state: asked.append(name) or inner(name))
    version = board.version
    for _ in range(5):
        board.scan()
    assert len(read) == len(asked) == 1 and board.version == version + 1
    write(folder, "metrics.csv", "1,0,0.25\n", "a")
    board.scan()
    assert len(read) == 2 and board.rows[NAMES[0]].run.best == 0.25


def test_a_costly_record_is_read_less_often_but_its_state_is_new(
    places: Places, trainings: Trainings, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, board = make(places, NAMES[0]), Board(places, trainings, every=1)
    board.scan()
    board._known[NAMES[0]].cost = 60.0
    write(folder, "metrics.csv", "1,0,0.25\n", "a")
    write(folder, "process.json", '{"exit_code": 1}')
    board.scan()
    row = board.rows[NAMES[0]]
    assert row.run.best == 0.5 and row.state == "failed"
    board._known[NAMES[0]].cost = 0.0
    board.scan()
    assert board.rows[NAMES[0]].run.best == 0.25


def test_links_that_lead_outside_are_not_listed(places: Places, trainings: Trainings, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    make(places, NAMES[0])
    shutil.copytree(places.runs / "flow", outside)
    (places.runs / "flow/smoke/link").symlink_to(outside / "smoke/run0")
    (places.runs / "other").symlink_to(outside)
    (places.runs / "flow/again").symlink_to(places.runs / "flow/smoke")
    (places.runs / "flow/smoke/.hidden").mkdir()
    (places.runs / "flow/smoke/a b").mkdir()
    board = Board(places, trainings)
    board.scan()
    assert set(board.rows) == {NAMES[0], NAMES[0].replace("smoke", "again")} == set(places.list_runs())


@pytest.mark.parametrize("content", ["", "\0" * 99, "{", "[]", '{"label": "\\u0000", "tags": []}', '{"label": 5}'])
def test_what_makes_no_sense_is_no_reason_to_end(places: Places, trainings: Trainings, content: str) -> None:
    folder = make(places, NAMES[0])
    for name in ("notes.json", "process.json", "train.log", "metrics.csv", "config.yaml"):
        write(folder, name, content)
    (folder / "x.ckpt").mkdir()
    (folder / "y.ckpt").symlink_to("nowhere")
    board = Board(places, trainings)
    board.scan()
    row = board.rows[NAMES[0]]
    assert (row.label, row.tags, row.owner) == (None, (), None)


def test_a_folder_that_vanishes_while_it_is_read_is_left_out(
    places: Places, trainings: Trainings, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in NAMES[:3]:
        make(places, name)

    def vanishing(folder: Path, root: Path, inner: Any = boards.read_run) -> Any:
        if folder.name == "run1":
            shutil.rmtree(folder)
        return inner(folder, root)

    monkeypatch.setattr(boards, "read_run", vanishing)
    board = Board(places, trainings)
    board.scan()
    assert set(board.rows) == {NAMES[0], NAMES[2]}


def test_the_loop_goes_on_after_any_error_and_rests_while_no_page_is_open(
    places: Places, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ticks, scans, pages = [], [], ["one"]

    def tick() -> None:
        ticks.append(time.monotonic())
        if len(ticks) == 2:
            raise RuntimeError("of some kind")

    board = Board(places, SimpleNamespace(tick=tick), pages)
    monkeypatch.setattr(boards, "SCAN_SECONDS", 0.01)
    monkeypatch.setattr(boards, "machine_load", lambda: [])
    monkeypatch.setattr(board, "_timed_scan", lambda: scans.append(1) or 0.0)

    async def watched() -> None:
        task = asyncio.create_task(board.watch())
        while len(scans) < 5:
            await asyncio.sleep(0.01)
        pages.clear()
        await asyncio.sleep(0.02)
        before, ticked = len(scans), len(ticks)
        while len(ticks) < ticked + 5:
            await asyncio.sleep(0.01)
        assert len(scans) == before
        task.cancel()

    asyncio.run(asyncio.wait_for(watched(), 60))
    assert "of some kind" in caplog.text
