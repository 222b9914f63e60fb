"""Folders of a page in an empty working folder, and a stand-in for `python -m zoo` that starts at once."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness import environment
from tests.run_folders import make
from tests.ui.browser import browser, server
from zoo.ui.folders import Folders
from zoo.ui.processes.training_queue import TrainingQueue

__all__ = ["browser", "server"]

# fit: writes a checkpoint, then waits for SIGTERM and ends as a training does
STAND_IN = """
import pathlib, signal, sys, time
args = sys.argv[1:]
if any("bad" in each for each in args):
    sys.exit("zoo: error: a bad argument")
folder = pathlib.Path(next(each.partition("=")[2] for each in args if "root_dir=" in each or "ckpt_path=" in each))
signal.signal(signal.SIGTERM, lambda *_: None if "deaf" in str(folder) else sys.exit(143))
(folder / "config.yaml").write_text("trainer:\\n  max_steps: 10\\n")
(folder / "step_00000001.ckpt").touch()
print("ready", *args, flush=True)
time.sleep(0 if "short" in str(folder) else 60)
"""


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    for name in ("runs", "data", "temp"):
        (tmp_path / name).mkdir()
    return Folders(tmp_path, tmp_path / "runs", tmp_path / "data", tmp_path / "temp")


@pytest.fixture
def queue(folders: Folders) -> TrainingQueue:
    return make_queue(folders)


def make_queue(folders: Folders, at_once: int = 1) -> TrainingQueue:
    script = folders.work / "stand_in.py"
    script.write_text(STAND_IN)
    return TrainingQueue(folders, environment(), at_once, [sys.executable, str(script)])


def make_run(folders: Folders, name: str, rows: int = 4, total: int = 10) -> Path:
    """Write the files of a run that was stopped."""
    lines = [f"{step},0,{1 / (step + 1)},{2 / (step + 1)}" for step in range(rows)]
    table = "\n".join(["step,epoch,train/loss,val/loss", *lines, ""])
    log = "2026-01-01 00:00:00,000 INFO fit: begins\n"
    return make(folders.runs / name, total, recipe="/".join(name.split("/")[:2]), rows=table, log=log, saved=())


@pytest.fixture(scope="session", autouse=True)
def storage(tmp_path_factory: pytest.TempPathFactory) -> None:
    os.environ.setdefault("NICEGUI_STORAGE_PATH", str(tmp_path_factory.mktemp("storage")))


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Any]:
    """A page without a browser: elements are made in it, and tests read their properties."""
    nicegui = pytest.importorskip("nicegui", reason="needs the extra `ui`")
    with nicegui.Client(nicegui.ui.page("/of_a_test"), request=None) as made:
        yield made
    made.delete()
