"""`zoo serve`: gate, batches, limits and end with workers that compute nothing; all systems with real ones."""

from __future__ import annotations

import io
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("fastapi", reason="needs the extra `ui`")
pytest.importorskip("prometheus_client", reason="needs the extra `ui`")

import httpx
import psutil
import soundfile
import uvicorn

from tests.harness import REPOSITORY, environment
from zoo.audio.io import files
from zoo.runs.interactive import Field, Part, field_of
from zoo.serve import commands
from zoo.serve.queue import Limits, Queue
from zoo.serve.server import FIXED, Served, build
from zoo.ui.listening import bind
from zoo.ui.security import HOSTS, Keys
from zoo.ui.store import MIB, Store
from zoo.ui.warm.pool import Arriving, Failed, Finished, Workers
from zoo.ui.warm.worker import Worker

FORMER = REPOSITORY / "tests" / "data" / "checkpoints_8e52760"
TOKEN = "a-token-of-the-tests"
FIELDS = (
    Field("text", "Text", "text", high=100),
    Field("number", "Number", "int", 3, 0, 2**31),
    Field("share", "Share", "float", 0.5, 0, 1),
    Field("really", "Really", "bool", False),
    Field("kind", "Kind", "choice", "a", choices=("a", "b")),
    Field("kinds", "Kinds", "choices", choices=("x", "y"), optional=True),
    Field("file", "File", "file", suffixes=(".txt",), optional=True),
)


class Stub:
    """Workers that compute nothing: an answer repeats the values; what the text says goes wrong."""

    def __init__(self, together: bool = True) -> None:
        self.together = together
        self.batches: list[list[str]] = []
        self.go = threading.Event()
        self.go.set()

    def fields(self, run: str, checkpoint: str) -> tuple[Field, ...]:
        return FIELDS

    def computes_together(self) -> bool:
        return self.together

    def computes_arriving(self) -> bool:
        return False

    def close(self) -> None:
        self.go.set()

    def list(self) -> tuple[Any, ...]:
        return ()

    def ask_together(self, run: str, checkpoint: str, asked: Any) -> list[Finished | Failed]:
        texts = [values["text"] for values, _ in asked]
        self.batches.append(texts)
        self.go.wait(20)
        if "deadly" in texts:
            return [Failed("the process that computes was ended by SIGKILL", cause="lost")] * len(asked)
        return [self._answer(values, folder) for values, folder in asked]

    def _answer(self, values: Any, folder: Path) -> Finished | Failed:
        if values["text"] == "bad":
            return Failed("the file is torn", cause="input")
        said = {name: str(value) for name, value in values.items()}
        if values["file"]:
            (folder / "out.txt").write_bytes(b"got " + values["file"].read_bytes())
            return Finished((Part("file", "Result", "out.txt"), Part("text", "Said", data=said)), 0.1)
        return Finished((Part("text", "Said", data=said),), 0.1)


@contextmanager
def running(workers: Any, folder: Path, **limits: Any) -> Iterator[tuple[str, Queue]]:
    """The endpoint in a thread; its address."""
    folder.mkdir(exist_ok=True)
    queue = Queue(workers, FIXED, Store(folder, 2**40), Limits(**{"wait": 0.05, "upload": MIB, **limits}))
    server = uvicorn.Server(uvicorn.Config(build(queue, Keys(token=TOKEN), set(HOSTS), "test"), log_level="error"))
    bound = bind("127.0.0.1", 0)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
    thread.start()
    address = f"http://127.0.0.1:{bound.getsockname()[1]}"
    try:
        wait_for(lambda: queue.fields is not None)
        yield address, queue
    finally:
        server.should_exit = True
        thread.join()


