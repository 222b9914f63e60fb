import json
import os
from pathlib import Path

import numpy as np
import pytest

from zoo.audio.parallel import map_in_processes
from zoo.common.journal import Journal, begin_output, pending_items


def test_a_torn_row_is_left_out_and_the_last_of_a_key_counts(tmp_path):
    path = tmp_path / "new" / "rows.jsonl"
    journal = Journal(path)
    assert journal.open() == {}
    for row in ({"key": "a", "value": 1}, {"key": "b", "value": np.float32(2.0)}, {"key": "a", "value": "ü\u2028"}):
        journal.add(row)
    lines = ['{"key": "a", "value": 1}', '{"key": "b", "value": 2.0}', '{"key": "a", "value": "\\u00fc\\u2028"}', ""]
    assert path.read_text() == "\n".join(lines)
    with path.open("a") as file:
        file.write('{"key": "c", "va')
    again = Journal(path)
    assert again.open() == {"a": {"key": "a", "value": "ü\u2028"}, "b": {"key": "b", "value": 2.0}}
    assert again.close(["b", "c", "a"]) == [again.rows["b"], again.rows["a"]]
    assert path.read_text() == "\n".join(lines[1:])


def test_row_after_a_torn_line_is_kept(tmp_path):
    path = tmp_path / "rows.jsonl"
    Journal(path).append({"key": "a"})
    with path.open("a") as file:
        file.write('{"key": "b", "va')
    Journal(path).append({"key": "c"})
    assert [row["key"] for row in Journal(path).read()] == ["a", "c"]


def test_only_rows_of_the_keys_that_are_done_are_kept(tmp_path):
    journal = Journal(tmp_path / "rows.jsonl")
    for key, status in (("a", "done"), ("b", "failed"), ("c", "done")):
        journal.append({"key": key, "status": status})
    assert list(journal.open({"a", "b"})) == ["a"]
    assert [row["key"] for row in journal.read()] == ["a"]


def test_processes_share_items_by_their_results(tmp_path):
    paths = [tmp_path / str(number) for number in range(5)]
    paths[2].touch()
    assert pending_items(paths, Path.exists, 0, 2) == [paths[0], paths[4]]
    assert pending_items(paths, Path.exists, 1, 2) == [paths[1], paths[3]]
    assert len(pending_items(paths, Path.exists)) == 4


def test_other_settings_are_named(tmp_path):
    output = tmp_path / "out"
    settings = {"count": 3, "solver": {"steps": 5}, "note": "a"}
    begin_output(output, settings, notes=("note",))
    assert json.loads((output / "settings.json").read_text()) == settings
    begin_output(output, {**settings, "note": "b"}, notes=("note",))
    with pytest.raises(ValueError, match=r"other settings: solver.steps 5 \(now 6\); choose another folder"):
        begin_output(output, {**settings, "solver": {"steps": 6}}, notes=("note",))
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(ValueError, match="holds something else"):
        begin_output(tmp_path, {})


def process(item):
    return item, os.getpid()


def test_workers_answer_in_order():
    assert list(map_in_processes(process, [1, 2], 0)) == [(1, os.getpid()), (2, os.getpid())]
    results = list(map_in_processes(process, list(range(7)), 2))
    assert [item for item, _ in results] == list(range(7)) and os.getpid() not in {process for _, process in results}


def die(item):
    os._exit(1)


def test_a_dead_worker_is_named():
    with pytest.raises(ChildProcessError, match="fewer --workers"):
        list(map_in_processes(die, [1, 2], 2))
