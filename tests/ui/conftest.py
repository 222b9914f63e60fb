"""A page over an empty work folder, and a stand-in for `python -m zoo` that starts at once."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.ui.browser import browser, server
from zoo.ui.jobs.trainings import Trainings
from zoo.ui.places import Places
from zoo.ui.store import Store

__all__ = ["browser", "server"]

if TYPE_CHECKING:
    from zoo.ui.board import Board

# fit: writes a row and a checkpoint, then waits for SIGTERM and ends as a training does; others: echo and end
STAND_IN = """
import pathlib, signal, sys, time
args = sys.argv[1:]
if args[0] != "fit" or "--print_config" in args:
    print("# said" if args[0] == "fit" else "said", *args)
    sys.exit(3 if "bad" in args else 0)
folder = [a.split("=")[1] for a in args if a.startswith("--trainer.default_root_dir=")]
folder = pathlib.Path(folder[0] if folder else args[args.index("--ckpt_path") + 1])
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
(folder / "step_00000001.ckpt").touch()
with (folder / "train.log").open("a") as log:
    log.write("ready\\n")
time.sleep(60)
"""


@pytest.fixture
def places(tmp_path: Path) -> Places:
    for name in ("runs", "temp", "data"):
        (tmp_path / name).mkdir()
    return Places(tmp_path, tmp_path / "runs", tmp_path / "temp", tmp_path / "data")


@pytest.fixture
def trainings(places: Places) -> Trainings:
    script = places.work / "stand_in.py"
    script.write_text(STAND_IN)
    return Trainings(places, ("SECRET",), (sys.executable, str(script)))


def shared_of(places: Places, trainings: Trainings, store: Store, board: "Board") -> Any:
    """What the pages of a server share, with workers that nobody has asked yet."""
    from zoo.ui.exports import Exports
    from zoo.ui.visit import Shared
    from zoo.ui.warm.asked import Asked
    from zoo.ui.warm.pool import Workers

    asked = Asked(places, store, Workers(places), trainings)
    return Shared(places, trainings, store, board, Exports(places, trainings), asked)