def wait_for(done: Any, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end
        time.sleep(0.02)


def client(address: str, **headers: str) -> httpx.Client:
    return httpx.Client(base_url=address, headers={"Authorization": f"Bearer {TOKEN}", **headers}, timeout=60)


@pytest.fixture
def stub() -> Stub:
    return Stub()


def test_what_is_asked_and_answered(stub: Stub, tmp_path: Path) -> None:
    with running(stub, tmp_path / "store") as (address, queue), client(address) as asking:
        found = asking.post("/predict", json={"text": "hi", "kinds": ["x", "y"], "share": 1}).json()
        assert found["seconds"] == 0.1
        said = found["parts"][0]["data"]
        assert said == {"text": "hi", "number": "3", "share": "1.0", "really": "False", "kind": "a",
                        "kinds": "('x', 'y')", "file": "None"}  # fmt: skip
        form = {"text": "5", "number": "7", "really": "true", "kinds": ["y"]}
        with_file = asking.post("/predict", data=form, files={"file": ("../../e vil.txt", b"abc")}).json()
        result, told = with_file["parts"]
        assert told["data"]["text"] == "5" and told["data"]["really"] == "True" and told["data"]["kinds"] == "('y',)"
        assert told["data"]["file"].startswith(str(tmp_path / "store" / "uploads"))
        assert asking.get(result["link"]).content == b"got abc"
        session = result["link"].split("/")[2]
        for wrong in ("/results/x/out.txt", f"/results/{session}/..%2fout.txt", f"/results/{session}/%2e%2e/a",
                      "/results/../../etc/passwd", f"/results/{session}/out.txt%00"):  # fmt: skip
            assert asking.get(wrong).status_code == 404
        as_file = {"Accept": "text/plain, application/octet-stream"}
        sent = asking.post("/predict", data={"text": "5"}, files={"file": ("a.txt", b"abc")}, headers=as_file)
        assert sent.content == b"got abc" and sent.headers["content-type"].startswith("text/plain")
        wait_for(lambda: [path.name for path in (tmp_path / "store" / "jobs").iterdir()] == [session])
        assert not list((tmp_path / "store").rglob("*vil.txt"))
        queue._results = type(queue._results)({key: (0.0, *rest) for key, (_, *rest) in queue._results.items()})
        wait_for(lambda: not list((tmp_path / "store").rglob("out.txt")))
        assert asking.get(result["link"]).status_code == 404
        described = asking.get("/openapi.json").json()
        body = described["paths"]["/predict"]["post"]["requestBody"]["content"]["multipart/form-data"]["schema"]
        assert body["required"] == ["text"] and body["properties"]["number"]["maximum"] == 2**31
        assert asking.get("/docs").status_code == 404
        figures = asking.get("/metrics").text
        assert 'zoo_requests_total{code="200",path="/predict"} 3.0' in figures
        assert "zoo_batch_size_count 3.0" in figures and "zoo_queue_length 0.0" in figures


@pytest.mark.parametrize(
    ("given", "field", "why"),
    [
        ('{"text": "a", "number": NaN}', "number", "whole number"),
        ('{"text": "a", "number": 1e999}', "number", "whole number"),
        (f'{{"text": "a", "number": 1{"0" * 4000}}}', "number", "found 1000"),
        (f'{{"text": "a", "number": 1{"0" * 9000}}}', None, "no JSON"),
        ('{"text": "a", "share": "0.5"}', "share", "a number"),
        ('{"text": "a", "share": -1}', "share", "expected 0 to 1"),
        ('{"text": "a", "really": 1}', "really", "yes or no"),
        ('{"text": "a", "kind": "c"}', "kind", "one of a, b"),
        ('{"text": "a", "kinds": ["x", "x"]}', "kinds", "twice"),
        ('{"text": "a", "kinds": {"x": 1}}', "kinds", "some of"),
        ('{"text": ["a"]}', "text", "a text"),
        ('{"text": "\\ud800"}', "text", "no character"),
        ('{"text": ""}', "text", "write something"),
        (json.dumps({"text": "a" * 101}), "text", "at most 100"),
        ('{"text": "a", "file": "/etc/passwd"}', "file", "multipart/form-data"),
        ('{"text": "a", "__class__": 1}', "__class__", "there is no field"),
        ("[" * 100_000, None, "nest too deeply"),
        ("[1]", None, "expected an object"),
        ("{", None, "no JSON"),
    ],
)
def test_a_wrong_value_is_named(given: str, field: str | None, why: str, shared: Any) -> None:
    found = shared.post("/predict", content=given, headers={"Content-Type": "application/json"})
    assert found.status_code == 422
    assert found.json()["field"] == field and why in found.json()["error"]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """An endpoint for requests that change nothing."""
    with running(Stub(), tmp_path_factory.mktemp("store")) as (address, _), client(address) as asking:
        yield asking


def test_wrong_forms(shared: httpx.Client) -> None:
    def refused(code: int, **given: Any) -> dict[str, Any]:
        found = shared.post("/predict", **given)
        assert found.status_code == code, found.text
        return found.json()

    some = ("a.txt", b"abc")
    assert refused(422, data={"text": "a"}, files={"file": ("a.exe", b"")})["field"] == "file"
    assert refused(422, data={"text": "a"}, files={"other": some})["field"] == "other"
    assert refused(422, data={"number": "1"}, files={"text": some})["field"] == "text"
    assert refused(422, data={"text": ["a", "b"]}, files={"file": some})["field"] == "text"
    assert refused(422, data={"text": "a", "number": "nan"}, files={"file": some})["field"] == "number"
    assert refused(422, data={"text": "a"}, files=[("kinds", some)])["field"] == "kinds"
    refused(400, data={"text": "a"}, files=[("file", some)] * 20)
    refused(400, content=b"no form at all", headers={"Content-Type": "multipart/form-data"})
    refused(415, content=b"a", headers={"Content-Type": "text/plain"})
    torn = b'--x\r\nContent-Disposition: form-data; name="text"\r\n\r\nabc'
    assert refused(422, content=torn, headers={"Content-Type": "multipart/form-data; boundary=x"})["field"] == "text"
    too_much = torn + b"a" * (MIB + 1)
    refused(413, data={"text": "a"}, files={"file": ("a.txt", too_much)})
    refused(413, content=iter([too_much]), headers={"Content-Type": "multipart/form-data; boundary=x"})


def test_nothing_without_the_token(shared: httpx.Client) -> None:
    address = str(shared.base_url)
    for path in ("/predict", "/metrics", "/openapi.json", "/results/a/b", "/", "/docs"):
        for headers in ({}, {"Authorization": "Bearer x"}, {"Authorization": f"Basic {TOKEN}"},
                        {"Authorization": f"Bearer {TOKEN}x"}, {"Cookie": f"zoo_ui={TOKEN}"}):  # fmt: skip
            found = httpx.request("POST" if path == "/predict" else "GET", f"{address}{path}", headers=headers)
            assert found.status_code == 401 and TOKEN not in found.text
        assert httpx.get(f"{address}{path}?token={TOKEN}").status_code == 401
    for headers in ({"Host": "evil.example"}, {"Host": "evil@127.0.0.1"}, {"Origin": "http://evil.example"}):
        assert shared.get("/metrics", headers=headers).status_code == 403
    assert httpx.get(f"{address}/health").json() == {"status": "ready"}


def test_requests_that_wait_are_computed_together_and_a_bad_one_fails_alone(stub: Stub, tmp_path: Path) -> None:
    texts = [f"text {number}" for number in range(20)]
    texts[3], texts[7] = "bad", "deadly"
    with running(stub, tmp_path / "store", batch=8) as (address, _), client(address) as asking:
        stub.go.clear()
        with ThreadPoolExecutor(20) as pool:
            asked = [pool.submit(asking.post, "/predict", json={"text": text}) for text in texts]
            wait_for(lambda: asking.get("/metrics").text.count("zoo_queue_length 0.0") == 0)
            stub.go.set()
            found = [each.result() for each in asked]
        codes = {text: each.status_code for text, each in zip(texts, found, strict=True)}
        assert codes == {text: {"bad": 422, "deadly": 500}.get(text, 200) for text in texts}
        for text, each in zip(texts, found, strict=True):
            assert each.status_code != 200 or each.json()["parts"][0]["data"]["text"] == text
        assert max(map(len, stub.batches)) == 8


class Joined(Stub):
    """Lets requests join, and loses the process with three of them."""

    def computes_arriving(self) -> bool:
        return True

    def ask_arriving(self, run: str, checkpoint: str, arriving: Arriving) -> Failed | None:
        for _ in range(3):  # nothing ends before all are there
            assert arriving.inbox.get() is not None
        return Failed("the process that computes was ended by SIGKILL", cause="lost")


def test_of_those_that_joined_only_the_one_fails_that_took_the_process_along(tmp_path: Path) -> None:
    stub = Joined()
    with running(stub, tmp_path / "store") as (address, queue), client(address) as asking:
        texts = ["deadly", "second", "third"]
        with ThreadPoolExecutor(3) as pool:
            found = [each.status_code for each in pool.map(lambda text: asking.post("/predict", json={"text": text}),
                                                           texts)]  # fmt: skip
        assert found == [500, 200, 200] and sorted(stub.batches) == [[text] for text in sorted(texts)]
        assert queue.active == 0


def test_a_full_line_a_deadline_and_a_client_that_leaves(stub: Stub, tmp_path: Path) -> None:
    with running(stub, tmp_path / "store", batch=1, queue=2, deadline=1.5) as (address, queue), client(address) as ask:
        stub.go.clear()
        with ThreadPoolExecutor(5) as pool:
            first = pool.submit(ask.post, "/predict", json={"text": "first"})
            wait_for(lambda: stub.batches)
            leaving = socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])))
            body = b'{"text": "left"}'
            head = f"POST /predict HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n"
            leaving.sendall(f"{head}Content-Type: application/json\r\nContent-Length: 16\r\n\r\n".encode() + body)
            wait_for(lambda: len(queue._line) == 1)
            second = pool.submit(ask.post, "/predict", json={"text": "second"})
            wait_for(lambda: len(queue._line) == 2)
            full = ask.post("/predict", json={"text": "full"})
            assert full.status_code == 429 and int(full.headers["retry-after"]) >= 1
            leaving.close()
            wait_for(lambda: len(queue._line) == 1)
            assert first.result().status_code == 504 and second.result().status_code == 504
            stub.go.set()
            assert ask.post("/predict", json={"text": "later"}).status_code == 200
        assert stub.batches == [["first"], ["later"]]
        assert "zoo_dropped_total 1.0" in ask.get("/metrics").text
        wait_for(lambda: not list((tmp_path / "store" / "jobs").iterdir()))


