"""Names of the page: what lies below a folder, and what does not."""

import io
import os
from pathlib import Path

import pytest

from zoo.ui.folders import Folders, resolve_below

OUTSIDE = ["", ".", "..", "../x", "a/../..", "/etc/passwd", "link/secret", "loop/x", "a\0b", "a/" * 2000, "~/../../x"]


@pytest.mark.parametrize("name", OUTSIDE)
def test_names_outside_are_refused(tmp_path: Path, name: str) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "link").symlink_to(tmp_path)
    (root / "loop").symlink_to(root / "loop")
    with pytest.raises(ValueError, match="is not below"):
        resolve_below(root, name)


def test_what_the_page_offers_is_found_by_name(folders: Folders) -> None:
    for name in ("speech/train", "pictures"):
        (folders.data / name).mkdir(parents=True)
    run = folders.runs / "flow/smoke/1"
    run.mkdir(parents=True)
    for name in (b"step_00000001.ckpt", b"step_00000002-\xff.ckpt"):
        (run / os.fsdecode(name)).touch()
    assert list(folders.data_sets()) == ["pictures", "speech", "speech/train"]
    assert "smoke" in folders.recipes("hifigan") and {"cpu", "gpu"} <= folders.machine_presets().keys()
    assert folders.checkpoint("flow/smoke/1", "") == run
    assert folders.checkpoint("flow/smoke/1", "step_00000001.ckpt") == run / "step_00000001.ckpt"
    for name in ("step_00000002.ckpt", os.fsdecode(b"step_00000002-\xff.ckpt"), "../1/step_00000001.ckpt"):
        with pytest.raises(ValueError, match="no checkpoint"):
            folders.checkpoint("flow/smoke/1", name)
    with pytest.raises(ValueError, match="no run"):
        folders.run("flow/smoke/2")


def test_uploads_are_deleted_by_their_keys(folders: Folders) -> None:
    first, second = (folders.store_upload("a.wav", io.BytesIO(b"RIFF")) for _ in range(2))
    folders.delete_uploads({first, "..", "absent"})
    assert folders.upload(second).read_bytes() == b"RIFF"
    for key in (first, "..", "../../runs"):
        with pytest.raises(ValueError):
            folders.upload(key)
