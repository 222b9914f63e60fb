import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.ui.jobs.conftest import wait
from zoo.common.locks import lock_folder
from zoo.ui.jobs.commands import last_error
from zoo.ui.jobs.records import read_record
from zoo.ui.jobs.trainings import Trainings
from zoo.ui.places import Places

pytestmark = pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")


@pytest.fixture
def run(places: Places, trainings: Trainings) -> Iterator[str]:
    name = places.new_run("toy", "smoke")
    trainings.start([places.work / "recipe.yaml"], {"trainer": {"max_steps": 3}}, name, "me")
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
        trainings.resume(run, "me")
    trainings.stop(run)
    wait(lambda: trainings.state(run) == "stopped")
    with pytest.raises(ValueError, match="no running process"):
        trainings.stop(run)
    trainings.resume(run, "me")
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
    path.write_text(json.dumps(old | {"birth": old["birth"][:-1] + "_"}))
    assert Trainings(places).state(run) == "ended"
    with pytest.raises(ValueError, match="no running process"):
        Trainings(places).stop(run)
    # of a former version: number and time alone can be guessed
    path.write_text(json.dumps({key: old[key] for key in ("pid", "started", "command", "exit_code", "stopping")}))
    with pytest.raises(ValueError, match="no running process"):
        Trainings(places).stop(run)
    with lock_folder(places.run(run), "fit"):
        assert Trainings(places).state(run) == "active"
    assert psutil.pid_exists(old["pid"])
    path.write_text(json.dumps(old))


def test_a_run_that_the_terminal_writes_is_not_resumed(places: Places, trainings: Trainings) -> None:
    folder = places.run(places.new_run("toy", "smoke"))
    (folder / "metrics.csv").write_text("step,epoch\n")
    (folder / "step_00000001.ckpt").touch()
    name = places.list_runs()[0]
    assert trainings.state(name) == "active"
    with pytest.raises(ValueError, match="one process"):
        trainings.resume(name, "me")
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
