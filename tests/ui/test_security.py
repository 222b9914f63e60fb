import asyncio
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nicegui", reason="needs the extra `ui`")

from fastapi.testclient import TestClient
from nicegui import Client
from nicegui.testing.general import nicegui_reset_globals
from starlette.websockets import WebSocketDisconnect

from zoo.ui.jobs.trainings import Trainings
from zoo.ui.places import Places
from zoo.ui.security import LOGIN_PATH, SOCKET_PATH, UPLOAD_PATH, Gate, Keys
from zoo.ui.server import Limits, build
from zoo.ui.store import MIB, Store
from zoo.ui.warm.pool import Workers

BASE = "http://127.0.0.1:7860"
KEYS = Keys(token="the-token")


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    root = tmp_path_factory.mktemp("ui")
    for name in ("runs", "temp", "data"):
        (root / name).mkdir()
    places = Places(root, root / "runs", root / "temp", root / "data")
    media = places.run(places.new_run("hifigan", "smoke")) / "media" / "step_00000001"
    media.mkdir(parents=True)
    (media / "a.wav").write_bytes(b"sound")
    (media / "a.html").write_bytes(b"<script>")
    (media.parent.parent / "config.yaml").write_text("secret: 1")
    with nicegui_reset_globals():  # what simulated users of other tests have left
        made = build(places, Trainings(places), KEYS, Limits(upload=2 * MIB), Workers(places))
        made.state.places = places
        with TestClient(made, base_url=BASE) as running:  # its loop runs what pages do by themselves
            made.state.portal = running.portal
            yield made
        Client.page_routes.clear()  # else the reset takes their modules out of sys.modules, `zoo` among them


def visitor(app: Any) -> TestClient:
    made = TestClient(app, base_url=BASE)
    made.portal = app.state.portal  # a server has one loop
    return made


@pytest.fixture
def stranger(app: Any) -> TestClient:
    return visitor(app)


@pytest.fixture
def client(app: Any) -> TestClient:
    made = visitor(app)
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


PATHS = ("config", "login", "token", "nothing", "docs", "openapi.json", "favicon.ico", "_nicegui/3.18.0/static/x.js")
PATHS += ("_nicegui_ws/socket.io/?EIO=4&transport=polling", "_nicegui/client/x/upload/1", "_nicegui/auto/static/x/y")
PATHS += ("_zoo/media/hifigan/smoke/x/step_1/a.wav", "_zoo/results/x/y", "_zoo/login", "_zoo/upload")


def test_no_route_opens_without_the_token(app: Any, stranger: TestClient) -> None:
    routes = {*all_routes(app), *(("GET", f"/{path}") for path in PATHS)}
    routes |= {(method, f"/{path}") for path in PATHS for method in ("POST", "HEAD", "OPTIONS", "DELETE")}
    assert len(routes) > 80
    for method, path in routes:
        answer = stranger.request(method, path)
        assert answer.status_code == 401, (method, path, answer.status_code)
        assert "set-cookie" not in answer.headers
    for address in ("/?token=wrong", "/?token=", "/config?token=the-token", "/?tok%65n=the-toke%6e%20"):
        assert stranger.get(address).status_code == 401
    for cookie in ("the-token", "", '"'):
        assert stranger.get("/", headers={"cookie": f"zoo_ui={cookie}"}).status_code == 401


def test_only_what_the_page_needs_is_served(app: Any, client: TestClient) -> None:
    """Whatever NiceGUI has besides, now or in its next version, is behind the list of what is known."""
    for method, path in {*all_routes(app), *(("GET", f"/{path}") for path in PATHS[6:])}:
        known = path in ("/", "/favicon.ico", "/_zoo/upload", "/_zoo/login") or path.startswith(
            ("/_nicegui/3", "/_zoo/media", "/_zoo/curves", "/_zoo/results")
        )
        assert client.request(method, path).status_code == 404 or (known and method in ("GET", "HEAD", "POST")), path
    for path in ("/", "/_nicegui/3.18.0/static/nicegui.js", "/_zoo/media/a/b/c/d/e.wav"):
        for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
            assert client.request(method, path).status_code == 404


