from pathlib import Path

import pytest

from zoo.ui.places import Places


def test_names_cannot_leave_their_folders(places: Places, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "config.yaml").touch()
    (places.runs / "a" / "b").mkdir(parents=True)
    (places.runs / "a" / "b" / "link").symlink_to(outside)
    assert places.list_runs() == []
    for name in ("a/b/link", "../..", "a/b/..", "a/../../outside", "/etc/x/y", "a/b", "", "a/b/c\0", "a/b/" + "c" * 65):
        with pytest.raises(ValueError, match=r"there is no run|is no name"):
            places.run(name)
    run = places.new_run("a", "b")
    assert places.new_run("a", "b") != run
    (places.run(run) / "step_1.ckpt").touch()
    for name in ("../step_1.ckpt", "step_2.ckpt"):
        with pytest.raises(ValueError, match="there is no checkpoint"):
            places.checkpoint(run, name)
    with pytest.raises(ValueError, match="there is no recipe"):
        places.recipe("hifigan", "../flow/smoke")
