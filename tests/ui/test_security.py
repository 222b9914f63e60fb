import asyncio
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("gradio", reason="needs the extra `ui`")

from fastapi.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from zoo.ui.jobs.trainings import Trainings
from zoo.ui.places import Places
from zoo.ui.security import LOGIN_PATH, UPLOAD_PATH, Gate, Keys
from zoo.ui.server import Limits, build
from zoo.ui.store import MIB, Store

BASE = "http://127.0.0.1:7860"
KEYS = Keys(token="the-token")


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Any:
    root = tmp_path_factory.mktemp("ui")
    for name in ("runs", "temp", "data"):
        (root / name).mkdir()
    places = Places(root, root / "runs", root / "temp", root / "data")
    media = places.run(places.new_run("hifigan", "smoke")) / "media" / "step_00000001"
    media.mkdir(parents=True)
    (media / "a.wav").write_bytes(b"sound")
    (media / "a.html").write_bytes(b"<script>")
    (media.parent.parent / "config.yaml").write_text("secret: 1")
    made = build(places, Trainings(places), KEYS, Limits(upload=2 * MIB))
    made.state.places = places
    return made


@pytest.fixture
def stranger(app: Any) -> Iterator[TestClient]:
    yield TestClient(app, base_url=BASE)  # no `with`: nothing of Gradio's start is needed


@pytest.fixture
def client(app: Any) -> TestClient:
    made = TestClient(app, base_url=BASE)
    assert made.get("/", params={"token": "the-token"}, follow_redirects=False).status_code == 303
    return made