def test_clients_that_hang_in_an_upload_stop_nobody(
    stub: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zoo.serve.server.IDLE_SECONDS", 2.0)
    with running(stub, tmp_path / "store") as (address, queue), client(address) as asking:
        head = (
            f"POST /predict HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: {MIB}\r\n"
            "Content-Type: multipart/form-data; boundary=x\r\n\r\n"
            '--x\r\nContent-Disposition: form-data; name="file"; filename="a.txt"\r\n\r\nabc'
        )
        hanging = [socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2]))) for _ in range(20)]
        for each in hanging:
            each.sendall(head.encode())
        wait_for(lambda: queue.active == 20)
        assert asking.post("/predict", data={"text": "a"}, files={"file": ("a.txt", b"abc")}).status_code == 200
        hanging.pop().close()  # in the middle
        for each in hanging:
            each.settimeout(30)
            assert b" 408 " in each.recv(100)
            each.close()
        wait_for(lambda: queue.active == 0)
        assert 'zoo_requests_total{code="499",path="/predict"} 1.0' in asking.get("/metrics").text


class Local(Stub):
    """The worker of a run in this process."""

    def __init__(self, run: Path, temp: Path) -> None:
        super().__init__()
        temp.mkdir()
        self.out = io.StringIO()
        self.worker = Worker(self.out, {"path": str(run), "temp": str(temp), "allow_import": []})

    def fields(self, run: str, checkpoint: str) -> tuple[Field, ...]:
        return tuple(field_of(row) for row in json.loads(self.out.getvalue().splitlines()[0])["fields"])

    def ask_together(self, run: str, checkpoint: str, asked: Any) -> list[Finished | Failed]:
        rows = self.worker._answers(
            [
                {"values": {k: str(v) if isinstance(v, Path) else v for k, v in values.items()}, "folder": str(folder)}
                for values, folder in asked
            ]
        )
        self.batches.append([""] * len(asked))
        return [
            Failed(row["failed"], cause="input" if row["refused"] else "")
            if "failed" in row
            else Finished(tuple(Part(**part) for part in row["parts"]), row["seconds"])
            for row in rows
        ]


