"""A page that no browser looks at: elements are made in it, and their properties are what is asked."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nicegui", reason="needs the extra `ui`")


@pytest.fixture(scope="module", autouse=True)
def storage(tmp_path_factory: pytest.TempPathFactory) -> None:
    os.environ.setdefault("NICEGUI_STORAGE_PATH", str(tmp_path_factory.mktemp("storage")))


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Any]:
    from nicegui import Client, ui

    with Client(ui.page("/of_a_test"), request=None) as made:
        yield made
    made.delete()
