"""Whose turn it is, and what is left when something goes wrong in between."""

import json
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from tests.ui.jobs.conftest import command_of, ended, wait
from zoo.ui.jobs.records import Record, identity, read_record, write_record
from zoo.ui.jobs.trainings import Queue, Trainings
from zoo.ui.places import Places

pytestmark = pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")


def start(trainings: Trainings, owner: str = "me") -> str:
    run = trainings.places.new_run("toy", "smoke")
    trainings.start([trainings.places.work / "recipe.yaml"], {}, run, owner)
    return run


def end(trainings: Trainings, run: str) -> None:
    """Stop a training that has begun to listen."""
    wait((trainings.places.run(run) / "train.log").is_file)
    trainings.stop(run)
    wait(lambda: trainings.state(run) == "stopped")


def states(trainings: Trainings, *runs: str) -> list[str]:
    return [trainings.state(run) for run in runs]


def test_sessions_take_turns(trainings: Trainings) -> None:
    first, second, third = (start(trainings, "a") for _ in range(3))
    other = start(trainings, "b")
    assert states(trainings, first, second, third, other) == ["running", "queued", "queued", "queued"]
    assert [trainings.position(run) for run in (first, second, third, other)] == [None, 2, 3, 1]
    assert [trainings.owner(run) for run in (first, other)] == ["a", "b"]
    assert set(trainings.places.list_runs()) == {first, second, third, other}
    end(trainings, first)
    assert states(trainings, first, second, third, other) == ["stopped", "queued", "queued", "running"]
    end(trainings, other)
    assert trainings.state(second) == "running" and trainings.position(third) == 1


def test_a_session_has_its_share(trainings: Trainings) -> None:
    trainings.queue = Queue(most=2)
    start(trainings), start(trainings)
    with pytest.raises(ValueError, match=r"2 trainings .* \(--max_trainings\)"):
        start(trainings)
    assert len(list(trainings.places.runs.glob("*/*/*/"))) == 2
    start(trainings, "other")
    trainings.tick()


def test_twenty_starts_of_two_sessions(places: Places) -> None:
    script = places.work / "short.py"
    script.write_text("import time; time.sleep(0.1)")
    servers = [Trainings(places, (), (sys.executable, str(script)), Queue(at_once=2, most=10)) for _ in range(2)]
    runs, most = [], 0

    def five(owner: int) -> None:
        runs.extend(start(servers[owner], str(owner)) for _ in range(5))

    threads = [threading.Thread(target=five, args=(owner,)) for owner in (0, 1, 0, 1)]
    for thread in threads:
        thread.start()
    stop = time.monotonic() + 60
    while any(each.is_alive() for each in threads) or set(states(servers[0], *runs)) != {"finished"}:
        for server in servers:
            server.tick()
        alive = [each for each in psutil.Process().children() if str(script) in " ".join(command_of(each))]
        most = max(most, len(alive))
        assert time.monotonic() < stop, states(servers[0], *runs)
    assert len(set(runs)) == 20 and most == 2
    for server in servers:
        assert not server._children and not server._queue and not server._order
        assert not [each for each in psutil.Process().children() if each.status() == psutil.STATUS_ZOMBIE]


def test_an_end_is_noted_though_nobody_looks(trainings: Trainings, places: Places) -> None:
    run = start(trainings)
    pid = read_record(places.run(run)).pid
    wait((places.run(run) / "train.log").is_file)
    os.kill(pid, signal.SIGKILL)

    def noted() -> bool:
        trainings.tick()
        return read_record(places.run(run)).exit_code == -9

    wait(noted)
    assert not psutil.pid_exists(pid)
    assert Trainings(places).state(run) == "failed"


def test_what_is_cancelled_leaves_what_was_trained(trainings: Trainings, places: Places) -> None:
    trained = start(trainings)
    end(trainings, trained)
    before = read_record(places.run(trained))
    running, fresh = start(trainings), start(trainings)
    trainings.resume(trained, "me")
    assert states(trainings, running, fresh, trained) == ["running", "queued", "queued"]
    with pytest.raises(ValueError, match="is queued: one process"):
        trainings.resume(trained, "me")
    with pytest.raises(ValueError, match="no running process"):
        trainings.stop(fresh)
    folder = places.run(fresh)
    trainings.cancel(fresh)
    trainings.cancel(trained)
    assert not folder.exists() and [each.name for each in folder.parent.iterdir()].count(".deleted") == 0
    assert trainings.state(trained) == "stopped" and read_record(places.run(trained)) == before
    with pytest.raises(ValueError, match="is running, not queued"):
        trainings.cancel(running)
    assert trainings._order == []


