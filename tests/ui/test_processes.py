import io
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from zoo.ui.places import Places
from zoo.ui.processes import Trainings, last_error, read_record
from zoo.ui.store import KEPT_JOBS, Store, UploadError

pytestmark = pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")


def wait(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.fixture
def run(places: Places, trainings: Trainings) -> Iterator[str]:
    name = places.new_run("toy", "smoke")
    trainings.start([places.work / "recipe.yaml"], {"trainer": {"max_steps": 3}}, name)
    wait((places.run(name) / "train.log").is_file)
    yield name
    record = read_record(places.run(name))
    if record and record.process():
        os.kill(record.pid, signal.SIGKILL)


def test_a_training_is_stopped_and_goes_on(places: Places, trainings: Trainings, run: str) -> None:
    record = read_record(places.run(run))
    assert trainings.state(run) == "running"
    assert os.getsid(record.pid) == record.pid  # nothing that happens to the server's session reaches it
    assert "max_steps: 3" in (places.run(run) / "changes.yaml").read_text()
    with pytest.raises(ValueError, match="one process at a time"):
        trainings.resume(run)
    trainings.stop(run)
    wait(lambda: trainings.state(run) == "stopped")
    with pytest.raises(ValueError, match="no running process"):
        trainings.stop(run)
    trainings.resume(run)
    assert trainings.state(run) == "running"
    assert read_record(places.run(run)).command[-3:] == ["fit", "--ckpt_path", str(places.run(run))]


def test_a_new_server_finds_what_runs_and_stops_it(places: Places, trainings: Trainings, run: str) -> None:
    again = Trainings(places)
    assert again.state(run) == "running"
    again.stop(run)
    wait(lambda: again.state(run) == "ended")  # whose child it is not: nobody tells its exit code


def test_another_process_with_the_number_is_left_alone(places: Places, trainings: Trainings, run: str) -> None:
    path = places.run(run) / "process.json"
    old = json.loads(path.read_text())
    path.write_text(json.dumps(old | {"started": old["started"] - 100}))
    assert Trainings(places).state(run) == "ended"
    with pytest.raises(ValueError, match="no running process"):
        Trainings(places).stop(run)
    assert psutil.pid_exists(old["pid"])
    path.write_text(json.dumps(old))


def test_a_run_that_the_terminal_writes_is_not_resumed(places: Places, trainings: Trainings) -> None:
    folder = places.run(places.new_run("toy", "smoke"))
    (folder / "metrics.csv").write_text("step,epoch\n")
    (folder / "step_00000001.ckpt").touch()
    name = places.list_runs()[0]
    assert trainings.state(name) == "active"
    with pytest.raises(ValueError, match="one process"):
        trainings.resume(name)
    os.utime(folder / "metrics.csv", (0, 0))
    assert trainings.state(name) == "idle"


def test_commands_tell_their_end_and_inherit_no_secret(
    places: Places, trainings: Trainings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert trainings.call("inspect", "x") == (0, "said inspect x\n")
    assert trainings.parse([tmp_path / "bad.yaml"], {}).startswith("# said fit")
    assert list(trainings.follow(tmp_path / "out", "predict", "bad"))[-1] == 3
    assert last_error("Traceback\nzoo fit: error: no such key\n") == "zoo fit: error: no such key"
    monkeypatch.setenv("SECRET", "1")
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert not {"SECRET", "LOCAL_RANK"} & set(Trainings(places, ("SECRET",))._environment)


def test_leaving_the_page_ends_its_own_command_only(trainings: Trainings, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    following = trainings.follow(tmp_path / "out", "fit", f"--trainer.default_root_dir={tmp_path / 'folder'}")
    assert next(following) is None
    child = next(iter(trainings._helpers))
    wait((tmp_path / "folder" / "train.log").is_file)
    following.close()
    assert child.returncode == 143


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
