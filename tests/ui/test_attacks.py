"""A logged-in attacker who speaks HTTP to a really started server: files of others never reach a job or an answer."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from tests.harness import environment

pytest.importorskip("gradio", reason="needs the extra `ui`")

httpx = pytest.importorskip("httpx")

LIMITS = ("--max_uploads", "5", "--max_session_mib", "2", "--max_upload_mib", "4")
SECRET = "the-servers-secret"


class Server:
    """A started `zoo ui`, its folders, and sessions at it.

    Args:
        process: of the server.
        address: with the token.
        folder: where it was started.
    """

    def __init__(self, process: subprocess.Popen[str], address: str, folder: Path) -> None:
        self.process = process
        self.address = address
        self.folder = folder

    def enter(self) -> Any:
        """A new session."""
        client = httpx.Client(base_url=self.address.partition("?")[0], follow_redirects=True, timeout=60)
        assert client.get("/", params={"token": self.address.rpartition("=")[2]}).status_code == 200
        return client

    @property
    def temp(self) -> Path:
        """The server's temporary folder."""
        return next(self.folder.glob("zoo-ui-*"))

    def taken(self) -> set[str]:
        """What every file of the temporary folder holds."""
        return {path.read_text("utf-8", "replace") for path in self.temp.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    (folder / "token.txt").write_text(SECRET)
    run = folder / "runs" / "hifigan" / "smoke" / "20240101-000000"
    run.mkdir(parents=True)
    (run / "config.yaml").write_text("trainer: {max_steps: 1}\n")
    (run / "step_1.ckpt").write_bytes(b"no checkpoint")
    command = [sys.executable, "-m", "zoo", "ui", "--port", "0", *LIMITS]
    said = folder / "said.txt"
    with said.open("w") as output:
        process = subprocess.Popen(
            command, cwd=folder, env=environment(TMPDIR=str(folder), SERVER_SECRET=SECRET), stdout=output, stderr=output
        )
    end = time.monotonic() + 180
    while not (found := re.search(r"http://127\.0\.0\.1:\d+/\?token=\S+", said.read_text())):
        assert process.poll() is None and time.monotonic() < end, said.read_text()
        time.sleep(0.1)
    made = Server(process, found.group(), folder)
    while True:
        try:
            made.enter().close()
            break
        except httpx.TransportError:
            assert time.monotonic() < end
            time.sleep(0.2)
    yield made
    process.send_signal(signal.SIGTERM)
    assert process.wait(90) == 143
    assert not list(folder.glob("zoo-ui-*"))  # what was uploaded goes with the server


@pytest.fixture
def client(server: Server) -> Iterator[Any]:
    with closing(server.enter()) as made:
        yield made


def send(client: Any, *contents: bytes, name: str = "tone.wav") -> Any:
    return client.post("/gradio_api/upload", files=[("files", (name, content)) for content in contents])


def described(path: str, **more: Any) -> dict[str, Any]:
    return {"path": path, "meta": {"_type": "gradio.FileData"}, **more}


def ask(client: Any, api: str, data: list[Any]) -> tuple[int, str]:
    """Call an endpoint of the page; returns the status and all that was answered in the end."""
    begun = client.post(f"/gradio_api/call/{api}", json={"data": data})
    if begun.status_code != 200:
        return begun.status_code, begun.text
    with client.stream("GET", f"/gradio_api/call/{api}/{begun.json()['event_id']}") as answer:
        return 200, "".join(answer.iter_text())


def predict(client: Any, file: Any, lines: str = "") -> tuple[int, str]:
    return ask(client, "_predict", ["hifigan/smoke/20240101-000000", "the newest sound one", file, lines])


def test_foreign_files_never_reach_a_job(server: Server, client: Any) -> None:
    other = server.enter()
    mine, theirs = send(client, b"mine").json()[0], send(other, b"theirs").json()[0]
    (server.folder / "link.wav").symlink_to("/etc/passwd")
    up = os.path.relpath("/etc/passwd", Path(mine).parent)
    paths = [
        "/etc/passwd",
        str(server.folder / "token.txt"),
        theirs,
        str(server.folder / "link.wav"),
        str(Path(mine).parent),
    ]
    paths += [
        f"{Path(mine).parent}/{up}",
        f"{mine}/.",
        f"{mine}\0",
        f"file://{mine}",
        "http://127.0.0.1:1/x",
        "",
        "said.txt",
    ]
    bad: list[Any] = [described(path) for path in paths]
    bad += [described(mine, url="file:///etc/passwd"), described(mine, url=f"/gradio_api/file={theirs}")]
    bad += [
        described(mine, orig_name="../../x"),
        described(mine, is_stream=True),
        {"path": mine, "meta": {"_type": "x"}},
    ]
    bad += [{"path": mine}, described(theirs, url=f"/gradio_api/file={mine}"), {"path": [mine], "meta": {}}]
    before = server.taken()
    for file in bad:
        status, answer = predict(client, file)
        assert status == 403, (file, answer)
        assert SECRET not in answer and "root:" not in answer
    for place in range(4):  # any input is taken for a file by what it looks like
        data: list[Any] = ["x", "y", None, "z"]
        data[place] = {"deep": [described("/etc/passwd")]}
        assert ask(client, "_predict", data)[0] == 403
    assert server.taken() == before
    assert Path(mine).is_file() and Path(theirs).is_file()
    other.close()


def test_every_route_that_takes_values_looks_at_files(server: Server, client: Any) -> None:
    before = server.taken()
    file = described("/etc/passwd", orig_name="x.wav")
    config = client.get("/config").json()
    number = next(index for index, entry in enumerate(config["dependencies"]) if entry["api_name"] == "_predict")
    value = {
        "data": ["x", "y", file, ""],
        "fn_index": number,
        "session_hash": "abc",
        "event_data": None,
        "trigger_id": 1,
    }
    for path in (
        "queue/join",
        "run/_predict",
        "api/_predict",
        "call/_predict",
        "call/v2/_predict",
        "component_server",
        "queue/join/",
        "queue/join?__theme=light",
    ):
        assert client.post(f"/gradio_api/{path}", json=value).status_code == 403, path
    twice = json.dumps(value).replace('"path"', '"\\u0070ath"')
    assert client.post("/gradio_api/queue/join", content=twice).status_code == 403
    for content, kind in ((b"\xff", "application/json"), (b"[" * 100000, "application/json"), (b"a=1", "x/form")):
        answer = client.post("/gradio_api/queue/join", content=content, headers={"content-type": kind})
        assert answer.status_code == 403
    for path in ("upload/", "process_recording", "component_server", "//upload", "queue/join", "../upload"):
        answer = client.post(f"/gradio_api/{path}", files={"files": ("a.wav", b"by another door")})
        assert answer.status_code in (403, 404, 405), path
    assert server.taken() == before


def test_uploads_of_others_are_not_served(server: Server, client: Any) -> None:
    other = server.enter()
    mine, theirs = send(client, b"mine").json()[0], send(other, b"theirs").json()[0]
    assert client.get(f"/gradio_api/file={mine}").content == b"mine"
    job = server.temp / "jobs" / Path(theirs).parts[-3] / "0123456789abcdef" / "out"
    job.mkdir(parents=True)
    (job / "x.wav").write_bytes(b"theirs")
    assert other.get("/_zoo/results/0123456789abcdef/x.wav").content == b"theirs"
    assert client.get("/_zoo/results/0123456789abcdef/x.wav").status_code == 404
    host, port = client.base_url.host, client.base_url.port
    for path in (
        theirs,
        "/etc/passwd",
        str(server.folder / "token.txt"),
        f"{Path(mine).parent}/../../{theirs}",
        "said.txt",
    ):
        quoted = path.replace("/", "%2F").replace(".", "%2e")
        for form in (
            f"file={path}",
            f"file/{path}",
            f"file={quoted}",
            f"file%3D{path}",
            f"/file={path}",
            f"stream/{path}",
        ):
            raw = HTTPConnection(host, port)  # as it is, where a client would tidy it up
            raw.request(
                "GET",
                f"/gradio_api/{form}",
                headers={"cookie": "; ".join(f"{k}={v}" for k, v in client.cookies.items())},
            )
            answer = raw.getresponse()
            assert answer.status in (403, 404, 405), form
            assert b"theirs" not in (content := answer.read()) and SECRET.encode() not in content
            raw.close()
    assert client.get("/gradio_api/deep_link", params={"session_hash": "x"}).status_code == 403
    other.close()


def test_a_swapped_upload_is_refused(server: Server, client: Any) -> None:
    first, second, third = (send(client, b"mine").json()[0] for _ in range(3))
    Path(first).unlink()
    Path(first).symlink_to("/etc/passwd")
    Path(second).write_bytes(b"longer than it was")
    Path(third).unlink()
    os.link(server.folder / "token.txt", third)
    for path in (first, second, third):
        assert predict(client, described(path))[0] == 403
        assert client.get(f"/gradio_api/file={path}").status_code == 403


def test_uploads_of_a_session_are_counted(client: Any, server: Server) -> None:
    answers = [send(client, b"1") for _ in range(8)]
    assert [answer.status_code for answer in answers] == [200] * 5 + [413] * 3
    assert answers[-1].text == "a session may have 5 uploads at a time (--max_uploads)"
    with closing(server.enter()) as other:
        assert send(other, *[b"1"] * 300).status_code in (400, 413)
        assert send(other, b"0" * 2**20, b"0" * 2**20, b"1").status_code == 413  # and none of the three is kept
        assert send(other, b"0" * 2**20).status_code == 200
        large = send(other, b"0" * (2**20 + 1))
        assert (large.status_code, large.text) == (413, "a session's uploads may have 2 MiB (--max_session_mib)")
        assert send(other, b"0" * 2**20).status_code == 200


@pytest.mark.parametrize(
    "lines",
    [
        "model.class_path=zoo.cli.trainer.Loaded\nmodel.init_args.path=x",
        "model={class_path: zoo.cli.trainer.Loaded, init_args: {path: x, allow_import: [subprocess]}}",
        "trainer.callbacks='[{class_path: subprocess.Popen, init_args: {args: [touch, hacked]}}]'",
        "data.init_args.root=${ oc.env:SERVER_SECRET}",
        "init_from+=[x]",
    ],
)
def test_lines_over_an_uploaded_checkpoint_run_nothing(server: Server, client: Any, lines: str) -> None:
    upload = send(client, b"PK a checkpoint", name="evil.ckpt").json()[0]
    status, answer = predict(client, described(upload), lines)
    assert status == 200 and "event: error" in answer
    assert SECRET not in answer and not (server.folder / "hacked").exists()
    assert Path(upload).is_file()  # refused before anything was taken
    data = ["hifigan", "smoke", "as in the recipe", "", "as in the recipe", None, lines]
    for api in ("_check", "_start", "_try_step"):
        status, answer = ask(client, api, [*data, *controls(client, api, len(data))])
        assert (status, SECRET in answer) == (200, False)
        assert "event: error" in answer
    assert len(list((server.folder / "runs").glob("*/*/*"))) == 1


def controls(client: Any, api: str, given: int) -> list[Any]:
    config = client.get("/config").json()
    inputs = next(entry["inputs"] for entry in config["dependencies"] if entry["api_name"] == api)
    kinds = {entry["id"]: entry["type"] for entry in config["components"]}
    blank = {"checkbox": False, "checkboxgroup": []}
    return [blank.get(kinds[number]) for number in inputs[given:]]
