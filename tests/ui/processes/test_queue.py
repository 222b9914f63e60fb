"""Trainings: order, stop, resume, and a later page that finds them."""

import os
import signal
import time
from collections.abc import Iterator

import psutil
import pytest
import yaml

from tests.harness import wait_until
from tests.ui.browser import kill_trainings
from tests.ui.conftest import make_queue, make_run
from zoo.common.locks import lock_folder
from zoo.ui.folders import Folders
from zoo.ui.processes.training_queue import ProcessRecord, TrainingQueue, read_record, write_record


@pytest.fixture(autouse=True)
def no_process_is_left(folders: Folders) -> Iterator[None]:
    yield
    kill_trainings(folders.work)


def start(queue: TrainingQueue, recipe: str = "flow/smoke", **changes: object) -> str:
    return queue.start(recipe, [queue.folders.recipes("flow")["smoke"]], changes)


def is_ready(queue: TrainingQueue, run: str) -> bool:
    console = queue.folders.runs / run / "console.log"
    return console.is_file() and "ready" in console.read_text()


def test_first_in_first_out(queue: TrainingQueue) -> None:
    runs = [start(queue, seed_everything=number) for number in range(3)]
    assert len(set(runs)) == 3 and list(queue.waiting) == runs[1:]
    wait_until(lambda: is_ready(queue, runs[0]))
    folder = queue.folders.runs / runs[0]
    assert yaml.safe_load((folder / "changes.yaml").read_text()) == {"seed_everything": 0}
    record = read_record(folder)
    assert record and record.is_running() and record.command[2] == "fit"
    assert record.command[-1] == f"--trainer.default_root_dir={folder}"
    assert not (queue.folders.runs / runs[1]).exists()  # what waits has no folder yet
    queue.cancel(runs[1])
    queue.stop(runs[0])
    wait_until(lambda: not queue.is_busy(runs[0]))
    wait_until(lambda: is_ready(queue, runs[2]))
    record = read_record(folder)
    assert record and (record.exit_code, record.stopping) == (143, True)
    with pytest.raises(ValueError, match="not queued"):
        queue.cancel(runs[2])


def test_a_second_stop_kills(queue: TrainingQueue) -> None:
    run = start(queue, "deaf/smoke")
    wait_until(lambda: is_ready(queue, run))
    queue.stop(run)
    time.sleep(0.5)
    assert queue.is_busy(run)
    queue.stop(run)
    wait_until(lambda: not queue.is_busy(run))
    record = read_record(queue.folders.runs / run)
    assert record and record.exit_code == -signal.SIGKILL


def test_a_later_page_finds_and_stops_a_training(folders: Folders) -> None:
    first = make_queue(folders)
    run = start(first)
    wait_until(lambda: is_ready(first, run))
    later = make_queue(folders)  # the first page was killed
    assert later.is_busy(run)
    waiting = start(later)
    assert list(later.waiting) == [waiting]
    later.stop(run)
    wait_until(lambda: not later.is_busy(run))
    wait_until(lambda: is_ready(later, waiting))


def test_a_recycled_number_is_another_process(queue: TrainingQueue) -> None:
    folder = make_run(queue.folders, "flow/smoke/1")
    process = psutil.Process()
    assert ProcessRecord(os.getpid(), process.create_time()).is_running()
    for record in (
        ProcessRecord(os.getpid(), process.create_time() - 60),
        ProcessRecord(os.getpid(), process.create_time(), exit_code=0),
        ProcessRecord(2**22 + 1, process.create_time()),
        ProcessRecord(os.getpid(), process.create_time(), [f"--ckpt_path={queue.folders.runs}"]),  # of a copied folder
    ):
        write_record(folder, record)
        with pytest.raises(ValueError, match="no running process"):
            queue.stop("flow/smoke/1")


def test_resume_goes_on_in_the_same_folder(queue: TrainingQueue) -> None:
    folder = make_run(queue.folders, "flow/smoke/1")
    with pytest.raises(ValueError, match="no checkpoint"):
        queue.resume("flow/smoke/1")
    (folder / "step_00000004.ckpt").touch()
    with lock_folder(folder, "fit"), pytest.raises(ValueError, match="running"):
        queue.resume("flow/smoke/1")
    write_record(folder, ProcessRecord(os.getpid(), psutil.Process().create_time()))  # of another server
    with pytest.raises(ValueError, match="running"):
        queue.resume("flow/smoke/1")
    (folder / "process.json").unlink()
    outside = queue.folders.work / "outside"
    outside.write_text("kept")
    (folder / "console.log").symlink_to(outside)
    with pytest.raises(ValueError, match=r"console\.log is a link out of the run folder"):
        queue.resume("flow/smoke/1")
    assert outside.read_text() == "kept"
    (folder / "console.log").unlink()
    queue.resume("flow/smoke/1", ["--trainer.max_steps=20"])
    wait_until(lambda: is_ready(queue, "flow/smoke/1"))
    record = read_record(folder)
    assert record and list(record.command[2:]) == ["fit", f"--ckpt_path={folder}", "--trainer.max_steps=20"]
    with pytest.raises(ValueError, match="no run"):
        queue.resume("flow/smoke/2")


def test_a_start_that_is_impossible_is_an_error(folders: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = make_queue(folders)
    run = start(queue)
    monkeypatch.setattr(time, "strftime", lambda form: "20260101-000000")  # the next two start within a second
    waiting = start(queue)
    kill_trainings(folders.work)
    (folders.runs / "flow" / "smoke").rename(folders.runs / "gone")
    (folders.runs / "flow" / "smoke").touch()
    wait_until(lambda: not queue.is_busy(run))
    assert waiting in queue.launch_errors and not queue.waiting
    with pytest.raises(OSError, match="flow/smoke"):
        start(queue)
    assert list(queue.launch_errors) == [waiting]
