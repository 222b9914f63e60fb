"""Running the command line in other processes, and comparing what runs leave behind."""

import csv
import hashlib
import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from zoo.runs.checkpoints import find_checkpoints, load_checkpoint

REPOSITORY = Path(__file__).resolve().parents[1]
TOY = REPOSITORY / "tests" / "toy"
TOY_RECIPE = TOY / "toy_system" / "configs" / "smoke.yaml"
TOY_ARGS = ("--allow-import", "toy_system")
TOY_FIT = ("fit", "--config", TOY_RECIPE, *TOY_ARGS)
SMOKE = REPOSITORY / "configs" / "hifigan" / "smoke.yaml"
RUNS = REPOSITORY / "tests" / "data" / "runs"  # small trained runs of all systems


def callback(name: str, **arguments: object) -> list[str]:
    """The options that add a callback: a fault of the toy system by its name, others by their path."""
    path = name if "." in name else f"toy_system.faults.{name}"
    values = {key: value if isinstance(value, str) else json.dumps(value) for key, value in arguments.items()}
    return [f"--trainer.callbacks+={path}", *(f"--trainer.callbacks.{key}={value}" for key, value in values.items())]


def environment(**extra: str) -> dict[str, str]:
    remaining = {key: value for key, value in os.environ.items() if not key.startswith(("ZOO_RUN", "LOCAL_RANK"))}
    path = os.pathsep.join([str(TOY), str(REPOSITORY)])
    return {
        **remaining,
        "PYTHONPATH": path,
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        "WANDB_MODE": "offline",
        "CUDA_VISIBLE_DEVICES": "",
        **extra,
    }


def zoo(*args: object, cwd: Path, timeout: float = 300, **extra: str) -> subprocess.CompletedProcess[str]:
    """Run `python -m zoo` and wait for it."""
    command = [sys.executable, "-m", "zoo", *map(str, args)]
    return subprocess.run(
        command, cwd=cwd, env=environment(**extra), capture_output=True, text=True, timeout=timeout, check=False
    )


def good(result: subprocess.CompletedProcess[str]) -> subprocess.CompletedProcess[str]:
    """Assert that a command succeeded, showing what it said when it did not."""
    assert result.returncode == 0, f"exit {result.returncode}\n{result.stdout[-3000:]}\n{result.stderr[-6000:]}"
    return result


def newest(run: Path) -> Path:
    return find_checkpoints(run, "step_*.ckpt")[0]


def fingerprint(path: Path) -> dict[str, str]:
    """A hash of every tensor and value that training depends on: weights, optimizers, schedules, EMA, generators."""
    checkpoint = load_checkpoint(path)
    remaining = {
        key: checkpoint[key]
        for key in ("state_dict", "optimizer_states", "lr_schedulers", "ema", "rng", "global_step", "epoch")
        if key in checkpoint
    }
    return {name: hashlib.sha256(content).hexdigest() for name, content in _leaves(remaining, "")}


