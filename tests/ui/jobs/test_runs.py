import os
import shutil
import time
from pathlib import Path

import pytest

from zoo.common.locks import lock_folder
from zoo.ui.jobs import runs
from zoo.ui.jobs.trainings import Trainings
from zoo.ui.places import Places


@pytest.fixture
def run(places: Places) -> str:
    name = places.new_run("toy", "smoke")
    (places.run(name) / "step_00000001.ckpt").write_bytes(b"12345")
    (places.run(name) / "media").mkdir()
    (places.run(name) / "media" / "x.wav").write_bytes(b"678")
    return name


def test_labels_and_tags_are_kept_with_the_run(places: Places, run: str) -> None:
    folder = places.run(run)
    assert runs.read_notes(folder) == runs.Notes()
    runs.rename(places, run, " größer, <b>lauter</b> ")
    runs.tag(places, run, ["a", "b", "a"])
    assert runs.read_notes(folder) == runs.Notes("größer, <b>lauter</b>", ("a", "b"))
    runs.rename(places, run, None)
    assert runs.read_notes(folder) == runs.Notes(None, ("a", "b"))
    for label in ("", " ", "x" * 65, "a\nb", "a\x1b[0m", "a\u202eb", "\ud800"):
        with pytest.raises(ValueError, match="1 to 64 printable"):
            runs.rename(places, run, label)
        with pytest.raises(ValueError, match="1 to 64 printable"):
            runs.tag(places, run, [label])
    with pytest.raises(ValueError, match="at most 8 tags"):
        runs.tag(places, run, list("123456789"))
    with pytest.raises(ValueError, match=r"is no name"):
        runs.rename(places, "../../etc", "x")
    assert [path.name for path in folder.glob(".*")] == []


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"label": 3, "tags": []}', '{"label": "a\\u202e", "tags": []}', "9" * 70000]
)
def test_notes_of_nonsense_are_none(places: Places, run: str, text: str) -> None:
    (places.run(run) / "notes.json").write_text(text)
    assert runs.read_notes(places.run(run)) == runs.Notes()
    runs.rename(places, run, "x")
    assert runs.read_notes(places.run(run)).label == "x"


def test_notes_that_never_end(places: Places, run: str) -> None:
    os.mkfifo(places.run(run) / "notes.json")
    assert runs.read_notes(places.run(run)) == runs.Notes()
    (places.run(run) / "notes.json").unlink()
    (places.run(run) / "notes.json").symlink_to("/dev/zero")
    assert runs.read_notes(places.run(run)) == runs.Notes()
    runs.tag(places, run, ["x"])
    assert not (places.run(run) / "notes.json").is_symlink()


def test_size_and_deletion_follow_no_link(places: Places, trainings: Trainings, run: str, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_bytes(b"x" * 10**6)
    folder = places.run(run)
    (folder / "link").symlink_to(outside)
    (folder / "media" / "file").symlink_to(outside / "kept")
    assert 8 <= runs.size(places, run) < 1000
    (folder.parent / "alias").symlink_to(folder)
    with pytest.raises(ValueError, match="is a link"):
        trainings.delete("toy/smoke/alias")
    (places.runs / "toys").symlink_to(places.runs / "toy")
    with pytest.raises(ValueError, match="is a link"):
        trainings.delete(run.replace("toy", "toys"))
    with pytest.raises(ValueError, match="there is no run"):
        trainings.delete("toy/smoke/x")
    trainings.delete(run)
    assert (outside / "kept").is_file() and places.list_runs() == []
    assert {path.name for path in folder.parent.iterdir()} == {"alias"}


def test_a_run_that_is_written_stays(places: Places, trainings: Trainings, run: str) -> None:
    with lock_folder(places.run(run), "fit"), pytest.raises(ValueError, match="is active"):
        trainings.delete(run)
    (places.run(run) / "metrics.csv").touch()
    with pytest.raises(ValueError, match="is active"):
        trainings.delete(run)
    os.utime(places.run(run) / "metrics.csv", (0, 0))
    busy = places.new_run("toy", "smoke")
    trainings.start([places.work / "recipe.yaml"], {}, busy, "me")
    trainings.resume(run, "me")
    for name, state in ((busy, "running"), (run, "queued")):
        with pytest.raises(ValueError, match=f"is {state}: stop or cancel"):
            trainings.delete(name)
    trainings.cancel(run)
    trainings.delete(run)
    assert places.list_runs() == [busy]


def test_a_deletion_that_a_kill_has_cut_short(
    places: Places, trainings: Trainings, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = places.run(run)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", lambda *_, **__: None)
        trainings.delete(run)
    left = list(folder.parent.iterdir())
    assert len(left) == 1 and left[0].name.startswith(".deleted-") and places.list_runs() == []
    Trainings(places)
    assert list(folder.parent.iterdir()) == []
    assert time.time_ns() > int(left[0].name.rpartition("-")[2])
