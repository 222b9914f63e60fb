"""What the files of a run tell: why it failed, how fast it is, its samples."""

from pathlib import Path

import pytest

from zoo.ui.run_files import failure_reason, read_csv_table, read_log, sample_files, sample_steps, training_speed

TRACEBACK = """progress 12
Traceback (most recent call last):
  File "a.py", line 1, in <module>
    raise ValueError("first")
ValueError: first

During handling of the above exception, another exception occurred:

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
        (TRACEBACK, "", "RuntimeError: CUDA error: out of memory"),
        (TRACEBACK + "validation error: 0.3\n", "", "RuntimeError: CUDA error: out of memory"),
        (TRACEBACK + "zoo: error: too little memory\n", "", "too little memory"),
        ("validation error: 0.3\nloss error: 1\n", "", ""),
        ("", "x\nended by ValueError\nTraceback ...\nValueError: a value\n", "ValueError: a value"),
        ("", "", ""),
    ],
)
def test_the_reason_is_the_error_and_no_line_that_mentions_one(
    tmp_path: Path, console: str, log: str, reason: str
) -> None:
    (tmp_path / "console.log").write_text(console)
    (tmp_path / "train.log").write_text(log)
    assert failure_reason(tmp_path) == reason


def test_log_speed_and_samples_of_a_run(tmp_path: Path) -> None:
    assert (read_log(tmp_path, True), training_speed(tmp_path), sample_steps(tmp_path)) == ("", ("", ""), [])
    (tmp_path / "console.log").write_text("on the console\n")
    assert read_log(tmp_path, False) == "on the console"
    (tmp_path / "train.log").write_text("INFO progress: step 5 of 9 · loss 1 · 2.5 it/s · ETA 3 min\n")
    assert training_speed(tmp_path) == ("2.5 it/s", "3 min")
    assert "console" in read_log(tmp_path, True) and "console" not in read_log(tmp_path, False)
    for step in ("step_00000010", "step_00000002", "step_x"):
        (tmp_path / "media" / step).mkdir(parents=True)
    assert sample_steps(tmp_path) == ["step_00000002", "step_00000010"]
    folder = tmp_path / "media" / "step_00000010"
    for name in ("b.png", "a.wav", "notes.txt"):
        (folder / name).touch()
    (folder / "answers.csv").write_text("question,answer\n<b>,2\n")
    assert sample_files(tmp_path, "step_00000010") == (
        ["a.wav", "b.png"],
        {"answers": (["question", "answer"], [["<b>", "2"]])},
    )
    with pytest.raises(ValueError):
        sample_files(tmp_path, "../..")


def test_tables_are_cut(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("x\n" + f"{'y' * 9000}\n" * 300)
    columns, rows = read_csv_table(path)
    assert columns == ["x"] and len(rows) == 100 and {len(row[0]) for row in rows} == {2000}
    assert read_csv_table(tmp_path / "absent.csv") == ([], [])
