"""Who gets in: a table of attacks on a running server, and what its routes send."""

import asyncio
import signal
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("nicegui", reason="needs the extra `ui`")
import websockets

from tests.ui.serving import Server, start_server
from zoo.common.locks import lock_folder
from zoo.ui.processes.command import child_environment
from zoo.ui.security import HEADERS
from zoo.ui.server import delete_stale_folders

RUN = "flow/smoke/20260101-000000"
SOCKET = "/_nicegui_ws/socket.io/?EIO=4&transport=websocket"
SAMPLE = f"/_zoo/media/{RUN}/media/step_00000010/tone.wav"
SECRET = b"not for the page"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    run = folder / "runs" / RUN
    (run / "media" / "step_00000010").mkdir(parents=True)
    (folder / "secret.wav").write_bytes(SECRET)
    (run / "config.yaml").write_text("seed_everything: 1\n")
    (run / "media" / "step_00000010" / "tone.wav").write_bytes(b"RIFF")
    (run / "media" / "step_00000010" / "link.wav").symlink_to(folder / "secret.wav")
    (folder / "runs" / "flow" / "outside").symlink_to(folder)
    stale = folder / "zoo-ui-x" / "uploads"  # of a server that was killed
    stale.mkdir(parents=True)
    (stale.parent / ".zoo.lock").touch()
    is_nohup = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN  # the server ignores it then, too
    end = signal.SIGTERM if is_nohup else signal.SIGHUP
    for server in start_server(folder, "--max_upload_mib", "1", end=end):
        assert not stale.exists()
        yield server


def connect(address: str, **headers: str) -> int:
    """Open a websocket; returns the status, 101 when it was opened."""

    async def attempt() -> int:
        try:
            async with websockets.connect(address.replace("http", "ws"), additional_headers=headers, origin=None):
                return 101
        except websockets.exceptions.InvalidStatus as error:
            return error.response.status_code

    return asyncio.run(attempt())


# method, address, headers (None takes one away), whether the cookie is sent, status
REQUESTS: list[tuple[str, str, dict[str, str | None], bool, int]] = [
    ("GET", "/", {}, True, 200),
    ("GET", SAMPLE, {}, True, 200),
    ("GET", "/", {}, False, 401),
    ("GET", "/?token=wrong", {}, False, 401),
    ("GET", "/", {"Cookie": "zoo_ui_{port}=wrong"}, False, 401),
    ("GET", "/", {"Cookie": "a=b; zoo_ui_{port}={token}"}, False, 200),
    ("GET", "/", {"Cookie": "zoo_ui_1={token}"}, False, 401),
    ("GET", SAMPLE, {}, False, 401),
    ("GET", f"{SAMPLE}?token={{token}}", {}, False, 401),
    ("GET", "/_nicegui/3.18.0/static/nicegui.js", {}, False, 401),
    ("POST", "/_zoo/upload", {}, False, 401),
    ("GET", "/", {"Host": "evil.example"}, True, 400),
    ("GET", "/", {"Origin": "http://evil.example"}, True, 403),
    ("GET", "/?token={token}", {"Origin": "http://evil.example"}, False, 403),
    ("POST", "/_zoo/upload", {"Origin": "http://evil.example"}, True, 403),
    ("POST", "/_zoo/upload", {"Origin": "null"}, True, 403),
    ("POST", "/_zoo/upload", {"Origin": None}, True, 403),
    ("GET", "/_zoo/media/flow/outside/secret.wav", {}, True, 404),
    ("GET", f"/_zoo/media/{RUN}/media/step_00000010/link.wav", {}, True, 404),
    ("GET", f"/_zoo/media/{RUN}/media/step_00000010/{'%2e%2e/' * 6}secret.wav", {}, True, 404),
    ("GET", f"/_zoo/media/{RUN}/config.yaml", {}, True, 404),
    ("GET", "/_zoo/results/%2e%2e/storage", {}, True, 404),
    ("GET", "/_zoo/results/0123456789abcdef/%2e%2e%2fuploads", {}, True, 404),
]