def test_the_token_opens_and_becomes_a_cookie(client: TestClient, stranger: TestClient) -> None:
    entered = stranger.get("/", params={"token": "the-token"}, follow_redirects=False)
    assert entered.headers["location"] == "/"
    assert {"HttpOnly", "SameSite=Strict"} <= set(entered.headers["set-cookie"].split("; "))
    assert "the-token" not in entered.headers["set-cookie"]
    page = client.get("/")
    assert page.status_code == 200 and "nicegui" in page.text
    policy = page.headers["content-security-policy"]
    assert "default-src 'self'" in policy and "http" not in policy
    assert page.headers["x-content-type-options"] == "nosniff" and page.headers["x-frame-options"] == "DENY"
    assert not re.search(r"""(src|href)=["']?(https?:)?//""", page.text)


@pytest.mark.parametrize(
    "host", ["evil.org", "127.0.0.1.evil.org", "evil.org:7860", "0.0.0.0", "", "a@localhost", "[::"]
)
def test_other_hosts_are_refused(client: TestClient, host: str) -> None:
    assert client.get("/", headers={"host": host}).status_code == 403


@pytest.mark.parametrize("origin", ["http://evil.org", "null", "http://127.0.0.1:1", "http://localhost:7860", ""])
def test_other_origins_are_refused(client: TestClient, origin: str) -> None:
    answer = client.post(UPLOAD_PATH, files={"files": ("a.wav", b"0")}, headers={"origin": origin})
    assert answer.status_code == 403
    assert "access-control-allow-origin" not in answer.headers
    assert client.get("/", headers={"origin": BASE}).status_code == 200


def test_websockets_pass_the_same_gate(app: Any, client: TestClient, stranger: TestClient) -> None:
    def socket_of(page: TestClient) -> str:
        found = re.search(r"'client_id': '([0-9a-f-]{36})'|\"client_id\": ?\"([0-9a-f-]{36})\"", page.get("/").text)
        assert found
        return f"{SOCKET_PATH}?EIO=4&transport=websocket&client_id={found[1] or found[2]}"

    other = visitor(app)
    other.get("/", params={"token": "the-token"})
    mine, theirs = socket_of(client), socket_of(other)
    for who, address, headers in (
        (stranger, mine, {"origin": BASE}),
        (client, mine, {"origin": "http://evil.org"}),
        (client, mine, {}),
        (client, theirs, {"origin": BASE}),
        (client, mine.partition("&client_id")[0], {"origin": BASE}),
        (client, f"{theirs}&{mine.partition('&')[2]}", {"origin": BASE}),
        (client, mine.replace("socket.io", "other"), {"origin": BASE}),
    ):
        with pytest.raises(WebSocketDisconnect) as refused, who.websocket_connect(address, headers=headers):
            pass
        assert refused.value.code == 1008
    own = mine.rpartition("=")[2]
    foreign = theirs.rpartition("=")[2]
    for frame in (
        f'42["event",{{"id":0,"client_id":"{foreign}"}}]',
        f'42["event",{{"client_id":"{own}","client_id":"{foreign}"}}]',
        f'42["event",{{"\\u0063lient_id":"{foreign}"}}]',
        f'4217["handshake",{{"client_id":"{foreign}","tab_id":"x"}}]',
        f'42["event",{{"client_id":["{foreign}"]}}]',
        f'42["event","{foreign}"]',
        '42["event"',
        "42" + "[" * 100000,
        f'42["event",{{"client_id":"{own}","args":"{"x" * 2**20}"}}]',
    ):
        with pytest.raises(WebSocketDisconnect), client.websocket_connect(mine, headers={"origin": BASE}) as opened:
            opened.receive_text()
            opened.send_text(frame)
            while True:
                opened.receive_text()


def test_uploads_are_limited(client: TestClient, app: Any) -> None:
    def send(size: int) -> int:
        return client.post(UPLOAD_PATH, files={"files": ("a.wav", b"0" * size)}).status_code

    assert send(1000) == 200
    assert send(3 * MIB) == 413
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


