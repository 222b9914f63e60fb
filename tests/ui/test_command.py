import importlib.util
import socket
from pathlib import Path

import pytest

from zoo.cli.main import main
from zoo.ui import commands


def test_without_the_extra_one_line_names_it(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert main(["ui"]) == 1
    said = capsys.readouterr().err
    assert "pip install 'zoo[ui]'" in said and len(said.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"port": 70000}, "0 to 65535"),
        ({"max_upload_mib": 0}, "at least 1"),
        ({"max_uploads": 0}, "max_uploads is at least 1"),
        ({"max_session_mib": -1}, "max_session_mib is at least 1"),
        ({"trainings_at_once": 0}, "trainings_at_once is at least 1"),
        ({"max_trainings": 0}, "max_trainings is at least 1"),
        ({"on_exit": "kill"}, "--on_exit kill: expected keep or stop"),
        ({"password_env": "ZOO_NO_SUCH"}, "no such environment variable"),
        ({"password_env": "ZOO_SHORT"}, "at least 8"),
    ],
)
def test_wrong_options(monkeypatch: pytest.MonkeyPatch, arguments: dict, message: str) -> None:
    pytest.importorskip("nicegui", reason="needs the extra `ui`")
    monkeypatch.setenv("ZOO_SHORT", "1234567")
    with pytest.raises(ValueError, match=message):
        commands.main(**arguments)


def test_a_taken_port_is_named() -> None:
    pytest.importorskip("nicegui", reason="needs the extra `ui`")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"port {port} cannot be used"):
            commands.main(port=port, runs=Path("runs"))