def all_routes(app: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    for route in getattr(app, "routes", []):
        inner = getattr(route, "app", None) or getattr(route, "router", None)
        path = getattr(route, "path", "") or ""
        for method in getattr(route, "methods", None) or ():
            yield method, prefix + path
        if hasattr(inner, "routes"):
            yield from all_routes(inner, prefix + path)


GRADIO = ("gradio_api/queue/data", "gradio_api/queue/join", "gradio_api/upload", "gradio_api/file=/etc/hostname")
GRADIO += (
    "gradio_api/info",
    "gradio_api/run/predict",
    "gradio_api/proxy=http://x/",
    "gradio_api/heartbeat/x",
    "config",
)
GRADIO += ("gradio_api/startup-events", "gradio_api/component_server", "gradio_api/call/x", "login", "token", "nothing")
OURS = ("_zoo/media/hifigan/smoke/x/step_1/a.wav", "_zoo/results/x/y", "_zoo/login", "docs", "openapi.json")


def test_no_route_opens_without_the_token(app: Any, stranger: TestClient) -> None:
    routes = {*all_routes(app), *(("GET", f"/{path}") for path in (*GRADIO, *OURS))}
    routes |= {(method, f"/{path}") for path in (*GRADIO, *OURS) for method in ("POST", "HEAD", "OPTIONS", "DELETE")}
    assert len(routes) > 80
    for method, path in routes:
        answer = stranger.request(method, path)
        assert answer.status_code == 401, (method, path, answer.status_code)
        assert "set-cookie" not in answer.headers
    for address in ("/?token=wrong", "/?token=", "/config?token=the-token", "/?tok%65n=the-toke%6e%20"):
        assert stranger.get(address).status_code == 401
    for cookie in ("the-token", "", '"'):
        assert stranger.get("/config", headers={"cookie": f"zoo_ui={cookie}"}).status_code == 401


def test_the_token_opens_and_becomes_a_cookie(client: TestClient, stranger: TestClient) -> None:
    entered = stranger.get("/", params={"token": "the-token"}, follow_redirects=False)
    assert entered.headers["location"] == "/"
    assert {"HttpOnly", "SameSite=Strict"} <= set(entered.headers["set-cookie"].split("; "))
    assert "the-token" not in entered.headers["set-cookie"]
    page = client.get("/")
    assert page.status_code == 200 and "gradio" in page.text
    policy = page.headers["content-security-policy"]
    assert "default-src 'self'" in policy and "http" not in policy
    assert page.headers["x-content-type-options"] == "nosniff" and page.headers["x-frame-options"] == "DENY"
    assert "googleapis" not in page.text
    assert not client.get("/config").json().get("analytics_enabled")


@pytest.mark.parametrize(
    "host", ["evil.org", "127.0.0.1.evil.org", "evil.org:7860", "0.0.0.0", "", "a@localhost", "[::"]
)
def test_other_hosts_are_refused(client: TestClient, host: str) -> None:
    assert client.get("/config", headers={"host": host}).status_code == 403


@pytest.mark.parametrize("origin", ["http://evil.org", "null", "http://127.0.0.1:1", "http://localhost:7860", ""])
def test_other_origins_are_refused(client: TestClient, origin: str) -> None:
    answer = client.post("/gradio_api/queue/join", json={}, headers={"origin": origin})
    assert answer.status_code == 403
    assert "access-control-allow-origin" not in answer.headers
    assert client.get("/config", headers={"origin": BASE}).status_code == 200


def test_websockets_pass_the_same_gate(client: TestClient, stranger: TestClient) -> None:
    for who, headers in ((stranger, {"origin": BASE}), (client, {"origin": "http://evil.org"}), (client, {})):
        with pytest.raises(WebSocketDisconnect) as refused, who.websocket_connect("/queue/join", headers=headers):
            pass
        assert refused.value.code == 1008


def test_uploads_are_limited(client: TestClient, app: Any) -> None:
    def send(size: int) -> int:
        return client.post(UPLOAD_PATH, files={"files": ("a.wav", b"0" * size)}).status_code

    assert send(1000) == 200
    assert send(3 * MIB) == 413
    assert client.post("/gradio_api/queue/join", content=b"0" * 2 * MIB).status_code == 413
    blocks = (b"0" * 2**16 for _ in range(64))  # chunked: no length is told beforehand
    assert (
        client.post(
            UPLOAD_PATH, content=blocks, headers={"content-type": "multipart/form-data; boundary=x"}
        ).status_code
        == 413
    )
    full = app.state.places.temp / "full"
    with full.open("wb") as file:
        file.truncate(8 * MIB)
    assert send(1000) == 413  # the quota
    full.unlink()


def test_files_of_the_machine_are_not_served(
    client: TestClient, app: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    places = app.state.places
    run = places.list_runs()[0]
    good = f"/_zoo/media/{run}/step_00000001/a.wav"
    assert client.get(good).content == b"sound"
    assert client.get(good).headers["content-type"] == "audio/wav"
    for path in (
        good.replace("a.wav", "a.html"),
        good.replace("a.wav", "..%2F..%2Fconfig.yaml"),
        good.replace("step_00000001/a.wav", "../config.yaml"),
        good.replace("step_00000001", "%2e%2e"),
        f"/_zoo/media/{run.rpartition('/')[0]}/../x/a.wav",
        "/_zoo/results/..%2Fuploads/x",
        "/_zoo/results/../x",
    ):
        assert client.get(path).status_code == 404, path
    config = places.runs / run / "config.yaml"
    for path in (
        "/etc/hostname",
        str(config),
        str(places.temp / "x"),
        "../../etc/hostname",
        "//etc/hostname",
        "file:///etc/hostname",
    ):
        for route in (f"/gradio_api/file={path}", f"/file={path}", f"/static/{path}", f"/assets/{path}"):
            answer = client.get(route)
            assert answer.status_code in (400, 403, 404), route
    for route in ("/gradio_api/file=http://127.0.0.1:1/x", "/gradio_api/proxy=https://x.hf.space/y"):
        assert client.get(route).status_code == 403


def test_a_password_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def inside(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"inside"})

    monkeypatch.setattr("zoo.ui.security._GUESS_SECONDS", 0.0)
    who = TestClient(Gate(inside, Keys("correct horse"), MIB, Store(tmp_path, MIB)), base_url=BASE)
    assert 'type="password"' in who.get("/").text
    assert who.get("/?token=None").status_code == who.get("/?password=correct+horse").status_code == 401
    assert who.post(LOGIN_PATH, data={"password": "wrong"}).status_code == 401
    assert who.post(LOGIN_PATH, content=b"password=" + b"x" * 10000).status_code == 401
    assert who.get("/config").status_code == 401
    assert (
        who.post(LOGIN_PATH, data={"password": "correct horse"}, headers={"origin": "http://x.org"}).status_code == 403
    )
    entered = who.post(LOGIN_PATH, data={"password": "correct horse"}, follow_redirects=False)
    assert entered.status_code == 303 and "horse" not in entered.headers["set-cookie"]
    assert who.get("/config").text == "inside"


def test_a_body_that_lies_about_its_length_is_cut(tmp_path: Path) -> None:
    async def reads(scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            pass
        raise AssertionError("all of it came through")

    async def call(path: str) -> list[Any]:
        sent = []
        keys = Keys()
        cookie = keys.admit().split(";")[0]
        headers = [(b"host", b"localhost"), (b"cookie", cookie.encode()), (b"content-length", b"5")]
        scope = {"type": "http", "method": "POST", "path": path, "headers": headers, "query_string": b""}

        async def receive() -> Any:
            return {"type": "http.request", "body": b"0" * MIB, "more_body": True}

        async def send(message: Any) -> None:
            sent.append(message)

        await Gate(reads, keys, MIB, Store(tmp_path, MIB))(scope, receive, send)
        return sent

    for path in ("/x", UPLOAD_PATH):
        assert asyncio.run(call(path))[0]["status"] == 413


def test_uploads_go_when_the_last_page_of_a_session_has_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zoo.ui.security.LEAVE_SECONDS", 0.01)
    store, keys = Store(tmp_path, 8 * MIB), Keys()
    cookie = keys.admit().split(";")[0]
    mine = keys.session(cookie)
    assert mine is not None and mine not in cookie
    upload = store.add(mine, "a.wav", io.BytesIO(b"1"))
    open_pages = {"a": asyncio.Event(), "b": asyncio.Event()}

    async def holds(scope: Any, receive: Any, send: Any) -> None:
        await open_pages[scope["path"][-1]].wait()

    async def visit() -> None:
        gate = Gate(holds, keys, MIB, store)
        headers = [(b"host", b"localhost"), (b"cookie", cookie.encode())]
        scope = {"type": "http", "method": "GET", "headers": headers, "query_string": b""}
        pages = [
            asyncio.create_task(gate({**scope, "path": f"/gradio_api/heartbeat/{name}"}, None, None))
            for name in open_pages
        ]
        await asyncio.sleep(0.02)
        open_pages["a"].set()
        await asyncio.sleep(0.05)
        assert upload.is_file()
        open_pages["b"].set()
        await asyncio.gather(*pages)
        await asyncio.sleep(0.05)
        assert not upload.exists()

    asyncio.run(visit())
