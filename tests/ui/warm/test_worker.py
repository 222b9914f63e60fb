"""The worker itself, on a real run: the protocol, what it refuses, and that it ends with the server."""

import io
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

from tests.harness import REPOSITORY, environment
from zoo.audio.io import files
from zoo.ui.places import Places
from zoo.ui.warm.pool import MIB, Failed, Finished, Workers
from zoo.ui.warm.worker import Worker

RUNS = REPOSITORY / "tests" / "data" / "runs"


@pytest.fixture
def run(places: Places) -> str:
    return new_run(places, "hifigan/smoke")


def new_run(places: Places, name: str) -> str:
    shutil.copytree(RUNS / name, places.runs / name / "t")
    return f"{name}/t"


def ask(workers: Workers, run: str, number: int, **values):
    folder = workers.places.temp / f"answer{number}"
    folder.mkdir()
    last = list(workers.ask(run, "", values, folder, "me"))[-1]
    return last, folder


def recording(places: Places, seconds: float = 1.0) -> Path:
    path = places.temp / "tone.wav"
    files.write(path, 0.1 * np.sin(np.arange(int(16000 * seconds)) / 10), 16000)
    return path


def test_a_real_run_answers_twice(places, run, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", environment()["PYTHONPATH"])
    workers = Workers(places)
    try:
        (field,) = workers.fields(run)
        assert (field.name, field.kind) == ("input", "audio")
        first, folder = ask(workers, run, 1, input=recording(places))
        assert isinstance(first, Finished), first
        assert [part.kind for part in first.parts] == ["audio", "audio", "image", "table"]
        assert files.info(folder / "result.wav").samples == 22050
        torn = places.temp / "torn.wav"
        torn.write_bytes(b"RIFF no sound at all")
        failed, _ = ask(workers, run, 2, input=torn)
        assert isinstance(failed, Failed)
        assert "torn.wav" in failed.error
        assert str(places.temp) not in failed.error
        second, _ = ask(workers, run, 3, input=recording(places))
        assert isinstance(second, Finished), second
        (warm,) = workers.list()
        assert warm.state == "idle"
    finally:
        workers.close()


def test_it_dies_with_the_server_while_it_computes(places):
    """Whatever ends the server closes the pipe, kill -9 included."""
    order = {"path": str(RUNS / "flow" / "points"), "temp": str(places.temp), "allow_import": []}
    child = subprocess.Popen(
        [sys.executable, "-m", "zoo.ui.warm.worker"],
        env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    try:
        assert child.stdin is not None
        assert child.stdout is not None

        def tell(**line: object) -> None:
            child.stdin.write(json.dumps(line).encode() + b"\n")
            child.stdin.flush()

        tell(**order)
        assert "fields" in json.loads(child.stdout.readline())
        tell(values={"count": 5000, "steps": 100, "method": "rk4"}, folder=str(places.temp))
        assert json.loads(child.stdout.readline())["text"] == "sampling"
        child.stdin.close()
        assert child.wait(20) == -9
        assert not (places.temp / "samples.png").exists()
    finally:
        child.kill()
        child.wait()
        child.stdout.close()


def started(path: Path, temp: Path) -> tuple[Worker, io.StringIO]:
    out = io.StringIO()
    return Worker(out, {"path": str(path), "temp": str(temp), "allow_import": []}), out


@pytest.mark.parametrize("place", ["outside", "link", "relative", "folder"])
def test_it_takes_no_file_of_the_server(places, run, place):
    worker, _ = started(places.run(run), places.temp)
    secret = places.work / "secret.wav"
    shutil.copy(recording(places), secret)
    (places.temp / "link.wav").symlink_to(secret)
    given = {
        "outside": secret,
        "link": places.temp / "link.wav",
        "relative": "tone.wav",
        "folder": places.temp / "tone.wav",
    }
    folder = places.work if place == "folder" else places.temp
    with pytest.raises(ValueError, match="is no file of this page"):
        worker._answer({"values": {"input": str(given.get(place, places.temp / "tone.wav"))}, "folder": str(folder)})


def test_a_crafted_checkpoint_runs_nothing(places, run):
    class Payload:
        def __reduce__(self):
            return os.system, (f"touch {places.work}/owned",)

    (checkpoint,) = places.run(run).glob("*.ckpt")
    checkpoint.with_name(f"{checkpoint.name}.sha256").unlink()
    torch.save({"state_dict": {}, "zoo": Payload()}, checkpoint)
    with pytest.raises(SystemExit):
        started(places.run(run), places.temp)
    assert not (places.work / "owned").exists()


def test_why_it_cannot_load_is_one_line(places):
    (places.runs / "x").mkdir()
    out = io.StringIO()
    with pytest.raises(SystemExit):
        Worker(out, {"path": str(places.runs / "x"), "temp": str(places.temp)})
    (line,) = out.getvalue().splitlines()
    assert "no checkpoint" in json.loads(line)["failed"]


@pytest.mark.slow
def test_two_hundred_answers_leave_memory_and_processes_as_they_are(places, run, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", environment()["PYTHONPATH"])
    workers = Workers(places)
    before = len(psutil.Process().children(recursive=True))
    memory = []
    try:
        for number in range(200):
            last, folder = ask(workers, run, number, input=recording(places))
            assert isinstance(last, Finished), last
            shutil.rmtree(folder)
            memory.append(workers.list()[0].memory_mib)
        assert len(psutil.Process().children(recursive=True)) == before + 1
    finally:
        workers.close()
    print(f"MiB after 20 answers {memory[19]}, after 200 {memory[-1]}, most {max(memory)}; server {own_mib()}")
    assert memory[-1] < memory[19] + 50
    assert len(psutil.Process().children(recursive=True)) == before


def own_mib() -> float:
    return round(psutil.Process().memory_info().rss / MIB, 1)


def test_progress_is_not_a_flood(places, run):
    worker, out = started(places.run(run), places.temp)
    begin = len(out.getvalue().splitlines())
    end = time.monotonic() + 0.5
    while time.monotonic() < end:
        worker._report(2.0, "x")
    lines = [json.loads(line) for line in out.getvalue().splitlines()[begin:]]
    assert 1 <= len(lines) <= 4
    assert lines[0]["progress"] == 1.0
