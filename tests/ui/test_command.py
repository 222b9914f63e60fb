"""`zoo ui` itself: what it needs and what it refuses."""

import socket
import sys
from pathlib import Path

import pytest

from zoo.cli.main import main
from zoo.ui import commands


def test_without_the_extra_one_line_names_it(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.setitem(sys.modules, "fastapi", None)
    monkeypatch.delitem(sys.modules, "zoo.ui.server", raising=False)
    assert main(["ui"]) == 1
    error = capsys.readouterr().err
    assert "pip install 'zoo[ui]'" in error and len(error.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        ({"port": 70000}, "port"),
        ({"max_upload_mib": 0}, "max_upload_mib"),
        ({"trainings_at_once": 0}, "trainings_at_once"),
        ({"token_env": "ZOO_QUERY"}, "letters, digits"),
    ],
)
def test_wrong_options_are_named(monkeypatch: pytest.MonkeyPatch, arguments: dict, key: str) -> None:
    pytest.importorskip("nicegui", reason="needs the extra `ui`")
    monkeypatch.setenv("ZOO_QUERY", "0123456789abcdef+&#%")
    with pytest.raises(ValueError, match=key):
        commands.main(**arguments)


def test_a_taken_port_is_named(working_folder: Path) -> None:
    pytest.importorskip("nicegui", reason="needs the extra `ui`")
    with socket.socket() as selected:
        selected.bind(("127.0.0.1", 0))
        selected.listen()
        port = selected.getsockname()[1]
        with pytest.raises(OSError, match=f"port {port} cannot be used"):
            commands.main(port=port, runs=Path("runs"))
