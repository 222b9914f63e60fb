"""What the files of a run tell: why it failed, how fast it is, its samples."""

import os
import time
from pathlib import Path

import pytest

from tests.ui.conftest import make_run
from zoo.common.locks import lock_folder
from zoo.ui.folders import Folders
from zoo.ui.processes.training_queue import ProcessRecord, write_record
from zoo.ui.run_files import (
    delete_run,
    failure_reason,
    read_label,
    read_log,
    sample_files,
    sample_steps,
    training_speed,
    write_label,
)

TRACEBACK = """progress 12
Traceback (most recent call last):
  File "b.py", line 2, in f
    fail()
    ~~~~^^
RuntimeError: CUDA error: out of memory
"""


@pytest.mark.parametrize(
    ("console", "log", "reason"),
    [
        ("zoo: error: lower data.init_args.batch_size\n", "", "lower data.init_args.batch_size"),
        (TRACEBACK + "validation error: 0.3\n", "", "RuntimeError: CUDA error: out of memory"),
        (TRACEBACK + "zoo: error: too little memory\n", "", "too little memory"),
        ("validation error: 0.3\nloss error: 1\n", "", ""),
        ("", "x\nended by ValueError\nTraceback ...\nValueError: a value\n", "ValueError: a value"),
    ],
)
def test_the_reason_is_the_error_and_no_line_that_mentions_one(
    tmp_path: Path, console: str, log: str, reason: str
) -> None:
    (tmp_path / "console.log").write_text(console)
    (tmp_path / "train.log").write_text(log)
    assert failure_reason(tmp_path) == reason


def test_what_an_earlier_process_wrote_is_neither_reason_nor_speed(tmp_path: Path) -> None:
    (tmp_path / "console.log").write_text("zoo: error: earlier\n")
    (tmp_path / "train.log").write_text("2020-01-01 00:00:00,000 INFO progress: step 5 of 9 · 2.5 it/s\n")
    assert (failure_reason(tmp_path), training_speed(tmp_path)) == ("earlier", "2.5 it/s")
    write_record(tmp_path, ProcessRecord(1, time.time(), console_start=(tmp_path / "console.log").stat().st_size))
    assert (failure_reason(tmp_path), training_speed(tmp_path)) == ("", "")


def test_log_speed_and_samples_of_a_run(tmp_path: Path) -> None:
    assert (read_log(tmp_path, True), training_speed(tmp_path), sample_steps(tmp_path)) == ("", "", [])
    (tmp_path / "console.log").write_text("on the console\n")
    assert read_log(tmp_path, False) == "on the console"
    (tmp_path / "train.log").write_text(
        "INFO progress: step 5 of 9 · loss 1 · 2.5 it/s · ETA 3 min · validation 1/9 · 2 s/it · ETA 9 s\n"
    )
    assert training_speed(tmp_path) == "2.5 it/s · ETA 3 min"
    assert "console" in read_log(tmp_path, True) and "console" not in read_log(tmp_path, False)
    for step in ("step_00000010", "step_00000002", "step_x"):
        (tmp_path / "media" / step).mkdir(parents=True)
    (tmp_path / "media" / "step_00000011").symlink_to("/etc")
    assert sample_steps(tmp_path) == ["step_00000002", "step_00000010"]
    folder = tmp_path / "media" / "step_00000010"
    for name in ("b.png", "a.wav", "notes.txt", os.fsdecode(b"\xff.wav"), os.fsdecode(b"\xff.csv")):
        (folder / name).touch()
    os.mkfifo(folder / "pipe.csv")
    (folder / "link.csv").symlink_to("/etc/hostname")
    (folder / "answers.csv").write_text("question,answer\n<b>,2\n")
    assert sample_files(tmp_path, "step_00000010") == (
        ["a.wav", "b.png"],
        {"answers": (["question", "answer"], [["<b>", "2"]])},
    )


def test_labels_are_one_short_line(tmp_path: Path) -> None:
    assert read_label(tmp_path) == ""
    write_label(tmp_path, "  best\nso far " + "x" * 99)
    assert read_label(tmp_path) == ("best so far " + "x" * 99)[:64]
    (tmp_path / "label.txt").write_bytes(b"\xff")
    assert read_label(tmp_path) == "\ufffd"
    (tmp_path / "label.txt").unlink()
    (tmp_path / "label.txt").symlink_to("/dev/zero")
    assert read_label(tmp_path) == "\0" * 64


def test_a_run_is_deleted_unless_a_command_writes_to_it(folders: Folders) -> None:
    folder = make_run(folders, "flow/smoke/1")
    with lock_folder(folder, "fit"), pytest.raises(ValueError, match="fit"):
        delete_run(folders, "flow/smoke/1")
    (folders.runs / "flow/smoke/2").symlink_to(folder)
    with pytest.raises(ValueError, match="link"):
        delete_run(folders, "flow/smoke/2")
    inner = make_run(folders, "flow/smoke/1/inner")
    with lock_folder(inner, "fit"), pytest.raises(ValueError, match="holds another run: inner"):
        delete_run(folders, "flow/smoke/1")  # in its first steps
    (inner / "step_00000001.ckpt").touch()
    with pytest.raises(ValueError, match="holds another run: inner"):
        delete_run(folders, "flow/smoke/1")
    delete_run(folders, "flow/smoke/1/inner")
    delete_run(folders, "flow/smoke/1")
    assert [path.name for path in folder.parent.iterdir()] == ["2"]
    for name in ("flow/smoke/1", "..", "flow/../.."):
        with pytest.raises(ValueError):
            delete_run(folders, name)
    assert folders.data.is_dir()
