"""Jobs of sessions with a stand-in for the workers: batches, folders, cancelling, and what ends with a session."""

import io
import json
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from zoo.runs.inference.forms import Output
from zoo.ui.jobs.commands import Commands
from zoo.ui.places import Places
from zoo.ui.store import KEPT_JOBS, MIB, Store
from zoo.ui.warm.asked import Asked, Job
from zoo.ui.warm.pool import Failed, Finished, Progress

RUN = "toy/smoke/20240101-000000"
# predict: a row of the manifest and a file for each file of the input; of a folder "slow" none but the first
PREDICT = """
import json, pathlib, sys, time
args = dict(zip(sys.argv[2::2], sys.argv[3::2]))
source, target = pathlib.Path(args["--input"]), pathlib.Path(args["--output"])
if source.name == "empty":
    sys.exit("zoo: error: no file below it ends in .wav")
target.mkdir(parents=True)
for path in sorted(source.glob("*.wav")):
    (target / path.name).write_bytes(b"x")
    with (target / "manifest.rank0.jsonl").open("a") as file:
        file.write(json.dumps({"source": str(path), "target": path.name, "status": "done", "error": None}) + "\\n")
    if source.name == "slow":
        time.sleep(60)
"""


class Model:
    """In the place of `Workers`: says what it was asked; waits when asked to be "slow", until cancelled."""

    def __init__(self) -> None:
        self.cancelled: dict[str, threading.Event] = {}
        self.left: list[str] = []

    def ask(
        self, run: str, checkpoint: str, values: Mapping[str, Any], folder: Path, owner: str, token: str
    ) -> Iterator[Progress | Finished | Failed]:
        assert list(folder.iterdir()) == []
        stop = self.cancelled.setdefault(token, threading.Event())
        word = values.get("word") or values["file"].name
        try:
            yield Progress(0.0, "waiting", token, 2)
            yield Progress(0.5, "half", token)
            if "slow" in word and stop.wait(20):
                yield Failed("cancelled", True)
            elif "bad" in word:
                yield Failed("File: cannot be read")
            elif "wrong" in word:
                raise KeyError("x")
            else:
                (folder / "out.wav").write_bytes(word.encode())
                yield Finished((Output("audio", "Out", "out.wav"), Output("text", "Said", data=word)), 0.25)
        finally:
            self.left.append(word)

    def cancel(self, token: str) -> bool:
        self.cancelled.setdefault(token, threading.Event()).set()
        return True


@pytest.fixture
def model() -> Model:
    return Model()


@pytest.fixture
def asked(places: Places, model: Any) -> Iterator[Asked]:
    run = places.runs / RUN
    run.mkdir(parents=True)
    (run / "config.yaml").write_text("{}")
    (run / "step_1.ckpt").write_bytes(b"1")
    (places.work / "predict.py").write_text(PREDICT)
    store = Store(places.temp, MIB)
    store.uploads.mkdir()
    made = Asked(places, store, model, Commands(places, (), (sys.executable, str(places.work / "predict.py"))))
    yield made
    for session in ("me", "you"):
        made.end(session)


def ask(asked: Asked, *words: str, session: str = "me") -> Job:
    return asked.begin(session, RUN, "", [{"word": word} for word in words], " ".join(words))


def upload(asked: Asked, name: str) -> Path:
    return asked.store.owned("me", asked.store.add("me", name, io.BytesIO(b"x")))


