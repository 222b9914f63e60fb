"""A logged-in attacker who speaks HTTP and Socket.IO to a really started server, with whatever an event may carry."""

import asyncio
import os
import random
import time
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import psutil
import pytest

pytest.importorskip("nicegui", reason="needs the extra `ui`")
pytest.importorskip("socketio")

from tests.ui.attacker import OpenPage, opened
from tests.ui.serving import Server, started, upload

LIMITS = ("--max_uploads", "5", "--max_session_mib", "2", "--max_upload_mib", "4")
SECRET = "the-servers-secret"
RUN = "hifigan/smoke/20240101-000000"
# what values of elements may hold beside what the page sends: places, classes, YAML, other types, much
HOSTILE: tuple[Any, ...] = (
    "/etc/passwd",
    "../../../../etc/passwd",
    "token.txt",
    "file:///etc/passwd",
    "http://127.0.0.1:1/x",
    RUN,
    f"{RUN}/../../../..",
    "hifigan/smoke",
    "model.class_path=zoo.cli.trainer.Loaded\nmodel.init_args.path=token.txt",
    "model={class_path: zoo.cli.trainer.Loaded, init_args: {path: x, allow_import: [subprocess]}}",
    "trainer.callbacks='[{class_path: subprocess.Popen, init_args: {args: [touch, hacked]}}]'",
    "subprocess.Popen",
    "data.init_args.root=${ oc.env:SERVER_SECRET}",
    "${oc.env:SERVER_SECRET}",
    "!!python/object/apply:os.system [touch hacked]",
    "init_from+=[x]",
    "--config=token.txt",
    "; touch hacked",
    "$(touch hacked)",
    "<img src=x onerror=alert(1)>",
    "\0",
    "x" * 70_000,
    "",
    None,
    True,
    -1,
    2**62,
    1e308,
    {"value": 3, "label": "x"},
    {"path": "/etc/passwd"},
    {"key": "0123456789abcdef", "name": "../x"},
    ["/etc/passwd"],
    [{"key": "x", "name": "/etc/passwd"}],
    [[], {}],
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    (folder / "token.txt").write_text(SECRET)
    run = folder / "runs" / RUN
    run.mkdir(parents=True)
    (run / "config.yaml").write_text("trainer: {max_steps: 1}\n")
    (run / "step_1.ckpt").write_bytes(b"no checkpoint")
    yield from started(folder, *LIMITS, SERVER_SECRET=SECRET)


@pytest.fixture
def client(server: Server) -> Iterator[Any]:
    with closing(server.enter()) as made:
        yield made


def key_of(answer: Any) -> str:
    return str(answer.json()[0]["key"])


def file_of(server: Server, key: str) -> Path:
    return next(server.temp.glob(f"uploads/*/{key}/*"))


def test_what_others_sent_and_got_is_not_served(server: Server, client: Any) -> None:
    with closing(server.enter()) as other:
        mine, theirs = key_of(upload(client, b"mine")), key_of(upload(other, b"theirs"))
        session = file_of(server, theirs).parts[-3]
        name = "0123456789abcdef"
        job = server.temp / "jobs" / session / name / "out"
        job.mkdir(parents=True)
        (job / "x.wav").write_bytes(b"theirs")
        (job / "link.wav").symlink_to("/etc/passwd")
        assert other.get(f"/_zoo/results/{name}/x.wav").content == b"theirs"
        assert other.get(f"/_zoo/results/{name}/link.wav").status_code == 404
        assert client.get(f"/_zoo/results/{name}/x.wav").status_code == 404
        host, port = client.base_url.host, client.base_url.port
        cookies = "; ".join(f"{name}={value}" for name, value in client.cookies.items())
        foreign = os.path.relpath(file_of(server, theirs), server.temp)
        for path in (foreign, theirs, "/etc/passwd", f"../uploads/{session}/{theirs}/tone.wav", mine):
            quoted = path.replace("/", "%2F").replace(".", "%2e")
            for form in (
                path,
                quoted,
                f"../{path}",
                f"{name}/{path}",
                f"{job.name}/{quoted}",
                f"{job.name}//{path}",
            ):
                raw = HTTPConnection(host, port)  # as it is, where a client would tidy it up
                raw.request("GET", f"/_zoo/results/{form}", headers={"cookie": cookies})
                answer = raw.getresponse()
                assert answer.status in (403, 404), form
                content = answer.read()
                assert b"theirs" not in content and b"root:" not in content
                raw.close()


def test_uploads_of_a_session_are_counted(client: Any, server: Server) -> None:
    answers = [upload(client, b"1") for _ in range(8)]
    assert [answer.status_code for answer in answers] == [200] * 5 + [413] * 3
    assert answers[-1].text == "a session may have 5 uploads at a time (--max_uploads)"
    with closing(server.enter()) as other:
        assert upload(other, *[b"1"] * 300).status_code in (400, 413)
        assert upload(other, b"0" * 2**20, b"0" * 2**20, b"1").status_code == 413  # and none of the three is kept
        assert upload(other, b"0" * 2**20).status_code == 200
        large = upload(other, b"0" * (2**20 + 1))
        assert (large.status_code, large.text) == (413, "a session's uploads may have 2 MiB (--max_session_mib)")
        assert upload(other, b"0" * 2**20).status_code == 200


def lasting(server: Server) -> Iterator[Path]:
    """All but the folders for temporary files of commands, such as one that the page tries a recipe with."""
    for path in server.folder.rglob("*"):
        if not path.relative_to(server.folder).parts[0].startswith("zoo-"):
            yield path


def test_names_of_uploads_are_made_harmless(server: Server, client: Any) -> None:
    before = set(lasting(server))
    for name in ("../../hacked", "/etc/cron.d/x", "..", ".bashrc", "a\0b", "x" * 5000, "con<img>.wav"):
        answer = upload(client, b"1", name=name)
        if answer.status_code == 200:
            kept = file_of(server, key_of(answer))
            assert kept.name == answer.json()[0]["name"] and len(kept.name) <= 60 and not kept.name.startswith(".")
    assert set(lasting(server)) == before


@pytest.mark.timeout(300)
def test_no_event_of_the_page_does_what_it_must_not(server: Server) -> None:
    """Every listener of every element is told hostile things, in an order that a seed from the clock decides."""
    seed = time.time_ns() % 2**32
    print("seed", seed)
    chance = random.Random(seed)
    outside = set(lasting(server))
    client, other = server.enter(), server.enter()
    theirs = key_of(upload(other, b"theirs"))
    values = [*HOSTILE, theirs, {"key": theirs}, [{"key": theirs, "name": "tone.wav"}], str(file_of(server, theirs))]

    async def attack() -> list[str]:
        heard = []
        for address in ("/", "/?tab=predict&run=../x", f"/?tab=runs&run={RUN}", f"/?tab=watch&run={RUN}"):
            async with opened(server, client, address) as page:
                await page.quiet()
                await tell_everything(page, values, chance)
                await page.quiet(1.0)
                heard += page.said
        return heard

    heard = asyncio.run(attack())
    assert not [text for text in heard if SECRET in text or "root:x:" in text]
    assert not (server.folder / "hacked").exists()
    new = set(lasting(server)) - outside
    assert [path for path in new if not path.is_relative_to(server.folder / "runs")] == []
    assert server.process.poll() is None
    commands = [command_of(child) for child in psutil.Process(server.process.pid).children(recursive=True)]
    assert all("zoo" in command or "zoo.ui" in " ".join(command) for command in commands if command), commands
    assert other.get("/").status_code == 200 and file_of(server, theirs).read_bytes() == b"theirs"
    client.close()
    other.close()


def command_of(process: psutil.Process) -> list[str]:
    """Its words; none of one that ended just now."""
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []


async def tell_everything(page: OpenPage, values: list[Any], chance: random.Random) -> None:
    """Each listener hears some values; buttons are pressed where they lie in that order."""
    listeners = page.listeners()
    chance.shuffle(listeners)
    for element, _, kind, listener in listeners:
        for value in chance.sample(values, 4):
            arguments = [value] if chance.random() < 0.2 else value
            await page.send(element, listener, {} if kind == "click" and chance.random() < 0.5 else arguments)
    for element, _, kind, _ in chance.sample(listeners, min(8, len(listeners))):
        await page.send(element, "no-such-listener", kind)
        await page.send("999999", "x", kind)
