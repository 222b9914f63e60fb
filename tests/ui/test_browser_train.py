"""The tab Train in a browser on a busy machine: what is shown at the press is what is trained, whatever was switched."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("nicegui", reason="needs the extra `ui`")

from tests.ui.browser import browser, kill_trainings
from tests.ui.serving import Server, started

__all__ = ["browser"]

pytestmark = pytest.mark.browser

# `zoo ui` whose parser lays files over each other at once, and whose trainings write their config and end.
SERVER = """
import sys, types, yaml
from pathlib import Path
from zoo.common.reading.text import safe_load
from zoo.ui.forms.values import merged
from zoo.ui.jobs.commands import Commands
from zoo.ui.jobs import trainings
import time

def parse(self, configs, changes):
    config = {"samples": {"items": 4, "seed": 0}, "trainer": {"devices": "auto"}}
    for file in configs:
        config = merged(config, safe_load(file.read_text()))
    time.sleep(0.3 if changes else 0.8)
    return yaml.safe_dump(merged(config, changes))

Commands.parse = parse
first = trainings.Trainings.__init__
def init(self, places, secrets=(), program=None, **more):
    first(self, places, secrets, (sys.executable, str(Path("stand_in.py").resolve())), **more)
trainings.Trainings.__init__ = init
from zoo.cli.main import main
sys.exit(main(sys.argv[1:]))
"""
STAND_IN = """
import sys
from pathlib import Path
from zoo.common.reading.text import safe_load
from zoo.ui.forms.values import merged
import yaml
args, config = sys.argv[1:], {}
for flag, file in zip(args, args[1:]):
    if flag == "--config":
        config = merged(config, safe_load(Path(file).read_text()))
folder = next(Path(a.partition("=")[2]) for a in args if a.startswith("--trainer.default_root_dir="))
(folder / "config.yaml").write_text("# recipe: " + "/".join(folder.parts[-3:-1]) + "\\n" + yaml.safe_dump(config))
"""
NUMBERS = {
    "Steps": (1, 9),
    "Batch size": (1, 8),
    "Log interval": (1, 50),
    "Seed": (0, 99),
    "Checkpoint interval": (1, 99),
}
SHOWN = """() => Object.fromEntries([...document.querySelectorAll('.train input[aria-label], .train [role=switch],
    .train .q-select input')].filter(e => e.closest('.train') && !e.closest('.hidden'))
    .map(e => [e.getAttribute('aria-label') || e.closest('label')?.querySelector('.q-field__label')?.textContent || '',
    e.getAttribute('role') === 'switch' ? e.getAttribute('aria-checked') : e.value]))"""
ROWS = """() => [...document.querySelectorAll('.train-differences tr:not(.follows)')].slice(1)
    .map(row => [...row.children].slice(0, 3).map(cell => cell.textContent.replaceAll('\\u200b', '')))"""


@pytest.fixture
def quick_server(tmp_path: Path) -> Iterator[Server]:
    (tmp_path / "serve.py").write_text(SERVER)
    (tmp_path / "stand_in.py").write_text(STAND_IN)
    yield from started(tmp_path, "--at-once", "4", program=(sys.executable, str(tmp_path / "serve.py")))
    kill_trainings(tmp_path)