@pytest.mark.parametrize(("method", "path", "headers", "cookie", "status"), REQUESTS)
def test_only_the_page_itself_is_served(
    server: Server, method: str, path: str, headers: dict[str, str | None], cookie: bool, status: int
) -> None:
    token, port = server.address.rpartition("=")[2], server.home.rpartition(":")[2]
    values = {name: value.format(token=token, port=port) for name, value in headers.items() if value is not None}
    sent = {"Origin": server.home, **({"Cookie": f"zoo_ui_{port}={token}"} if cookie else {}), **values}
    sent = {name: value for name, value in sent.items() if headers.get(name, "") is not None}
    response = httpx.request(method, server.home + path.replace("{token}", token), headers=sent, timeout=60)
    assert response.status_code == status
    assert SECRET not in response.content and (status == 200 or token not in response.text)
    if status != 400:  # no such host: nothing of the page answers
        assert {name: response.headers[name] for name in HEADERS} == HEADERS


def test_websockets_need_cookie_and_origin(server: Server) -> None:
    token, port = server.address.rpartition("=")[2], server.home.rpartition(":")[2]
    cookie = {"Cookie": f"zoo_ui_{port}={token}"}
    address = server.home + SOCKET
    assert connect(address, **cookie, Origin=server.home) == 101
    assert connect(address, Origin=server.home) == 401
    assert connect(address, **cookie) == 403
    assert connect(address, **cookie, Origin="http://evil.example") == 403
    assert connect(address, **cookie, Origin="http://evil.example", Host="evil.example") != 101


def test_the_token_becomes_a_cookie_of_this_port(server: Server) -> None:
    response = httpx.get(server.address, timeout=60)
    assert response.status_code == 303 and response.headers["location"] == "/"
    cookie = response.headers["set-cookie"]
    assert cookie.startswith(f"zoo_ui_{server.home.rpartition(':')[2]}=")
    assert "HttpOnly" in cookie and "samesite=strict" in cookie.lower()


def test_other_addresses_of_the_machine_do_not_listen(server: Server) -> None:
    port = int(server.home.rpartition(":")[2])
    for host in {"127.0.0.2", *socket.gethostbyname_ex(socket.gethostname())[2]} - {"127.0.0.1"}:
        with pytest.raises(OSError):
            socket.create_connection((host, port), timeout=2).close()


@pytest.mark.parametrize(
    ("name", "stored"),
    [
        ("tone.wav", "tone.wav"),
        ("音声.wav", "音声.wav"),  # a name in Japanese keeps its suffix
        ("🎵.wav", "upload.wav"),
        ("../../etc/passwd", "passwd"),
        (".", "upload"),
        ("音" * 300 + ".flac", "音" * 50 + ".flac"),
    ],
)
def test_uploads_get_harmless_names(server: Server, name: str, stored: str) -> None:
    client = server.enter()
    response = client.post("/_zoo/upload", files=[("files", (name, b"RIFF"))])
    assert response.status_code == 200, response.text
    (upload,) = response.json()
    (path,) = next(server.folder.glob("zoo-ui-*")).glob(f"uploads/{upload['key']}/*")
    assert path.read_bytes() == b"RIFF" and path.name == stored


@pytest.mark.parametrize("chunked", [False, True])
def test_large_uploads_are_refused(server: Server, chunked: bool) -> None:
    head = b'--b\r\nContent-Disposition: form-data; name="files"; filename="a.wav"\r\n\r\n'
    body = head + bytes(2 * 2**20) + b"\r\n--b--"
    content: Any = (body[start : start + 65536] for start in range(0, len(body), 65536)) if chunked else body
    headers = {"Content-Type": "multipart/form-data; boundary=b"}
    before = set(next(server.folder.glob("zoo-ui-*")).glob("uploads/*"))
    assert server.enter().post("/_zoo/upload", content=content, headers=headers).status_code == 413
    assert set(next(server.folder.glob("zoo-ui-*")).glob("uploads/*")) == before


def test_the_folder_of_a_server_that_runs_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = tmp_path / "zoo-ui-x"
    folder.mkdir()
    delete_stale_folders()  # it is not locked yet
    with lock_folder(folder, "ui"):
        delete_stale_folders()
        assert folder.is_dir()
    (folder / ".zoo.lock").touch()
    delete_stale_folders()
    assert not folder.exists()


def test_a_token_of_a_variable_is_kept_from_trainings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZOO_TEST_TOKEN", "0123456789abcdef")
    assert "ZOO_TEST_TOKEN" not in child_environment("ZOO_TEST_TOKEN")
    assert not {"NICEGUI_STORAGE_PATH", "LOCAL_RANK"} & child_environment().keys()
