"""The list of runs: states, order, and that only what has changed is read again."""

import os
from typing import Any

import psutil
import pytest

from tests.ui.conftest import make_queue, make_run
from zoo.common.locks import lock_folder
from zoo.ui.folders import Folders
from zoo.ui.processes.training_queue import ProcessRecord, TrainingQueue, write_record
from zoo.ui.run_files import write_label
from zoo.ui.run_index import RunIndex

KNOWN_RUNS = {"pid": os.getpid(), "create_time": psutil.Process().create_time()}


@pytest.fixture
def index(folders: Folders, queue: TrainingQueue) -> RunIndex:
    return RunIndex(folders, queue)


def states(index: RunIndex) -> dict[str, str]:
    index.scan()
    return {name: row.state for name, row in index.rows.items()}


@pytest.mark.parametrize(
    ("rows", "record", "state"),
    [
        (4, None, "stopped"),
        (4, {}, "running"),
        (4, {"stopping": True}, "stopping"),
        (4, {"exit_code": 1}, "failed"),
        (0, {"exit_code": -9}, "failed"),
        (4, {"create_time": 1.0}, "stopped"),  # another process has the number now, and no page saw the end
        (0, {"create_time": 1.0}, "failed"),
    ],
)
def test_states(index: RunIndex, rows: int, record: dict[str, Any] | None, state: str) -> None:
    folder = make_run(index.folders, "flow/smoke/1", rows)
    (folder / "train.log").unlink()
    if record is not None:
        write_record(folder, ProcessRecord(**(KNOWN_RUNS | record)))
    assert states(index) == {"flow/smoke/1": state}


def test_the_newest_process_decides(index: RunIndex) -> None:
    folder = make_run(index.folders, "flow/smoke/1", 4)
    (folder / "train.log").write_text("INFO fit finished at step 4\n")
    write_record(folder, ProcessRecord(1, 1.0, exit_code=2))  # a resume that failed before it trained
    assert states(index) == {"flow/smoke/1": "failed"}
    (folder / "train.log").write_text("ERROR ended by KeyboardInterrupt\n")  # of `zoo fit` in a terminal, later
    assert states(index) == {"flow/smoke/1": "stopped"}


def test_a_start_that_failed_is_listed_and_links_are_not(index: RunIndex) -> None:
    folder = index.folders.runs / "flow/smoke/1"
    folder.mkdir(parents=True)
    (folder / "console.log").write_text("zoo: error: no such key\n")
    write_record(folder, ProcessRecord(1, 1.0, exit_code=2))
    outside = index.folders.work / "outside"
    outside.mkdir()
    (outside / "config.yaml").touch()
    (folder.parent / "link").symlink_to(outside)
    assert states(index) == {"flow/smoke/1": "failed"}


@pytest.mark.parametrize("name", ["config.yaml", "console.log", "process.json", "a.ckpt", ".zoo.lock"])
@pytest.mark.parametrize("target", [None, "/dev/zero", "/etc/hostname"])
def test_a_run_with_a_pipe_a_device_or_a_link_to_elsewhere_is_not_read(
    index: RunIndex, name: str, target: str | None
) -> None:
    folder = make_run(index.folders, "flow/smoke/1")
    make_run(index.folders, "flow/smoke/2")
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name) if target is None else (folder / name).symlink_to(target)
    with pytest.warns(UserWarning, match="flow/smoke/1 is not listed"):
        assert list(states(index)) == ["flow/smoke/2"]
    assert not make_queue(index.folders).is_busy("flow/smoke/1")
    (folder / name).unlink()
    (folder / name).symlink_to("config.yaml" if name != "config.yaml" else "train.log")
    assert states(index).keys() == {"flow/smoke/1", "flow/smoke/2"}


def test_queue_labels_and_runs_of_the_command_line(index: RunIndex) -> None:
    folder = make_run(index.folders, "flow/smoke/1")
    make_run(index.folders, "odd")  # of `--trainer.default_root_dir`
    index.queue.waiting["flow/smoke/2"] = [], {}
    index.queue.launch_errors["flow/smoke/3"] = "no space left"
    write_label(folder, "mine")
    index.scan()
    assert index.rows["flow/smoke/3"].state == "failed"
    assert next(iter(index.rows)) == "flow/smoke/2" and index.rows["flow/smoke/2"].position == 1
    assert index.rows["flow/smoke/1"].title == "mine" and index.rows["odd"].info.step == 4
    with lock_folder(folder, "fit"):
        assert states(index)["flow/smoke/1"] == "active"
    assert states(index)["flow/smoke/1"] == "stopped"
    assert index.rows["flow/smoke/1"].size > 100


def test_only_changed_runs_are_read(index: RunIndex) -> None:
    for name in "ab":
        make_run(index.folders, f"flow/smoke/{name}")
    index.scan()
    before = {name: row.info for name, row in index.rows.items()}
    with (index.folders.runs / "flow/smoke/a/metrics.csv").open("a") as file:
        file.write("4,0,1,1\n")
    index.scan()
    assert [name for name, row in index.rows.items() if row.info is not before[name]] == ["flow/smoke/a"]