def test_files_of_the_machine_are_not_served(client: TestClient, app: Any) -> None:
    places = app.state.places
    run = places.list_runs()[0]
    good = f"/_zoo/media/{run}/step_00000001/a.wav"
    assert client.get(good).content == b"sound"
    assert client.get(good).headers["content-type"] == "audio/wav"
    assert client.get(f"/_zoo/curves/{run}?metric=a").text == "step,epoch,a\n"
    for path in (
        good.replace("a.wav", "a.html"),
        good.replace("a.wav", "..%2F..%2Fconfig.yaml"),
        good.replace("step_00000001/a.wav", "../config.yaml"),
        good.replace("step_00000001", "%2e%2e"),
        f"/_zoo/media/{run.rpartition('/')[0]}/../x/a.wav",
        f"/_zoo/curves/{run}x?metric=a",
        "/_zoo/curves/..%2F../..%2Fetc/hostname?metric=a",
        "/_zoo/results/..%2Fuploads/x",
        "/_zoo/results/../x",
    ):
        assert client.get(path).status_code == 404, path
    config = places.runs / run / "config.yaml"
    for path in ("/etc/hostname", str(config), str(places.temp / "x"), "../../etc/hostname", "file:///etc/hostname"):
        quoted = path.replace("/", "%2F").replace(".", "%2e")
        for folder in ("static", "libraries", "components", "resources", "esm", "dynamic_resources"):
            for form in (path, quoted, f"..%2f..%2f..%2f{quoted}"):
                assert client.get(f"/_nicegui/3.18.0/{folder}/{form}").status_code in (403, 404, 405), (folder, form)


def test_exports_are_sent_and_nothing_beside_them(client: TestClient, stranger: TestClient, app: Any) -> None:
    places = app.state.places
    run = places.list_runs()[0]
    folder = places.runs / run / "exports" / "newest"
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"weights")
    good = f"/_zoo/exports/{run}/newest.zip"
    answer = client.get(good)
    assert answer.status_code == 200 and b"weights" in answer.content
    assert "attachment" in answer.headers["content-disposition"]
    assert stranger.get(good).status_code == 401
    for path in (
        good.replace("newest", "..%2Fmedia"),
        good.replace("newest", "other"),
        good.replace("newest", "%2e%2e"),
        good.replace("newest.zip", "newest"),
        good.replace("newest.zip", "newest/model.safetensors"),
        f"/_zoo/exports/{run.rpartition('/')[0]}/../x/newest.zip",
    ):
        assert client.get(path).status_code == 404, path


def test_a_password_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def inside(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"inside"})

    monkeypatch.setattr("zoo.ui.security._GUESS_SECONDS", 0.0)
    who = TestClient(gate(inside, Keys("correct horse"), Store(tmp_path, MIB)), base_url=BASE)
    assert 'type="password"' in who.get("/").text
    assert who.get("/?token=None").status_code == who.get("/?password=correct+horse").status_code == 401
    assert who.post(LOGIN_PATH, data={"password": "wrong"}).status_code == 401
    assert who.post(LOGIN_PATH, content=b"password=" + b"x" * 10000).status_code == 401
    assert who.get("/favicon.ico").status_code == 401
    assert (
        who.post(LOGIN_PATH, data={"password": "correct horse"}, headers={"origin": "http://x.org"}).status_code == 403
    )
    entered = who.post(LOGIN_PATH, data={"password": "correct horse"}, follow_redirects=False)
    assert entered.status_code == 303 and "horse" not in entered.headers["set-cookie"]
    assert who.get("/favicon.ico").text == "inside"


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

        await gate(reads, keys, Store(tmp_path, MIB))(scope, receive, send)
        return sent

    assert asyncio.run(call(UPLOAD_PATH))[0]["status"] == 413


def test_uploads_go_when_the_last_page_of_a_session_has_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zoo.ui.security.LEAVE_SECONDS", 0.01)
    store, keys = Store(tmp_path, 8 * MIB), Keys()
    cookie = keys.admit().split(";")[0]
    mine = keys.session(cookie)
    assert mine is not None and mine not in cookie
    upload = store.owned(mine, store.add(mine, "a.wav", io.BytesIO(b"1")))
    open_pages = {"a": asyncio.Event(), "b": asyncio.Event()}

    async def holds(scope: Any, receive: Any, send: Any) -> None:
        await open_pages[scope["query_string"].decode()[-1]].wait()

    async def visit() -> None:
        entry = gate(holds, keys, store, dict.fromkeys(open_pages, mine))
        headers = [(b"host", b"localhost"), (b"cookie", cookie.encode()), (b"origin", b"http://localhost")]
        scope = {"type": "websocket", "path": SOCKET_PATH, "headers": headers}
        pages = [
            asyncio.create_task(entry({**scope, "query_string": f"client_id={name}".encode()}, None, None))
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


def gate(app: Any, keys: Keys, store: Store, owners: dict[str, str] | None = None) -> Gate:
    return Gate(app, keys, MIB, store, owners or {}, store.end)
