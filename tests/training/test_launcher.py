import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from zoo.training import launcher
from zoo.training.errors import LostContactError
from zoo.training.launcher import Attempt, Hosts, Launcher, is_lost, main, newest_checkpoint, parse


def test_a_lost_process_is_told_from_errors_and_stops():
    assert [code for code in (0, 1, 2, 75, 130, 134, 137, 139, 143) if is_lost(code)] == [75, 134, 137, 139]
    assert launcher.LOST == LostContactError.exit_code


def command(*arguments, number=0, again=False):
    return Launcher(*parse(arguments)).command(number, again)


def test_one_host_runs_zoo_or_torchrun(monkeypatch):
    given = command("r.yaml", "2", "--seed_everything=1")
    assert given[1:6] == ["-m", "zoo", "fit", "--config", "r.yaml"]
    assert given[7].endswith("ddp.yaml") and given[8:] == ["--trainer.devices=2", "--seed_everything=1"]
    assert command("r.yaml", "--trainer.max_steps", "4", again=True)[8:] == [
        "--trainer.devices=auto", "--trainer.max_steps", "4", "--ckpt_path", "auto"
    ]  # fmt: skip
    monkeypatch.setenv("LAUNCHER", "torchrun")
    given = command("r.yaml")
    assert given[2:4] == ["zoo.training.launcher", "agent"] and "--standalone" in given
    assert {"--nproc-per-node=gpu", "--max-restarts=0", "--trainer.devices=auto"} <= set(given)


def test_several_hosts_meet_at_the_first(monkeypatch):
    given = command("r.yaml", "4", "--nodes", "2", "--node-rank", "1", "--master", "a:1234", number=3)
    assert {"--nnodes=2", "--nproc-per-node=4", "--rdzv-backend=c10d", "--rdzv-endpoint=a:1234"} <= set(given)
    assert "--rdzv-id=zoo-3" in given and "--trainer.num_nodes=2" in given and given[-2:] == ["--ckpt_path", "auto"]


@pytest.mark.parametrize(
    "arguments",
    [[], ["--nodes", "2"], ["r", "--nodes", "2"], ["r", "--nodes", "2", "--node-rank", "2", "--master", "a"]],
)
def test_wrong_usage(arguments, capsys):
    with pytest.raises(SystemExit, match="2"):
        parse(arguments)
    assert "launch.sh" in capsys.readouterr().err


def test_no_python_is_needed_to_be_heavy():
    code = "import sys, zoo.training.launcher; sys.exit(sum(name in sys.modules for name in ('torch', 'lightning')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def run(monkeypatch, folder, script, **variables):
    """The launcher in this process, of a script that stands for the training; its exit code and attempts."""
    monkeypatch.chdir(folder)
    for key, value in variables.items():
        monkeypatch.setenv(key, value)
    asked = []

    def command(self, number, again):
        asked.append(again)
        return ["bash", "-c", script]

    monkeypatch.setattr(Launcher, "command", command)
    handlers = {name: signal.getsignal(getattr(signal, name)) for name in launcher.STOP_SIGNALS}
    try:
        return main(["flow/smoke", "2"]), asked
    finally:
        for name, handler in handlers.items():
            signal.signal(getattr(signal, name), handler)


@pytest.mark.parametrize(("code", "attempts"), [(0, 1), (1, 1), (2, 1), (143, 1), (75, 3), (137, 3)])
def test_only_a_lost_process_brings_another_attempt(code, attempts, monkeypatch, tmp_path, capsys):
    ended, asked = run(monkeypatch, tmp_path, f"exit {code}", ZOO_RESTARTS="2")
    assert (ended, len(asked)) == (code, attempts) and not any(asked)
    said = capsys.readouterr().err
    assert said.count("starting all again from the beginning") == attempts - 1
    assert ("given up" in said) == (attempts > 1)
    ours = ctypes.c_int(-1)
    ctypes.CDLL(None).prctl(37, ctypes.byref(ours))  # PR_GET_CHILD_SUBREAPER: who calls it is as before
    assert ours.value == 0


def test_progress_allows_more_attempts(monkeypatch, tmp_path):
    (tmp_path / "runs" / "flow" / "smoke" / "old").mkdir(parents=True)
    (tmp_path / "runs" / "flow" / "smoke" / "old" / "step_9.ckpt").touch()
    script = """
    n=$(ls | grep -c try); touch try$n
    [ $n = 0 ] && exit 75; [ $n = 6 ] && exit 0
    mkdir -p runs/flow/smoke/new; echo > runs/flow/smoke/new/step_$n.ckpt; sleep 0.05; exit 137"""
    ended, asked = run(monkeypatch, tmp_path, script, ZOO_RESTARTS="1")
    assert (ended, asked) == (0, [False, False, True, True, True, True, True])  # an older run is not gone on with


def test_checkpoints_of_other_recipes_do_not_count(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for recipe in ("flow/base", "flow/smoke"):
        (tmp_path / "runs" / recipe / "1").mkdir(parents=True)
    (tmp_path / "runs/flow/base/1/step_1.ckpt").touch()
    assert newest_checkpoint("configs/flow/smoke.yaml", []) == (0.0, "")
    assert newest_checkpoint("flow/base", [])[1] == "runs/flow/base/1/step_1.ckpt"
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "step_2.ckpt").touch()
    for flags in (
        ["--trainer.default_root_dir=mine"],
        ["--trainer.max_steps", "4", "--trainer.default_root_dir", "mine"],
    ):
        assert newest_checkpoint("flow/smoke", flags)[1] == "mine/step_2.ckpt"


def test_hosts_agree_on_attempts_and_codes():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    first, second = (Hosts("127.0.0.1", port, rank, 2) for rank in range(2))
    with ThreadPoolExecutor(2) as pool:

        def both(name, *arguments):
            pairs = zip((first, second), arguments, strict=True)
            calls = [pool.submit(getattr(each, name), *given) for each, given in pairs]
            return [call.result(60) for call in calls]

        assert both("begin", (), ()) == [0, 0] and not first.ended(0)
        assert both("end", (0, 75), (0, 137)) == [75, 137] and second.ended(0)
        first.decide(0, True)
        assert second.goes_on(0) is True and both("begin", (), ()) == [1, 1]
        assert both("end", (1, 75), (1, 1)) == [1, 1]  # an error goes before a lost process
        word = pool.submit(second.goes_on, 1)
        first.decide(1, False)
        assert word.result(60) is False
    first.store = None  # its launcher is gone
    assert second.ended(2) and second.goes_on(2) is None and second.end(2, 75) == 75


def test_a_process_that_hangs_is_killed_when_the_first_has_ended(tmp_path):
    pid = tmp_path / "pid"
    attempt = Attempt(["bash", "-c", f"sleep 100 & echo $! > {pid}; kill -STOP $!; exit 75"])
    assert attempt.wait(lambda: False, patience=0.3) == 75
    with pytest.raises(ProcessLookupError):
        _wait_gone(int(pid.read_text()))


def test_a_host_ends_when_another_has_ended():
    began = time.monotonic()
    assert Attempt(["sleep", "100"]).wait(lambda: time.monotonic() - began > 0.3, patience=0.3) == 137


def _wait_gone(pid: int) -> None:
    for _ in range(100):
        os.kill(pid, 0)
        if "Z" in Path(f"/proc/{pid}/stat").read_text().split()[2]:
            raise ProcessLookupError
        time.sleep(0.05)
