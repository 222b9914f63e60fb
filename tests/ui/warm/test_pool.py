"""Warm workers with a stand-in for the model: who waits, who is ended, and what is left behind."""

import os
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from zoo.runs.inference.forms import Output
from zoo.ui.places import Places
from zoo.ui.warm.pool import Failed, Finished, Progress, Workers

# answers to a word; prints beside the protocol go to stderr
STAND_IN = """
import json, os, pathlib, sys, time
out = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
def say(**line):
    out.write(json.dumps(line) + "\\n"); out.flush()
order = json.loads(sys.stdin.readline())
with open(order["temp"] + "/loaded", "a") as file:
    file.write(order["path"] + "\\n")
if "broken" in order["path"]:
    say(failed="this run cannot be loaded")
    sys.exit(1)
field = {"label": "Word", "kind": "text", "default": "good"}
say(fields=[{"name": "word", **field}, {"name": "sound", "label": "Sound", "kind": "audio", "optional": True}])
for line in sys.stdin:
    request = json.loads(line)
    word, folder = request["values"]["word"], pathlib.Path(request["folder"])
    print("library says", word)
    if word == "slow":
        say(progress=0.5, text="half")
        time.sleep(60)
    elif word == "short":
        time.sleep(0.5)
    elif word == "crash":
        print("cannot go on: tired", file=sys.stderr, flush=True)
        os._exit(3)
    elif word == "signal":
        os.abort()
    elif word == "nonsense":
        out.write("{]\\n"); out.flush()
        continue
    elif word == "fat":
        kept = bytearray(300 * 2**20)
    elif word == "bad":
        say(failed="Word: expected a better one")
        continue
    elif word == "outside":
        os.symlink("/etc/passwd", folder / "link.wav")
        say(parts=[{"kind": "file", "title": "x", "name": "link.wav"}], seconds=0.1)
        continue
    elif word == "environment":
        say(parts=[{"kind": "text", "title": "E", "data": sorted(os.environ)}], seconds=0.1)
        continue
    (folder / "a.wav").write_bytes(b"x")
    say(parts=[{"kind": "audio", "title": "A", "name": "a.wav"}, {"kind": "text", "title": "P", "data": os.getpid()}],
        seconds=0.25)
"""