def _leaves(value: Any, name: str) -> Iterator[tuple[str, bytes]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(item, f"{name}/{key}")
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _leaves(item, f"{name}/{index}")
    elif isinstance(value, torch.Tensor):
        yield name, value.detach().cpu().numpy().tobytes()
    else:
        yield name, repr(value).encode()


MEASURED = ("train/samples_per_sec", "train/data_wait", "train/memory_gib")


def record(run: Path) -> list[dict[str, str]]:
    """All rows of metrics.csv as text, without what a clock measured."""
    rows = read_csv(run / "metrics.csv")
    return [{key: text for key, text in row.items() if key not in MEASURED} for row in rows]


def assert_equal_runs(run: Path, reference: Path) -> None:
    """The newest checkpoints of two runs and all that they logged are the same."""
    assert fingerprint(newest(run)) == fingerprint(newest(reference))
    assert record(run) == record(reference)


def error_line(text: str) -> str:
    """The one error in what a command printed, without a traceback."""
    assert "Traceback" not in text
    (line,) = [line for line in text.splitlines() if line.startswith("zoo") and "error: " in line]
    return line


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def wait_until(condition: Callable[[], object], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"waited for {seconds} s"
        time.sleep(0.05)


def contents(folder: Path) -> dict[str, bytes]:
    """All files below a folder, by their paths in it."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def same_state(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    """Whether two modules have the same tensors, by the same names in the same order."""
    first, second = one.state_dict(), other.state_dict()
    return list(first) == list(second) and all(torch.equal(first[key], second[key]) for key in first)


def bests(run: Path) -> dict[str, dict[str, str]]:
    """The best checkpoints that a run kept, by name."""
    return {path.name: fingerprint(path) for path in sorted(run.glob("best-*.ckpt"))}


SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["zoo.cli.trainer"])


class Forked:
    """`zoo` in a process that is forked from one with all imports done: a second instead of six.

    Args:
        args: the command and its arguments.
        cwd: its working directory, where `out.txt` and `err.txt` of the call go as well.
        extra: environment variables.
    """

    def __init__(self, *args: object, cwd: Path, **extra: str) -> None:
        self.args = [str(arg) for arg in args]
        number = len(list(cwd.glob("out*.txt")))
        self.files = cwd / f"out{number}.txt", cwd / f"err{number}.txt"
        for file in self.files:
            file.touch()
        target_args = (self.args, str(cwd), environment(**extra), *map(str, self.files))
        self.process = SERVER.Process(target=_zoo_in_child, args=target_args)
        self.process.start()

    def wait(self, timeout: float = 300) -> subprocess.CompletedProcess[str]:
        """Wait for it; `ended` of the result is the time of its end."""
        self.process.join(timeout)
        if self.process.exitcode is None:
            self.process.kill()
            self.process.join()
            raise subprocess.TimeoutExpired(self.args, timeout, self.files[0].read_text(), self.files[1].read_text())
        out, err = (file.read_text() for file in self.files)
        result = subprocess.CompletedProcess(self.args, self.process.exitcode, out, err)
        result.ended = time.time()
        return result


def forked(*args: object, cwd: Path, timeout: float = 300, **extra: str) -> subprocess.CompletedProcess[str]:
    """Run `zoo` in a forked process and wait for it: `zoo()` without the imports."""
    return Forked(*args, cwd=cwd, **extra).wait(timeout)


def forked_ranks(*args: object, cwd: Path, **extra: str) -> list[subprocess.CompletedProcess[str]]:
    """Run `zoo` as two ranks, in the environment that torchrun gives them, without the imports."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    run = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    run |= {"GROUP_RANK": "0", "TORCHELASTIC_RUN_ID": "forked", **extra}
    ranks = [Forked(*args, cwd=cwd, **run, RANK=rank, LOCAL_RANK=rank) for rank in "01"]
    return [rank.wait() for rank in ranks]


def run_process(function: Callable[..., Any], *args: object, timeout: float = 300) -> int | None:
    """Call a function in a process of the fork server, whose OpenMP never ran, and return its exit code."""
    process = SERVER.Process(target=_call_in_child, args=(None, function, args))
    process.start()
    try:
        process.join(timeout)
        return process.exitcode
    finally:
        process.kill()
        process.join()


def in_fork(function: Callable[..., Any], *args: object, timeout: float = 600) -> Any:
    """Call a function in a forked process, for what changes a process for good, and return its result."""
    actual, reference = SERVER.Pipe(duplex=False)
    process = SERVER.Process(target=_call_in_child, args=(reference, function, args))
    process.start()
    reference.close()
    try:
        if not actual.poll(timeout):
            raise TimeoutError(f"{function.__name__} took more than {timeout} s")
        return actual.recv()
    finally:
        process.kill()
        process.join()


def _call_in_child(connection: Any, function: Callable[..., Any], args: Sequence[object]) -> None:
    sys.path[:0] = [str(TOY)]
    torch.set_num_threads(1)
    result = function(*args)
    if connection is not None:
        connection.send(result)


def _zoo_in_child(args: Sequence[str], cwd: str, variables: dict[str, str], out: str, err: str) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests themselves may run under nohup
    from zoo.cli.main import main

    os.setpgrp()
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(variables)
    tempfile.tempdir = None
    sys.path[:0] = variables["PYTHONPATH"].split(os.pathsep)
    for path, descriptor in ((out, 1), (err, 2)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_APPEND), descriptor)
    # of loader workers: forked as everywhere on Linux, or spawned as elsewhere
    multiprocessing.set_start_method(os.environ.get("START_METHOD", "fork"), force=True)
    torch.set_num_threads(1)
    sys.exit(main(args))