def test_what_a_killed_server_has_queued_waits(trainings: Trainings, places: Places, serve: Callable) -> None:
    server = serve("""
        server = Trainings(places, (), program)
        for _ in range(4):
            server.start([recipe], {"seed_everything": 1}, places.new_run("flow", "smoke"), "old")
        (work / "ready").touch()
        time.sleep(60)
    """)
    begun, *queued = sorted(places.list_runs(), key=lambda run: read_record(places.run(run)).queued or 0)
    assert states(trainings, begun, *queued) == ["running", *["queued"] * 3]  # seen from another server
    trainings.tick()
    assert trainings.position(queued[0]) is None
    server.kill()
    server.wait()
    trainings.tick()
    assert states(trainings, begun, *queued) == ["running", *["waiting"] * 3]
    with pytest.raises(ValueError, match="is waiting: one process"):
        trainings.resume(queued[0], "me")

    trainings.cancel(queued[0])
    with pytest.raises(ValueError, match="there is no run"):
        trainings.state(queued[0])
    folder = places.run(queued[1])
    write_record(folder, replace(read_record(folder), configs=["/etc/passwd"]))
    with pytest.raises(ValueError, match="no recipes"):
        trainings.adopt(queued[1], "me")

    another, adopted = Trainings(places, (), trainings._program), []

    def adopt(by: Trainings) -> None:
        try:
            by.adopt(queued[2], "me")
            adopted.append(by)
        except ValueError:
            pass

    threads = [threading.Thread(target=adopt, args=(by,)) for by in (trainings, another)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(adopted) == 1 and trainings.state(queued[2]) == "queued" and trainings.owner(queued[2]) == "me"
    another.tick(), trainings.tick()
    assert trainings.state(queued[2]) == "queued"  # the old server's training still runs
    trainings.stop(begun)
    wait(lambda: trainings.state(begun) == "ended")
    another.tick(), trainings.tick()
    assert trainings.state(queued[2]) == "running"
    assert "seed_everything: 1" in (places.run(queued[2]) / "changes.yaml").read_text()
    adopted[0].stop(queued[2])


def test_an_adopted_run_is_started_by_one_only(trainings: Trainings, places: Places) -> None:
    running, run = start(trainings), start(trainings)
    folder = places.run(run)
    child = psutil.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    write_record(folder, replace(read_record(folder), server=identity(child.pid)))
    end(trainings, running)
    wait(lambda: trainings.position(run) is None)
    assert trainings.state(run) == "queued"
    child.kill()
    child.wait()
    assert trainings.state(run) == "waiting"


@pytest.mark.parametrize("moment", ["before the record", "before the process", "before its number is noted"])
def test_a_server_that_is_killed_within_a_start(
    trainings: Trainings, places: Places, serve: Callable, moment: str
) -> None:
    server = serve(f"""
        moment = {moment!r}
        def die(*_): os.kill(os.getpid(), signal.SIGKILL)
        write = trainings.write_record
        def write_record(folder, record):
            if (moment == "before the record") or (record.pid and moment == "before its number is noted"):
                (work / "number").write_text(str(record.pid))
                die()
            write(folder, record)
        trainings.write_record = write_record
        if moment == "before the process":
            Trainings._launch = die
        Trainings(places, (), program).start([recipe], {{}}, places.new_run("flow", "smoke"), "old")
    """)
    assert server.wait(20) == -signal.SIGKILL
    runs = places.list_runs()
    if moment == "before the record":
        assert runs == []
        return
    if moment == "before its number is noted":
        wait(lambda: ended(int((places.work / "number").read_text())))
        assert not (places.run(runs[0]) / "train.log").exists()
    assert states(trainings, *runs) == ["waiting"]
    trainings.adopt(runs[0], "me")
    assert states(trainings, *runs) == ["running"]


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", "[" * 10**5, '{"pid": "1"}', '{"pid": -5, "birth": ""}', f'{{"pid": 1{"0" * 30}}}', "\xff",
     '{"pid": 1, "birth": "1 x y"}', '{"command": 3}',
     '{"queued": 1, "server": "\\ud800 x"}', '{"started": NaN, "pid": 1}']
)  # fmt: skip
def test_a_record_of_nonsense(trainings: Trainings, places: Places, text: str) -> None:
    folder = places.run(places.new_run("toy", "smoke"))
    (folder / "process.json").write_bytes(text.encode("latin-1"))
    run = places.list_runs()[0]
    assert trainings.state(run) in ("idle", "ended", "waiting")
    with pytest.raises(ValueError, match="no running process"):
        trainings.stop(run)
    running = start(trainings)
    assert trainings.state(running) == "running"
    trainings.delete(run)
    assert places.list_runs() == [running]