@pytest.fixture
def workers(places: Places, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SECRET", "x")
    monkeypatch.setenv("NICEGUI_X", "x")
    (places.work / "stand_in.py").write_text(STAND_IN)
    for name in ("one", "two", "three", "broken"):
        new_run(places, name)
    made = Workers(
        places, ("SECRET",), program=(sys.executable, "-IS", str(places.work / "stand_in.py")), job_seconds=5
    )
    yield made
    made.close()
    assert made.list() == ()


def new_run(places: Places, name: str) -> None:
    folder = places.runs / "toy" / "smoke" / name
    folder.mkdir(parents=True)
    (folder / "step_1.ckpt").write_bytes(b"1")


def run(name: str) -> str:
    return f"toy/smoke/{name}"


def ask(workers: Workers, name: str = "one", word: str = "good", owner: str = "me", **values: object):
    folder = workers.places.temp / f"answer{time.monotonic_ns()}"
    folder.mkdir()
    return list(workers.ask(run(name), "", {"word": word, **values}, folder, owner))


def pid(events) -> int:
    assert isinstance(events[-1], Finished), events
    return events[-1].parts[-1].data


def loaded(workers: Workers) -> list[str]:
    return [Path(line).name for line in (workers.places.temp / "loaded").read_text().split()]


def started(workers: Workers, name: str, word: str, owner: str = "me"):
    """A request in a thread, once it is being computed."""
    events: list[object] = []

    def collect() -> None:
        folder = workers.places.temp / f"started_{owner}_{name}_{word}"
        folder.mkdir()
        for event in workers.ask(run(name), "", {"word": word}, folder, owner, token=f"{owner}-{name}"):
            events.append(event)

    thread = threading.Thread(target=collect)
    thread.start()
    return thread, events


def until(true, seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_worker_stays_warm(workers):
    assert [field.name for field in workers.fields(run("one"))] == ["word", "sound"]
    first, second = ask(workers), ask(workers)
    assert pid(first) == pid(second)
    assert first[-1].parts[0] == Output("audio", "A", "a.wav")
    assert first[-1].seconds == 0.25
    assert all(isinstance(event, Progress) and event.token for event in first[:-1])
    (warm,) = workers.list()
    assert (warm.run, warm.state, warm.owner) == (run("one"), "idle", "")
    assert warm.memory_mib > 1
    assert loaded(workers) == ["one"]


def test_bad_input_keeps_the_worker(workers):
    before = pid(ask(workers))
    assert ask(workers, word="bad")[-1] == Failed("Word: expected a better one")
    assert ask(workers, word=3)[-1].error.startswith("Word: ")
    assert ask(workers, other=3)[-1].error.startswith("'other': ")
    assert pid(ask(workers)) == before


@pytest.mark.parametrize(
    ("word", "said"),
    [("crash", "cannot go on: tired"), ("signal", "SIGABRT"), ("nonsense", "nobody understands")],
)
def test_a_crash_is_one_line_and_the_next_request_starts_afresh(workers, word, said):
    before = pid(ask(workers))
    failed = ask(workers, word=word)[-1]
    assert isinstance(failed, Failed)
    assert said in failed.error
    assert "\n" not in failed.error
    assert pid(ask(workers)) != before
    assert not psutil.pid_exists(before)


def test_a_run_that_cannot_be_loaded(workers):
    assert ask(workers, "broken")[-1] == Failed("this run cannot be loaded")
    with pytest.raises(ValueError, match="cannot be loaded"):
        workers.fields(run("broken"))
    assert workers.list() == ()


@pytest.mark.parametrize("name", ["toy/smoke/none", "../x/y", "/etc", "toy/smoke", ""])
def test_a_run_that_is_not_there(workers, name):
    with pytest.raises(ValueError):
        workers.fields(name)
    events = list(workers.ask(name, "", {}, workers.places.temp, "me"))
    assert isinstance(events[-1], Failed)
    with pytest.raises(ValueError, match="checkpoint"):
        workers.fields(run("one"), "../two/step_1.ckpt")


def test_files_lie_in_the_temporary_folder(workers, tmp_path):
    outside = tmp_path / "x.wav"
    outside.write_bytes(b"x")
    link = workers.places.temp / "link.wav"
    link.symlink_to(outside)
    for path in (outside, "/etc/passwd", "../x.wav", "x.wav", link, workers.places.temp / ".." / "x.wav"):
        assert "no file of this page" in ask(workers, sound=str(path))[-1].error
    events = list(workers.ask(run("one"), "", {}, tmp_path, "me"))
    assert "no file of this page" in events[-1].error
    inside = workers.places.temp / "x.wav"
    inside.write_bytes(b"x")
    assert isinstance(ask(workers, sound=inside)[-1], Finished)
    assert ask(workers, word="outside")[-1].parts == ()  # a link is no result


def test_no_secrets(workers):
    names = ask(workers, word="environment")[-1].parts[0].data
    assert "PATH" in names
    assert not {"SECRET", "NICEGUI_X"} & set(names)


def test_the_least_recently_used_goes(workers):
    ask(workers, "one"), ask(workers, "two"), ask(workers, "one"), ask(workers, "three")
    assert {warm.run for warm in workers.list()} == {run("one"), run("three")}
    assert loaded(workers) == ["one", "two", "three"]


def test_a_busy_one_is_never_evicted_and_the_line_tells_places(workers):
    slow = [started(workers, name, "slow", name) for name in ("one", "two")]
    until(lambda: [warm.state for warm in workers.list()] == ["busy", "busy"])
    third, events = started(workers, "three", "good", "c")
    until(lambda: events)
    fourth, behind = started(workers, "three", "good", "d")
    until(lambda: behind)
    assert (events[0].position, behind[0].position) == (1, 2)
    assert {warm.owner for warm in workers.list()} == {"one", "two"}
    assert workers.cancel("d-three")
    fourth.join(5)
    assert behind[-1] == Failed("cancelled", cancelled=True)
    assert workers.cancel("one-one")
    third.join(20)
    assert isinstance(events[-1], Finished)
    slow[0][0].join(5)
    assert slow[0][1][-1] == Failed("cancelled", cancelled=True)
    assert not workers.cancel("one-one")
    assert workers.cancel("two-two")
    slow[1][0].join(5)


def test_two_ask_one_worker_and_one_waits(workers):
    threads = [started(workers, "one", "short", owner) for owner in "ab"]
    for thread, _ in threads:
        thread.join(20)
    assert {pid(events) for _, events in threads} == {pid(threads[0][1])}
    assert loaded(workers) == ["one"]


def test_who_stops_to_listen_cancels(workers):
    before = pid(ask(workers))
    folder = workers.places.temp / "left"
    folder.mkdir()
    events = workers.ask(run("one"), "", {"word": "slow"}, folder, "me")
    while (event := next(events)).fraction < 0.5:
        pass
    assert event.text == "half"
    events.close()
    assert workers.list() == ()
    assert not psutil.pid_exists(before)


def test_a_request_that_takes_too_long(workers):
    workers.job_seconds = 0.5
    assert "longer than" in ask(workers, word="slow")[-1].error
    assert workers.list() == ()


def test_memory(workers):
    workers.memory_mib = 200
    assert isinstance(ask(workers)[-1], Finished)
    assert isinstance(ask(workers, word="fat")[-1], Finished)
    assert workers.list() == ()  # above the limit after its request


def test_an_owner_has_few_places_in_the_line(workers, monkeypatch):
    monkeypatch.setitem(Workers.ask.__globals__, "PLACES_IN_LINE", 1)
    slow, _ = started(workers, "one", "slow", "a")
    until(lambda: [warm.state for warm in workers.list()] == ["busy"])
    waiting, events = started(workers, "one", "good", "b")
    until(lambda: events)
    assert "in the line already" in ask(workers, owner="b")[-1].error
    for token in ("a-one", "b-one"):
        workers.cancel(token)
    slow.join(5), waiting.join(20)


@pytest.mark.parametrize("change", ["trained", "deleted", "idle"])
def test_what_is_old_goes(workers, change):
    before = pid(ask(workers))
    checkpoint = workers.places.runs / run("one") / "step_1.ckpt"
    if change == "trained":
        checkpoint.write_bytes(b"22")
        assert pid(ask(workers)) != before
        assert loaded(workers) == ["one", "one"]
        return
    if change == "deleted":
        checkpoint.unlink()
    else:
        workers.idle_seconds = 0.1
    until(lambda: workers.list() == ())
    assert not psutil.pid_exists(before)


def test_closing_ends_all(places, workers):
    slow, events = started(workers, "one", "slow")
    until(lambda: [warm.state for warm in workers.list()] == ["busy"])
    children = psutil.Process(os.getpid()).children()
    workers.close()
    slow.join(10)
    assert isinstance(events[-1], Failed)
    assert not any(child.is_running() and "stand_in.py" in " ".join(child.cmdline()) for child in children)
    assert isinstance(ask(workers)[-1], Failed)
