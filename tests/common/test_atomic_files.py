"""Files and folders that appear complete: what an interrupt or a kill leaves at every step."""

import errno
import os
import subprocess
import sys

import pytest

from zoo.common import atomic_files
from zoo.common.atomic_files import delete_temporary_files, replace_atomically, write_atomic


def write(path, text):
    with replace_atomically(path) as folder:
        folder.mkdir()
        (folder / "file").write_text(text)


def test_files_are_synced_also_where_folders_cannot_be(tmp_path, monkeypatch):
    fsync, synced = os.fsync, []

    def refuse_folders(descriptor):
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if os.path.isdir(path):
            raise OSError(errno.EINVAL, "no sync of folders")
        synced.append(os.path.basename(path))
        fsync(descriptor)

    monkeypatch.setattr(atomic_files.os, "fsync", refuse_folders)
    write_atomic(tmp_path / "single", lambda file: file.write(b"content"))
    write(tmp_path / "folder", "new")
    assert (tmp_path / "single").read_bytes() == b"content" and synced[-1] == "file" and len(synced) == 2


def exit_at_line(number):
    """Let the process exit before the line of this number that zoo.common.atomic_files executes."""
    lines = 0

    def trace(frame, event, argument):
        nonlocal lines
        if frame.f_code.co_filename != atomic_files.__file__:
            return None
        lines += event == "line"
        if lines == number:
            os._exit(9)
        return trace

    sys.settrace(trace)


KILLED = """
import os, sys
from pathlib import Path
from tests.common.test_atomic_files import exit_at_line, write
for number in range(1, 200):
    path = Path(sys.argv[1], str(number), "folder")
    write(path, "old")
    child = os.fork()
    if child == 0:
        exit_at_line(number)
        write(path, "new")
        os._exit(0)
    if os.waitpid(child, 0)[1] == 0:
        break
"""


def test_process_killed_at_any_line_leaves_old_or_new(tmp_path):
    """The script imports no torch, so it may fork."""
    subprocess.run([sys.executable, "-c", KILLED, tmp_path], check=True, timeout=120)
    paths = [path / "folder" for path in tmp_path.iterdir()]
    assert 20 < len(paths) < 199 and not all(path.exists() for path in paths)  # the moment between the two renames
    for path in paths:
        delete_temporary_files(path.parent)
        assert (path / "file").read_text() in ("old", "new")
        assert [each.name for each in path.parent.iterdir()] == ["folder"]


def test_link_to_a_folder_is_replaced_and_its_target_stays(tmp_path):
    write(tmp_path / "target", "old")
    (tmp_path / "folder").symlink_to("target")
    write(tmp_path / "folder", "new")
    assert not (tmp_path / "folder").is_symlink() and (tmp_path / "folder/file").read_text() == "new"
    assert (tmp_path / "target/file").read_text() == "old"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["folder", "target"]


def test_folder_does_not_replace_a_file(tmp_path):
    (tmp_path / "file").write_text("old")
    with pytest.raises(NotADirectoryError):
        write(tmp_path / "file", "new")
    assert (tmp_path / "file").read_text() == "old" and [each.name for each in tmp_path.iterdir()] == ["file"]
