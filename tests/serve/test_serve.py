"""`zoo serve`: requests, token, limits and batches with a model that computes nothing; one real system."""

import base64
import io
import json
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="needs the extra `ui`")
pytest.importorskip("prometheus_client", reason="needs the extra `ui`")

import httpx
import numpy as np
import soundfile
from fastapi.testclient import TestClient

from tests.harness import RUNS, environment
from zoo.runs.inference.base import Inference
from zoo.runs.inference.forms import InputField, Output
from zoo.serve.app import create_app
from zoo.serve.commands import main, read_token

TOKEN = "a-token-of-the-tests"
HEADERS = {"Authorization": f"Bearer {TOKEN}"}
FIELDS = (
    InputField("text", "Text", "text", bounds=(None, 100)),
    InputField("number", "Number", "int", 3, (0, 2**31)),
    InputField("share", "Share", "float", 0.5, (0, 1)),
    InputField("really", "Really", "bool", False),
    InputField("kind", "Kind", "choice", "a", allowed=("a", "b")),
    InputField("kinds", "Kinds", "choices", allowed=("x", "y"), optional=True),
    InputField("file", "File", "file", allowed=(".txt",), optional=True),
)


class Echo(Inference):
    """Returns the values; the text names the failure."""

    input_suffixes, output_suffix = (".txt",), ".txt"

    def __init__(self) -> None:
        self.go = threading.Event()
        self.go.set()
        self.batches: list[int] = []

    def __call__(self, *args: Any) -> None: ...

    def process_file(self, source: Path, target: Path) -> dict[str, Any]:
        return {}

    def fields(self) -> tuple[InputField, ...]:
        return FIELDS

    def answer(self, values: Any, folder: Path, report: Any) -> list[Output]:
        if values["text"] == "bad":
            raise ValueError(f"{folder.parent / 'file.txt'}: truncated")
        if values["text"] == "wrong":
            raise RuntimeError("shapes do not fit")
        if values["text"] == "large":
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        folder.mkdir(parents=True, exist_ok=True)  # as results that appear when they are complete
        data = {name: str(value) for name, value in values.items() if name != "file"}
        parts = [Output("text", "Values", data=data)]
        if values["file"] is not None:
            (folder / "out.txt").write_bytes(b"got " + values["file"].read_bytes())
            parts.insert(0, Output("file", "Result", "out.txt"))
        return parts

    def answer_batch(self, requested: Any, report: Any) -> list[Any]:
        self.go.wait(30)
        self.batches.append(len(requested))
        if any(values["text"] == "broken" for values, _ in requested):
            raise RuntimeError("no device")
        if any(values["text"] == "few" for values, _ in requested):
            return []
        return super().answer_batch(requested, report)


@pytest.fixture
def model() -> Echo:
    return Echo()


@pytest.fixture
def client(model: Echo):
    app = create_app(
        model, TOKEN, ["testserver"], "test", 8, max_wait_ms=50, max_queue=4, max_upload_mib=1, timeout_seconds=5
    )
    with TestClient(app, headers=HEADERS, raise_server_exceptions=False) as client:
        yield client


def test_json_and_forms_are_answered(client: TestClient) -> None:
    parts = client.post("/predict", json={"text": "hi", "kinds": ["x", "y"], "share": 1}).json()["parts"]
    expected = {"text": "hi", "number": "3", "share": "1.0", "really": "False", "kind": "a", "kinds": "('x', 'y')"}
    assert parts[0]["data"] == expected
    form = {"text": "5", "number": "7", "really": "true", "kinds": ["y"]}
    response = client.post("/predict", data=form, files={"file": ("../../e vil.txt", b"abc")})
    file, values = response.json()["parts"]
    assert base64.b64decode(file["base64"]) == b"got abc" and file["media_type"] == "text/plain"
    assert (values["data"]["number"], values["data"]["really"]) == ("7", "True")
    files = {"file": ("音声.txt", b"a")}
    sent = client.post("/predict", data={"text": "5"}, files=files, headers={"Accept": "text/plain"})
    assert sent.content == b"got a" and sent.headers["content-type"].startswith("text/plain")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"text": "a", "number": -1}, "number"),
        ({"text": "a", "file": "/etc/passwd"}, "file"),
        ({"text": "a", "__class__": 1}, "__class__"),
    ],
)
def test_wrong_field_is_named(client: TestClient, body: Any, field: str) -> None:
    response = client.post("/predict", json=body)
    assert response.status_code == 422 and response.json()["detail"][0]["loc"][0] == field


@pytest.mark.parametrize(
    ("content", "content_type", "code"),
    [
        ("[" * 100_000, "application/json", 422),
        ('{"text": "a", "share": NaN}', "application/json", 422),
        ("a", "text/plain", 415),
        ("no form at all", "multipart/form-data", 400),
        ("x" * (2**20 + 1), "application/json", 413),
    ],
)
def test_unreadable_body_is_refused(client: TestClient, content: str, content_type: str, code: int) -> None:
    assert client.post("/predict", content=content, headers={"Content-Type": content_type}).status_code == code


