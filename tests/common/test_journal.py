import math
import os

import numpy as np
import pytest

from zoo.common.journal import Journal, Share, Table, format_error, write_part
from zoo.common.parallel import map_in_processes


def test_a_torn_row_is_left_out_and_the_last_of_a_key_counts(tmp_path):
    path = tmp_path / "new" / "rows.jsonl"
    journal = Journal(path)
    assert journal.begin() == {}
    for row in ({"key": "a", "value": 1}, {"key": "b", "value": np.float32(2.0)}, {"key": "a", "value": "ü\u2028"}):
        journal.add(row)
    lines = ['{"key": "a", "value": 1}', '{"key": "b", "value": 2.0}', '{"key": "a", "value": "ü\u2028"}', ""]
    assert path.read_text() == "\n".join(lines)
    with path.open("a") as file:
        file.write('{"key": "c", "va')
    again = Journal(path)
    assert again.begin() == {"a": {"key": "a", "value": "ü\u2028"}, "b": {"key": "b", "value": 2.0}}
    assert again.finish(["b", "c", "a"]) == [again.rows["b"], again.rows["a"]]
    assert path.read_text() == "\n".join(lines[1:])


def test_row_after_a_torn_line_is_kept(tmp_path):
    path = tmp_path / "rows.jsonl"
    Journal(path).append({"key": "a"})
    with path.open("a") as file:
        file.write('{"key": "b", "va')
    Journal(path).append({"key": "c"})
    assert [row["key"] for row in Journal(path).read()] == ["a", "c"]


def test_a_journal_of_another_head_is_empty(tmp_path):
    Journal(tmp_path / "list", head=b"one\n", ascii=True).write([[1, 0.5], ["ü"]])
    assert (tmp_path / "list").read_bytes() == b'one\n[1, 0.5]\n["\\u00fc"]\n'
    assert Journal(tmp_path / "list", head=b"one\n").read() == [[1, 0.5], ["ü"]]
    assert Journal(tmp_path / "list", head=b"two\n").read() == []


def test_only_wanted_rows_that_are_done_are_kept(tmp_path):
    for kind in (Journal(tmp_path / "rows.jsonl"), Table(tmp_path / "rows.csv", ("status",), ("value",))):
        kind.write([])
        for key, status in (("a", "done"), ("b", "failed"), ("c", "done")):
            kind.append({"key": key, "status": status, "value": 1.0})
        assert list(kind.begin({"a", "b"})) == ["a"]
        assert [row["key"] for row in kind.read()] == ["a"]


def test_a_table_holds_texts_and_numbers(tmp_path):
    table = Table(tmp_path / "rows.csv", ("name",), ("x", "y"))
    table.begin()
    table.add({"name": 'of "two"\nlines', "x": 1 / 3, "key": "k"})
    assert table.path.read_text() == 'name,x,y,key\n"of ""two""\nlines",0.3333333,nan,k\n'
    with table.path.open("a") as file:
        file.write("torn,0.5,0.")
    (row,) = table.read()
    assert (row["name"], row["x"], row["key"]) == ('of "two"\nlines', 0.3333333, "k") and math.isnan(row["y"])
    assert Table(table.path, ("name",), ("x",)).read() == []


def test_processes_share_items_by_their_results(tmp_path):
    paths = [tmp_path / str(number) for number in range(5)]
    paths[2].touch()
    shares = [Share(paths, lambda path: path.exists(), rank, 2) for rank in (0, 1)]
    assert shares[0].mine == paths[::2] and shares[0].owed == [paths[0], paths[4]]
    assert shares[1].owed == [paths[1], paths[3]]
    for path in shares[0].track("", progress=False):
        write_part(path, lambda file: file.write(b"x"))
    assert shares[0].missing() == shares[1].missing() == 2


def test_a_part_takes_what_a_killed_process_left_of_it_away(tmp_path):
    for name in (".part.tmp-1", ".other.tmp-1"):
        (tmp_path / name).touch()
    write_part(tmp_path / "part", lambda file: file.write(b"x"))
    assert sorted(path.name for path in tmp_path.iterdir()) == [".other.tmp-1", "part"]


def process(item):
    return item, os.getpid()


def test_workers_answer_in_order():
    assert list(map_in_processes(process, [1, 2], 0)) == [(1, os.getpid()), (2, os.getpid())]
    found = list(map_in_processes(process, list(range(7)), 2))
    assert [item for item, _ in found] == list(range(7)) and os.getpid() not in {process for _, process in found}


def die(item):
    os._exit(1)


def test_a_dead_worker_is_named():
    with pytest.raises(ChildProcessError, match="fewer --workers"):
        list(map_in_processes(die, [1, 2], 2))


def test_a_cause_is_one_line():
    assert format_error(ValueError("two\n  lines")) == "ValueError: two lines"
