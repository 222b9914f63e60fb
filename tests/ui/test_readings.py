"""What a run says of itself: why it failed, its speed, samples, columns; and the machine."""

from pathlib import Path

import pytest

from zoo.ui.curves import chosen_columns
from zoo.ui.readings import Speed, parse_nvidia, read_table, samples_of, speed_of, steps_of, why_failed

TRACE = """2026-11-22 17:40:31,494 ERROR   zoo.training.callbacks.train_log: ended by ValueError
Traceback (most recent call last):
  File "x.py", line 1, in <module>
ValueError: lower data.init_args.batch_size
"""


def test_why_a_run_failed_names_the_key(tmp_path: Path) -> None:
    assert why_failed(tmp_path) == ""
    (tmp_path / "train.log").write_text("ValueError: of an earlier attempt\n" + TRACE)
    assert why_failed(tmp_path) == "ValueError: lower data.init_args.batch_size"
    (tmp_path / "console.log").write_text("some noise\nzoo: error: Parser key \"lr\": Expected a <class 'float'>\n")
    assert why_failed(tmp_path) == "Parser key \"lr\": Expected a <class 'float'>"
    (tmp_path / "console.log").write_text("Traceback\ntorch.OutOfMemoryError: CUDA out of memory\n")
    assert why_failed(tmp_path) == "torch.OutOfMemoryError: CUDA out of memory"
    (tmp_path / "console.log").write_text("step 10/20\n")
    assert why_failed(tmp_path) == "ValueError: lower data.init_args.batch_size"


def test_pace_is_that_of_the_newest_line() -> None:
    line = "INFO    zoo.training.callbacks.progress: step {}/20 · 50 % · {} it/s · ETA {} · loss 1.41"
    log = "\n".join(("noise", line.format(5, 2, "9 s"), line.format(10, 3.67, "1 h 02 min"), "more · ETA 0 s"))
    assert speed_of(log) == Speed("3.67 it/s", "1 h 02 min")
    assert speed_of("") == speed_of("progress: nothing") == Speed()


def test_samples_are_what_a_browser_can_show_and_tables(tmp_path: Path) -> None:
    for step in ("step_00000020", "step_00000010", "step_x", "other"):
        (tmp_path / "media" / step).mkdir(parents=True)
    assert steps_of(tmp_path) == ["step_00000010", "step_00000020"]
    folder = tmp_path / "media" / "step_00000010"
    for name in ("a.wav", "b.gif", "c.html", ".hidden.png"):
        (folder / name).write_bytes(b"")
    (folder / "table.csv").write_text('question,"a ""b"""\n"two\nlines",<img onerror=x>\n')
    (folder / "link.csv").symlink_to("/etc/passwd")
    table = (["question", 'a "b"'], [["two\nlines", "<img onerror=x>"]])
    assert samples_of(tmp_path, "step_00000010") == (["a.wav", "b.gif"], {"table": table})
    with pytest.raises(ValueError):
        samples_of(tmp_path, "..")


def test_a_large_table_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "large.csv"
    path.write_text("a,b\n" + "x" * 10_000 + ",2\n" + "1,2\n" * 1000)
    columns, rows = read_table(path)
    assert columns == ["a", "b"] and len(rows) == 100 and len(rows[0][0]) == 2000
    assert read_table(tmp_path / "missing.csv") == ([], [])


def test_chosen_columns_are_as_in_the_file(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text("step,epoch,a,b,c\n0,0,0.10000000000000001,,1\n1,0,,nan,1\n2,0,,,1\n")
    expected = b"step,epoch,b,a,=no\n0,0,,0.10000000000000001,\n1,0,nan,,\n"
    assert chosen_columns(tmp_path, ["b", "a", "=no", "b"]) == expected
    assert chosen_columns(tmp_path / "missing", ["a"]) == b"step,epoch,a\n"


def test_gpus_that_do_not_tell_are_left_out() -> None:
    assert [load.percent for load in parse_nvidia("H200, 35, 1000, 144384\nOdd, [N/A], 1, 2\n")] == [35.0]