def test_a_record_is_lost_while_its_run_trains(trainings: Trainings, places: Places) -> None:
    run = start(trainings)
    pid = read_record(places.run(run)).pid
    wait((places.run(run) / "train.log").is_file)
    (places.run(run) / "process.json").write_text("{")
    assert trainings.state(run) == "active" and trainings.state(start(trainings)) == "queued"
    os.kill(pid, signal.SIGTERM)
    # the state is known a moment before it is noted
    wait(lambda: trainings.state(run) == "stopped" and getattr(read_record(places.run(run)), "exit_code", None) == 143)


def test_folders_that_go_away(trainings: Trainings, places: Places) -> None:
    running, queued, last = (start(trainings) for _ in range(3))
    folder, pid = places.run(running), read_record(places.run(running)).pid
    wait((folder / "train.log").is_file)
    shutil.rmtree(places.run(queued))
    shutil.rmtree(folder)
    os.kill(pid, signal.SIGTERM)

    def next_begins() -> bool:
        trainings.tick()
        return trainings.state(last) == "running"

    wait(next_begins)
    assert not folder.exists() and places.list_runs() == [last]


def test_the_clock_is_set(trainings: Trainings, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()
    running, first = start(trainings), start(trainings)
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: now - 10**6)
        second = start(trainings)
        create_time = psutil.Process.create_time
        patch.setattr(psutil.Process, "create_time", lambda self: create_time(self) + 3600)
        assert [trainings.position(run) for run in (first, second)] == [1, 2]
        assert states(Trainings(trainings.places), running, first, second) == ["running", "queued", "queued"]
        Trainings(trainings.places).stop(running)
    end(trainings, running) if trainings.state(running) == "running" else None


def test_a_program_that_cannot_be_started(places: Places) -> None:
    trainings = Trainings(places, (), ("/no/such/python", "x"))
    run = start(trainings)
    assert trainings.state(run) == "failed"
    assert "No such file" in (places.run(run) / "console.log").read_text()


def test_an_adopted_record_blocks_no_queue(places: Places, trainings: Trainings) -> None:
    bad = places.new_run("flow", "smoke")
    recipe = str(places.recipe("flow", "smoke"))
    write_record(places.run(bad), Record(configs=[recipe], changes="\ud800", queued=1.0, server="1 x y"))
    trainings.adopt(bad, "me")
    assert trainings.state(bad) == "failed" and "cannot be started" in (places.run(bad) / "console.log").read_text()
    assert trainings.state(start(trainings)) == "running"


def test_a_full_disk_leaves_the_queue(trainings: Trainings, monkeypatch: pytest.MonkeyPatch) -> None:
    from zoo.ui.jobs import trainings as module

    def full(folder: Path, record: Record) -> None:
        if record.pid:
            raise OSError(28, "No space left on device")
        write_record(folder, record)

    with monkeypatch.context() as patch:
        patch.setattr(module, "write_record", full)
        run = start(trainings)
        assert trainings.state(run) == "queued" and not trainings._children
        trainings.tick()
    trainings.tick()
    assert trainings.state(run) == "running"


def test_a_link_counts_no_training_twice(trainings: Trainings, places: Places) -> None:
    run = start(trainings)
    (places.runs / "alias").symlink_to(places.runs / "toy")
    trainings.queue = Queue(at_once=2)
    assert trainings.state(start(trainings)) == "running"
    assert json.loads((places.runs / "alias" / "smoke" / run.split("/")[2] / "process.json").read_text())["pid"]
