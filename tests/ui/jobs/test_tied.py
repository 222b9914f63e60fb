"""What becomes of processes when the server goes, in whatever way."""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.ui.jobs.conftest import command_of, wait
from zoo.ui.jobs.records import read_record
from zoo.ui.jobs.trainings import Trainings
from zoo.ui.places import Places

pytestmark = pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")

SERVER = """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    server = Trainings(places, (), {program}, trainings.Queue(at_once=3, tied={tied}))
    try:
        for recipe in {recipes}:
            run = places.new_run("flow", "smoke")
            server.start([recipe], {changes}, run, "me")
            while not (places.run(run) / "train.log").is_file(): time.sleep(0.05)
        (work / "ready").touch()
        time.sleep(120)
    finally:
        server.close()
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("tied", [True, False])
def test_a_training_ends_with_the_server_or_goes_on(
    trainings: Trainings, places: Places, serve: Callable, number: signal.Signals, tied: bool
) -> None:
    server = serve(SERVER.format(program="program", tied=tied, recipes="[recipe] * 2", changes={}))
    runs = places.list_runs()
    assert [trainings.state(run) for run in runs] == ["running"] * 2
    server.send_signal(number)
    server.wait(20)
    if not tied:
        assert [trainings.state(run) for run in runs] == ["running"] * 2
        return
    # only a server that says goodbye sees the exit codes
    end = "ended" if number == signal.SIGKILL else "stopped"
    wait(lambda: [trainings.state(run) for run in runs] == [end] * 2)


def test_a_real_training_saves_when_its_server_is_killed(places: Places, trainings: Trainings, serve: Callable) -> None:
    changes = {"trainer": {"max_steps": 10**6}}
    for number in (signal.SIGKILL, signal.SIGTERM):
        server = serve(SERVER.format(program="trainings.PROGRAM", tied=True, recipes="[recipe]", changes=changes))
        run = places.list_runs()[0]
        folder = places.run(run)
        wait(lambda folder=folder: (folder / "metrics.csv").is_file(), 60)
        before = set(folder.glob("*.ckpt"))
        server.send_signal(number)
        server.wait(30)
        wait(lambda run=run: trainings.state(run) in ("ended", "stopped"), 60)
        assert "SIGTERM: saving at the next step boundary" in (folder / "train.log").read_text()
        assert set(folder.glob("*.ckpt")) - before
    assert trainings.state(run) == "stopped"


def test_commands_die_with_the_server(trainings: Trainings, places: Places, serve: Callable) -> None:
    server = serve("""
        server = Trainings(places, (), program)
        def fit(name):
            (work / name).mkdir()
            return "fit", f"--trainer.default_root_dir={work / name}"
        threading.Thread(target=lambda: server.call(*fit("called"))).start()
        threading.Thread(target=lambda: list(server.follow(work / "out", *fit("followed")))).start()
        while not all((work / name / "train.log").is_file() for name in ("called", "followed")): time.sleep(0.05)
        (work / "ready").touch()
        time.sleep(60)
    """)
    children = psutil.Process(server.pid).children()
    assert len(children) == 2
    server.kill()
    server.wait()
    psutil.wait_procs(children, 10)
    assert not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in children)


def test_a_command_that_takes_too_long(trainings: Trainings, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    code, text = trainings.call("fit", f"--trainer.default_root_dir={tmp_path / 'folder'}", timeout=1)
    assert code == 124 and "longer than 1 s" in text
    assert not any(str(tmp_path) in " ".join(command_of(each)) for each in psutil.process_iter())


def test_the_gate_leaves_nothing_to_read(places: Places) -> None:
    script = places.work / "reads.py"
    script.write_text("import sys; print(repr(sys.stdin.read()), sys.argv[1:], __name__)")
    assert Trainings(places, (), (sys.executable, str(script))).call("x") == (0, "'' ['x'] __main__\n")


def test_no_process_or_pipe_remains(trainings: Trainings, places: Places) -> None:
    trainings.call("x")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        trainings.call("x")
        assert list(trainings.follow(places.work / "out", "x"))[-1] == 0
        run = places.new_run("toy", "smoke")
        trainings.start([places.work / "recipe.yaml"], {}, run, "me")
        wait((places.run(run) / "train.log").is_file)
        trainings.stop(run)
        # the state is known a moment before it is noted
        wait(lambda run=run: trainings.state(run) == "stopped" and read_record(places.run(run)).exit_code == 143)
    assert len(os.listdir("/proc/self/fd")) == before
    assert not trainings._children and not trainings._helpers
