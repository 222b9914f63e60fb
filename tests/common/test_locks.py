"""One writer a folder, in processes of their own."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import environment
from zoo.cli.main import main
from zoo.common.atomic_files import LOCK_NAME
from zoo.common.locks import LOCK_INFO_NAME, is_locked, is_rank_zero, lock_folder

HOLD = """
import os, sys, time
from pathlib import Path
from zoo.common.locks import lock_folder
with lock_folder(Path(sys.argv[1]), "collect"):
    child = os.fork()  # as a data worker is
    if child == 0:
        time.sleep(60)
    print(child, flush=True)
    time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that holds a folder, and its forked child."""
    command = [sys.executable, "-c", HOLD, str(tmp_path / "out")]
    process = subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True)
    child = int(process.stdout.readline())
    yield process
    os.kill(child, signal.SIGKILL)
    process.kill()
    process.wait()


def test_the_second_names_the_first_and_a_killed_one_is_followed_at_once(holder, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    with pytest.raises(ValueError, match=rf"`zoo collect` \(process {holder.pid} on host {os.uname().nodename}, since"):
        with lock_folder(folder, "fit"):
            pass
    holder.kill()
    holder.wait()
    assert (folder / LOCK_NAME).exists()  # its child lives, and holds nothing
    with lock_folder(folder, "fit"):
        (folder / "result").touch()
    assert [path.name for path in folder.iterdir()] == ["result"]


def test_a_look_at_the_end_of_a_command_leaves_no_lock(tmp_path: Path) -> None:
    """A lock without the words on its holder is what such a look makes; a killed command leaves both."""
    (tmp_path / LOCK_NAME).touch()
    assert not is_locked(tmp_path) and not list(tmp_path.iterdir())
    for name in (LOCK_NAME, LOCK_INFO_NAME):
        (tmp_path / name).touch()
    assert not is_locked(tmp_path) and (tmp_path / LOCK_NAME).exists()


def test_a_folder_in_which_nothing_was_written_is_not_left(tmp_path: Path) -> None:
    with lock_folder(tmp_path / "deep" / "out", "fit"):
        assert (tmp_path / "deep" / "out").is_dir()
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="is a file; name a folder"), lock_folder(tmp_path / "file", "fit"):
        pass


@pytest.mark.parametrize("name", ["LOCAL_RANK", "NODE_RANK", "GROUP_RANK"])
def test_only_the_first_rank_locks(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "0")
    assert is_rank_zero()
    with lock_folder(tmp_path, "fit"):
        monkeypatch.setenv(name, "1")
        assert not is_rank_zero()
        with lock_folder(tmp_path, "fit"):
            pass


TOOLS = [
    "fit flow/smoke --trainer.default_root_dir out",
    "evaluate flow --generated x --output out",
    "evaluate audiosr x out",
    "evaluate ci_llm --run x --output out",
    "evaluate compressed_ad --run x --output out",
    "evaluate miipher --clean x --restored x --output out",
    "degrade x out",
    "collect out",
    "sample x out",
    "compare-samplers x out",
    "make-pairs x out",
]


@pytest.mark.parametrize("tool", TOOLS)
def test_tools_that_fill_a_folder_are_refused(
    tool: str, working_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with lock_folder(working_folder / "out", "degrade"):
        assert main(tool.split()) == 1
    assert f"out is being written by `zoo degrade` (process {os.getpid()} on host" in capsys.readouterr().err
