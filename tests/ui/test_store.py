import io
from pathlib import Path

import pytest

from zoo.ui.store import KEPT_JOBS, Store, UploadError


def test_uploads_get_harmless_names_and_jobs_are_few(tmp_path: Path) -> None:
    store = Store(tmp_path, quota=2**20)
    with pytest.raises(ValueError, match="upload a file"):
        store.new_job("me", "/etc/hostname")
    for _ in range(KEPT_JOBS + 2):
        upload = store.add("me", "../.. &ä$(x).wav", io.BytesIO(b"1234567890"))
        assert upload.parent.parent == store.uploads / "me"
        job, source, target = store.new_job("me", str(upload))
        assert source.name == "x_.wav" and source.read_bytes() == b"1234567890"
    assert len(list((store.jobs / "me").iterdir())) == KEPT_JOBS
    kept = len(list(tmp_path.rglob("*")))
    assert store.room() == 2**20 - 4096 * kept  # small files take a block each
    (target / "x.wav").touch()
    assert store.results("me", job) == ["x.wav"]
    for bad in ("../in/x_.wav", "y.wav"):
        with pytest.raises(ValueError, match="there is no result"):
            store.result("me", job, bad)


def test_what_a_job_takes_makes_room_and_a_sessions_end_deletes_it(tmp_path: Path) -> None:
    store = Store(tmp_path, quota=2**20, max_files=1)
    first = store.add("me", "a.wav", io.BytesIO(b"1"))
    with pytest.raises(UploadError, match="1 uploads at a time"):
        store.add("me", "a.wav", io.BytesIO(b"1"))
    other = store.add("other", "a.wav", io.BytesIO(b"1"))
    with pytest.raises(ValueError, match="no upload of this session"):
        store.new_job("me", str(other))
    assert other.is_file()
    _, source, target = store.new_job("me", str(first))
    second = store.add("me", "a.wav", io.BytesIO(b"1"))
    store.end("me")
    assert not any(path.exists() for path in (second, source, target)) and other.is_file()
    with pytest.raises(ValueError, match="no upload of this session"):
        store.owned("me", str(second))