def test_wrong_files_are_refused(client: TestClient) -> None:
    for data, files in (
        ({"text": "a"}, {"file": ("a.exe", b"")}),
        ({"text": "a"}, {"file": (f"a.{'t' * 300}", b"")}),
        ({"number": "1"}, {"text": ("a.txt", b"")}),
        ({"text": ["a", "b"]}, {"file": ("a.txt", b"")}),
    ):
        assert client.post("/predict", data=data, files=files).status_code == 422


def test_token_and_host_are_needed(client: TestClient) -> None:
    for headers in ({"Authorization": ""}, {"Authorization": "Bearer x"}, {"Authorization": f"Basic {TOKEN}"}):
        for method, path in (("POST", "/predict"), ("GET", "/metrics")):
            response = client.request(method, path, headers=headers)
            assert response.status_code == 401 and TOKEN not in response.text
    assert client.get("/healthz", headers={"Authorization": ""}).status_code == 200
    assert client.get("/healthz", headers={"Host": "evil.example"}).status_code == 400


def test_waiting_requests_are_computed_together(client: TestClient, model: Echo) -> None:
    def predict(text: str) -> httpx.Response:
        return client.post("/predict", json={"text": text})

    with ThreadPoolExecutor(6) as pool:
        model.go.clear()
        first = pool.submit(predict, "first")
        time.sleep(0.3)
        others = [pool.submit(predict, text) for text in ("a", "bad", "c")]
        time.sleep(0.3)
        model.go.set()
        assert first.result().json()["parts"][0]["data"]["text"] == "first"
        assert [each.result().status_code for each in others] == [200, 422, 200]
        assert others[1].result().json()["detail"] == "file.txt: truncated"
    assert model.batches == [1, 3]
    assert [predict(text).status_code for text in ("broken", "few", "after")] == [500, 500, 200]
    assert "zoo_batch_size_count 5.0" in client.get("/metrics").text


def test_what_fails_is_logged(client: TestClient, caplog: pytest.LogCaptureFixture) -> None:
    codes = [client.post("/predict", json={"text": text}).status_code for text in ("wrong", "large", "broken")]
    assert codes == [500, 503, 500]
    assert (caplog.text.count("a request failed"), caplog.text.count("a batch of 1 requests failed")) == (2, 1)
    assert all(text in caplog.text for text in ("shapes do not fit", "allocate memory", "no device"))


def test_full_queue_and_slow_computation_are_refused(
    client: TestClient, model: Echo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    model.go.clear()
    with ThreadPoolExecutor(8) as pool:
        waiting = [pool.submit(client.post, "/predict", json={"text": "a"}) for _ in range(2)]
        time.sleep(0.3)
        more = [pool.submit(client.post, "/predict", json={"text": "b"}) for _ in range(5)]
        codes = sorted(each.result().status_code for each in [*waiting, *more])
        assert client.post("/predict", json={"text": "c"}).status_code == 504
        model.go.set()
    assert codes.count(429) >= 1 and codes.count(504) == len(codes) - codes.count(429)
    time.sleep(0.3)
    assert client.post("/predict", json={"text": "later"}).status_code == 200
    assert not list(tmp_path.iterdir())


def test_tokens_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(read_token(None)) >= 16
    for value in (None, "short", "ü" * 20):
        monkeypatch.setenv("T", value) if value else monkeypatch.delenv("T", raising=False)
        with pytest.raises(ValueError, match="--token_env T"):
            read_token("T")


def wave() -> bytes:
    file = io.BytesIO()
    soundfile.write(file, 0.1 * np.sin(np.arange(8000) / 10), 22050, format="WAV")
    return file.getvalue()


def test_served_system_answers(tmp_path: Path) -> None:
    run = RUNS / "hifigan" / "smoke"
    command = [sys.executable, "-m", "zoo", "serve", str(run), "--port", "0", "--device", "cpu"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment(), cwd=tmp_path)
    try:
        assert server.stdout is not None
        address, token = re.search(r"(http://\S+) token (\S+)", server.stdout.readline()).groups()  # type: ignore[union-attr]
        with httpx.Client(base_url=address, headers={"Authorization": f"Bearer {token}"}, timeout=120) as client:
            assert client.get("/healthz").status_code == 200
            with pytest.raises(OSError, match=f"port {httpx.URL(address).port} cannot be used"):
                main(run, port=httpx.URL(address).port)
            response = client.post("/predict", files={"input": ("a.wav", wave())})
            assert response.status_code == 200, response.text
            assert "audio" in [part["kind"] for part in json.loads(response.text)["parts"]]
            sent = client.post("/predict", files={"input": ("a.wav", wave())}, headers={"Accept": "audio/wav"})
            assert sent.headers["content-type"] == "audio/wav" and soundfile.info(io.BytesIO(sent.content)).frames
    finally:
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) in (0, -signal.SIGTERM, 143)