def files_read(content: bytes) -> np.ndarray:
    return soundfile.read(io.BytesIO(content))[0]


def tone(path: Path, seconds: float = 0.5) -> bytes:
    files.write(path, 0.1 * np.sin(np.arange(int(seconds * 16000)) / 10), 16000)
    return path.read_bytes()


@pytest.mark.parametrize(
    ("name", "kind", "given"),
    [
        ("flow/smoke", "image", {"count": 2, "steps": 2, "animation": False}),
        ("flow/points", "image", {"count": 10, "steps": 2, "animation": False}),
        ("hifigan/smoke", "audio", None),
        ("miipher/smoke_finetune", "audio", None),
        ("audiosr/smoke", "audio", None),
        ("ci_llm/smoke", "text", {"question": "How much is 2 + 3?", "max_new_tokens": 2}),
        ("compressed_ad/smoke", "animation", {"episodes": 2, "rooms": 1}),
    ],
)
def test_every_system_answers(name: str, kind: str, given: Any, tmp_path: Path) -> None:
    workers = Local(FORMER / name / "run", tmp_path / "temp")
    with running(workers, tmp_path / "temp") as (address, _), client(address) as asking:
        if given is None:
            sent = {"input": ("tone.wav", tone(tmp_path / "tone.wav"))}
            found = asking.post("/predict", files=sent, data={"steps": "2"} if "audiosr" in name else None)
            torn = asking.post("/predict", files={"input": ("torn.wav", b"RIFF nothing")})
            assert torn.status_code == 422 and "torn.wav" in torn.text and str(tmp_path) not in torn.text
        else:
            found = asking.post("/predict", json=given)
        assert found.status_code == 200, found.text
        parts = found.json()["parts"]
        assert parts[0]["kind"] == kind
        for part in parts:
            if "link" in part:
                assert asking.get(part["link"]).content


