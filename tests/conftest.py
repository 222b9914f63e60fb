"""Shared fixtures: where golden and real data lie, and one thread per test process."""

import gc
import os
import re
from collections.abc import Generator
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported: two workers share the cores

from zoo.common import registry

os.environ.setdefault("WANDB_MODE", "offline")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("WANDB_X_SAVE_REQUIREMENTS", "false")  # to list all that is installed takes longer than a run

REPOSITORY = Path(__file__).resolve().parents[1]
GOLDEN = REPOSITORY / "tests" / "golden"
SHARED = Path(os.environ.get("ZOO_SHARED", REPOSITORY.parent / "shared"))


def reference_folder(system: str) -> Path:
    """The reference files that a system's original code computed: those of this repository, else below ZOO_SHARED."""
    folders = [GOLDEN / system, SHARED / "golden" / system]
    folder = next((folder for folder in folders if folder.is_dir()), None)
    if folder is None:
        pytest.skip(f"needs ZOO_SHARED ({folders[1]} does not exist)", allow_module_level=True)
    return folder


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder with golden data and real recordings; skips the test when it is absent."""
    if not SHARED.is_dir():
        pytest.skip(f"needs ZOO_SHARED ({SHARED} does not exist)")
    return SHARED


@pytest.fixture(autouse=True)
def _admission(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget after each test which packages a command line in it admitted."""
    monkeypatch.setattr(registry, "_allowed", [])


@pytest.fixture
def working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The test's own folder, made the working folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Give each of several processes a half of the list, in order; one that has ended takes of what another has left.

    So modules stay together with their fixtures, and none waits at the end while another has long tests before it.
    """
    if getattr(config.option, "numprocesses", None) and config.option.dist == "no":
        config.option.dist = "worksteal"


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Import the tests without the garbage collector, which goes through all that imports make and finds nothing."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave files unread that cannot have the numeric or shared tests that are asked for: imports take long."""
    selected = config.option.markexpr.startswith(("numeric", "shared", "(numeric or shared)"))
    if not selected or not collection_path.match("test_*.py"):
        return None
    named = re.search(r"tests\.numeric|mark\.numeric|shared", collection_path.read_text(encoding="utf-8"))
    return None if named or "parity" in collection_path.relative_to(REPOSITORY).parts else True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the documents, whose long tests would else keep one process busy after all others have ended."""
    items.sort(key=lambda item: "/docs/" not in item.path.as_posix())


@pytest.hookimpl(tryfirst=True)
def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark what reads ZOO_SHARED; mark as numeric what stands in tests/parity or compares by tests/numeric.py.

    Where float64 decides all of a test, it is not numeric.
    """
    is_parity = "parity" in item.path.relative_to(REPOSITORY).parts
    in_repository = (GOLDEN / item.path.parent.name).is_dir()
    if (is_parity and not in_repository) or "shared" in getattr(item, "fixturenames", ()):
        item.add_marker("shared")
    helpers = (getattr(value, "__module__", None) == "tests.numeric" for value in vars(item.module).values())
    if (is_parity or any(helpers)) and not item.get_closest_marker("float64"):
        item.add_marker("numeric")
