"""Labels, tags and deletion of runs."""

from pathlib import Path

import pytest

from tests.ui.conftest import make_run
from zoo.common.locks import lock_folder
from zoo.ui.folders import Folders
from zoo.ui.run_actions import Notes, check_notes, delete_run, read_notes, write_notes


def test_notes_are_read_as_written(tmp_path: Path) -> None:
    notes = check_notes("  best so far ", ["a", " a", "", "<b>"])
    assert notes == Notes("best so far", ("a", "<b>"))
    write_notes(tmp_path, notes)
    assert read_notes(tmp_path) == notes


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"label": 1, "tags": []}', '{"label": "a", "tags": [1]}', "\x00"])
def test_broken_notes_are_empty(tmp_path: Path, text: str) -> None:
    (tmp_path / "notes.json").write_text(text)
    assert read_notes(tmp_path) == Notes()


@pytest.mark.parametrize(("label", "tags"), [("x" * 65, []), ("a\nb", []), ("", ["x" * 65]), ("", list("abcdefghi"))])
def test_long_or_many_notes_are_refused(label: str, tags: list[str]) -> None:
    with pytest.raises(ValueError):
        check_notes(label, tags)


def test_a_run_is_deleted_unless_a_command_writes_to_it(folders: Folders) -> None:
    folder = make_run(folders, "flow/smoke/1")
    with lock_folder(folder, "fit"), pytest.raises(ValueError, match="fit"):
        delete_run(folders, "flow/smoke/1")
    (folders.runs / "flow/smoke/2").symlink_to(folder)
    with pytest.raises(ValueError, match="link"):
        delete_run(folders, "flow/smoke/2")
    delete_run(folders, "flow/smoke/1")
    assert [path.name for path in folder.parent.iterdir()] == ["2"]
    for name in ("flow/smoke/1", "..", "flow/../.."):
        with pytest.raises(ValueError):
            delete_run(folders, name)
    assert folders.data.is_dir()