def test_a_whole_server(tmp_path: Path) -> None:
    """The process itself: a line with the address, answers in batches, a killed worker, files of a client, the end."""
    said = tmp_path / "said.txt"
    command = [sys.executable, "-m", "zoo", "serve", str(FORMER / "hifigan" / "smoke" / "run"), "--max_wait_ms", "100"]
    with said.open("w") as output:
        process = subprocess.Popen(
            [*command, "--token_env", "ZOO_TEST_TOKEN"],
            cwd=tmp_path,
            env=environment(TMPDIR=str(tmp_path), ZOO_TEST_TOKEN=TOKEN),
            stdout=output,
            stderr=output,
        )
    try:
        wait_for(lambda: "token" in said.read_text() or process.poll() is not None, 120)
        (line,) = said.read_text().splitlines()
        assert TOKEN not in line
        address = re.search(r"http://127\.0\.0\.1:\d+", line)
        assert address, line
        with client(address.group()) as asking:

            def health() -> str:
                try:
                    return asking.get("/health").json()["status"]
                except httpx.TransportError:
                    return ""

            wait_for(lambda: health() == "ready", 120)
            sound = tone(tmp_path / "tone.wav")

            def ask(number: int) -> httpx.Response:
                headers = {"Accept": "audio/wav"}
                return asking.post("/predict", files={"input": (f"{number}.wav", sound)}, headers=headers)

            with ThreadPoolExecutor(6) as pool:
                found = list(pool.map(ask, range(6)))
            assert {each.status_code for each in found} == {200}
            first, *others = (files_read(each.content) for each in found)
            assert all(np.abs(each - first).max() <= 2**-15 for each in others)  # batches differ by rounding
            assert re.search(r"zoo_batch_size_count [1-9]\d*\.0", asking.get("/metrics").text)
            (worker,) = psutil.Process(process.pid).children()
            assert TOKEN not in worker.environ().values()
            worker.kill()
            worker.wait(10)
            assert np.abs(files_read(ask(7).content) - first).max() <= 2**-15
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 143
        assert not list(tmp_path.glob("zoo-serve-*"))
        assert len(said.read_text().splitlines()) == 1
    finally:
        process.kill()
        process.wait()


def test_the_end_waits_for_what_is_computed(stub: Stub, tmp_path: Path) -> None:
    with running(stub, tmp_path / "store") as (address, queue), client(address) as asking:
        stub.go.clear()
        with ThreadPoolExecutor(1) as pool:
            first = pool.submit(asking.post, "/predict", json={"text": "first"})
            wait_for(lambda: stub.batches)
            queue.ending = True
            assert asking.post("/predict", json={"text": "late"}).status_code == 503
            assert asking.get("/health").status_code == 503
            stub.go.set()
            assert first.result().status_code == 200


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"port": 70000}, "0 to 65535"),
        ({"max_batch": 0}, "max_batch is at least 1"),
        ({"host": "0.0.0.0"}, "--allowed_hosts"),
        ({"token_env": "ZOO_NO_SUCH"}, "no such environment variable"),
        ({"token_env": "ZOO_SHORT"}, "at least 16"),
    ],
)
def test_wrong_options(given: dict[str, Any], why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZOO_SHORT", "1234567")
    with pytest.raises(ValueError, match=why):
        commands.main(FORMER / "hifigan" / "smoke" / "run", **given)


def test_there_is_no_such_run(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nothing"):
        commands.main(tmp_path / "nothing")


def test_what_is_served(tmp_path: Path) -> None:
    """A named checkpoint stays, whatever it is called; of a run the newest is taken."""
    path = tmp_path / "epoch=1-loss=0.5.ckpt"
    path.touch()
    fixed = Workers(Served(tmp_path, tmp_path, tmp_path, tmp_path, path))
    assert fixed._stamp(("run", FIXED))[0] == str(path)
    fixed.close()