def until(condition: Callable[[], Any]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def ended(job: Job) -> str:
    until(lambda: not job.active)
    return job.state


def test_an_answer_and_its_files(asked: Asked) -> None:
    job = ask(asked, "good")
    assert ended(job) == "done" and job.seconds == 0.25
    assert [part.title for part in job.parts] == ["Out", "Said"]
    assert asked.store.results("me", job.name) == ["out.wav"]
    assert asked.of("me") == [job] and asked.of("you") == []


@pytest.mark.parametrize("word, line", [("bad", "File: cannot be read"), ("wrong", "the server could not do it")])
def test_why_there_is_no_answer(asked: Asked, word: str, line: str) -> None:
    job = ask(asked, word)
    assert ended(job) == "failed" and job.text.startswith(line)


def test_cancelling(asked: Asked, model: Model) -> None:
    job = ask(asked, "slow")
    until(lambda: job.state == "working")
    assert (job.fraction, job.text) == (0.5, "half")
    asked.cancel(job)
    assert ended(job) == "cancelled" and model.left == ["slow"]


def test_a_batch_is_one_zip(asked: Asked) -> None:
    files = [upload(asked, name) for name in ("a.wav", "bad.wav", "a.wav")]
    job = asked.begin("me", RUN, "", [{"file": file} for file in files], "3 files")
    assert ended(job) == "done"
    assert job.parts[0] == Output("file", "All results", "results.zip")
    assert [row[:2] for row in job.parts[1].data["rows"]] == [
        ["a.wav", "done"],
        ["bad.wav", "failed"],
        ["a.wav", "done"],
    ]
    with zipfile.ZipFile(asked.store.result("me", job.name, "results.zip")) as archive:
        assert archive.namelist() == ["01_a/out.wav", "01_a/answer.json", "03_a/out.wav", "03_a/answer.json"]
        assert archive.read("03_a/out.wav") == b"a.wav"
        assert json.loads(archive.read("01_a/answer.json"))[0]["data"] == "a.wav"
    assert [path.name for path in job.folder.parent.iterdir()] == ["out"]


def test_a_batch_of_nothing_but_failures_says_the_first(asked: Asked) -> None:
    job = ask(asked, "bad", "bad")
    assert ended(job) == "failed" and job.text == "File: cannot be read"


def test_a_cancelled_batch_leaves_no_zip(asked: Asked, model: Model) -> None:
    job = ask(asked, "good", "slow", "never")
    until(lambda: job.text.startswith("2 of 3"))
    until(lambda: job.fraction > 0.4)
    asked.cancel(job)
    assert ended(job) == "cancelled" and model.left == ["good", "slow"]
    assert [path.name for path in job.folder.parent.iterdir()] == ["out"]


def test_a_batch_stops_where_there_is_no_room(asked: Asked) -> None:
    upload(asked, "a.wav").parent.joinpath("large").write_bytes(bytes(MIB))
    job = ask(asked, "good", "good")
    assert ended(job) == "failed" and "no room" in job.text


def test_what_is_under_way_keeps_its_folder(asked: Asked) -> None:
    slow = ask(asked, "slow")
    others = [ask(asked, "good") for _ in range(3)]
    for job in others:
        ended(job)
    for _ in range(KEPT_JOBS):
        last = ask(asked, "good")
        ended(last)
    assert slow.active and slow.folder.is_dir()
    mine = asked.of("me")
    assert mine[0] is slow and mine[-1] is last and len(mine) == KEPT_JOBS  # answers go with their files


def test_a_session_has_only_so_many_under_way(asked: Asked) -> None:
    for _ in range(KEPT_JOBS):
        ask(asked, "slow")
    with pytest.raises(ValueError, match="under way"):
        ask(asked, "good")
    assert ended(ask(asked, "good", session="you")) == "done"


def test_jobs_end_with_their_session(asked: Asked, model: Model) -> None:
    mine, yours = ask(asked, "slow"), ask(asked, "slow", session="you")
    until(lambda: mine.state == yours.state == "working")
    asked.end("me")
    asked.store.end("me")
    assert ended(mine) == "cancelled" and yours.active and asked.of("me") == []
    assert not (asked.store.jobs / "me").exists()


def test_an_upload_stays_while_it_is_read(asked: Asked) -> None:
    key = asked.store.add("me", "slow.wav", io.BytesIO(b"x"))
    job = asked.begin("me", RUN, "", [{"file": asked.store.owned("me", key)}], "slow.wav")
    asked.forget("me", key)
    assert asked.store.owned("me", key).is_file()
    asked.forget("you", key)
    asked.cancel(job)
    ended(job)
    asked.forget("me", key)
    with pytest.raises(ValueError):
        asked.store.owned("me", key)


def test_a_folder_of_the_server(asked: Asked, places: Places) -> None:
    for name in ("a.wav", "b.wav"):
        (places.data / "speech").mkdir(exist_ok=True)
        (places.data / "speech" / name).write_bytes(b"x")
    assert list(asked.folders()) == ["data: speech", f"run: {RUN}"]
    job = asked.begin_folder("me", RUN, "", "data: speech", (".wav",))
    assert ended(job) == "done"
    (target,) = (places.runs / RUN / "predictions").iterdir()
    assert sorted(path.name for path in target.iterdir()) == ["a.wav", "b.wav", "manifest.rank0.jsonl"]
    assert [row[:2] for row in job.parts[1].data["rows"]] == [["a.wav", "done"], ["b.wav", "done"]]
    assert f"{RUN}/predictions/{target.name}" in job.parts[0].data


def test_a_folder_that_fails_says_why(asked: Asked, places: Places) -> None:
    (places.data / "empty").mkdir()
    job = asked.begin_folder("me", RUN, "", "data: empty", ())
    assert ended(job) == "failed" and job.text == "zoo: error: no file below it ends in .wav"


def test_a_folder_is_cancelled_and_the_next_one_waits(asked: Asked, places: Places) -> None:
    for name in ("slow", "speech"):
        (places.data / name).mkdir()
        (places.data / name / "a.wav").write_bytes(b"x")
    (places.data / "slow" / "b.wav").write_bytes(b"x")
    slow = asked.begin_folder("me", RUN, "", "data: slow", (".wav",))
    until(lambda: slow.text == "1 of 2 files")
    assert slow.fraction == 0.5
    following = asked.begin_folder("you", RUN, "", "data: speech", (".wav",))
    until(lambda: "another folder" in following.text)
    asked.cancel(slow)
    assert ended(slow) == "cancelled" and ended(following) == "done"


@pytest.mark.parametrize("name", ["/etc", "data: ../..", "speech", "run: ../secret", ""])
def test_a_folder_is_named_and_never_a_path(asked: Asked, name: str) -> None:
    with pytest.raises(ValueError, match="there is no folder"):
        asked.begin_folder("me", RUN, "", name, ())


@pytest.mark.parametrize("run", ["../..", "toy/smoke", "toy/smoke/gone", ""])
def test_a_folder_needs_a_run(asked: Asked, run: str) -> None:
    with pytest.raises(ValueError):
        asked.begin_folder("me", run, "", f"run: {RUN}", ())
