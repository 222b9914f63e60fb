import io
import os
from pathlib import Path

import pytest

from zoo.ui.store import KEPT_JOBS, Store, UploadError


def test_uploads_get_harmless_names_and_results_are_few(tmp_path: Path) -> None:
    store = Store(tmp_path, quota=2**20)
    for _ in range(KEPT_JOBS + 2):
        key = store.add("me", "../.. &ä$(x).wav", io.BytesIO(b"1234567890"))
        upload = store.owned("me", key)
        assert upload.name == "x_.wav" and upload.parent.parent == store.uploads / "me"
        assert upload.read_bytes() == b"1234567890"
        job, target = store.new_job("me")
    assert len(list((store.jobs / "me").iterdir())) == KEPT_JOBS
    kept = len(list(tmp_path.rglob("*")))
    assert store.room() == 2**20 - 4096 * kept  # small files take a block each
    (target / "x.wav").touch()
    (target / "link.wav").symlink_to(upload)
    assert store.result("me", job, "x.wav") == target / "x.wav"
    for bad in ("../x.wav", "y.wav", "link.wav", ".."):
        with pytest.raises(ValueError, match="there is no result"):
            store.result("me", job, bad)
    with pytest.raises(ValueError, match="there is no result"):
        store.result("other", job, "x.wav")


def test_an_upload_is_its_sessions_as_long_as_it_is_what_came_in(tmp_path: Path) -> None:
    store = Store(tmp_path, quota=2**20, max_files=4)
    first, second, third, fourth = (store.add("me", "a.wav", io.BytesIO(b"1")) for _ in range(4))
    with pytest.raises(UploadError, match="4 uploads at a time"):
        store.add("me", "a.wav", io.BytesIO(b"1"))
    theirs = store.add("other", "a.wav", io.BytesIO(b"1"))
    paths = [store.owned("me", key) for key in (first, second, third, fourth)]
    (tmp_path / "secret").write_text("2")
    paths[0].unlink()
    paths[0].symlink_to(tmp_path / "secret")
    paths[1].write_bytes(b"longer")
    paths[2].unlink()
    os.link(tmp_path / "secret", paths[2])
    for key in (first, second, third, theirs, str(paths[3]), "/etc/hostname", "..", "", None, 3, [fourth]):
        with pytest.raises(ValueError, match="no upload of this session"):
            store.owned("me", key)
    _, target = store.new_job("me")
    store.end("me")
    assert not any(path.exists() for path in (*paths, target)) and store.owned("other", theirs).is_file()
    with pytest.raises(ValueError, match="no upload of this session"):
        store.owned("me", fourth)
