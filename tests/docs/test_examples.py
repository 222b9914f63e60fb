"""Every example runs, at a small size, in a folder of its own."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness import REPOSITORY, environment, forked, good

EXAMPLES = REPOSITORY / "examples"
SMALL = "--trainer.max_steps 2 --trainer.limit_val_batches 1"
LION = "--allow-import own_optimizer --model.optimizer own_optimizer.Lion --model.optimizer.lr 1e-4"
SQUARES = "--allow-import own_dataset --data own_dataset.SquareData --model.net.num_classes 2"
SQUARES += " --model.net.in_channels 1 --model.net.image_resolution 8"
SYSTEM = "--allow-import own_system"
COMMANDS = {
    "own_loop.py": ["own_loop.py --steps 2"],
    "plain_trainer.py": ["plain_trainer.py --steps 2"],
    "own_optimizer.py": [f"fit flow/smoke {LION} {SMALL}"],
    "own_dataset.py": [f"fit flow/smoke {SQUARES} {SMALL}"],
    "own_system.py": [
        f"fit own_system.yaml {SYSTEM} --trainer.default_root_dir run",
        f"predict --ckpt_path run {SYSTEM} --input in.wav --output out",
        f"export run exported {SYSTEM}",
    ],
}


@pytest.mark.parametrize("name", COMMANDS)
def test_example_runs(name: str, tmp_path: Path) -> None:
    shutil.copytree(EXAMPLES, tmp_path / "examples", ignore=shutil.ignore_patterns("__pycache__", "runs"))
    shutil.copy(REPOSITORY / "docs/gallery/miipher/whisper/noise_input.mp3", tmp_path / "examples" / "in.wav")
    for command in COMMANDS[name]:
        words, folder = command.split(), tmp_path / "examples"
        if words[0] == name:
            variables = environment(PYTHONPATH=str(REPOSITORY))
            subprocess.run([sys.executable, *words], cwd=folder, env=variables, timeout=300, check=True)
        else:
            good(forked(*words, cwd=folder, PYTHONPATH=str(folder)))
    if name == "own_system.py":
        assert (folder / "out" / "in.wav").is_file()
        assert "`allow_import=['own_system']`" in (folder / "exported" / "README.md").read_text(encoding="utf-8")


def test_examples_are_short_and_all_are_run() -> None:
    lengths = {path.name: len(path.read_text(encoding="utf-8").splitlines()) for path in EXAMPLES.glob("*.py")}
    assert lengths.keys() == COMMANDS.keys()
    assert [name for name, length in lengths.items() if length > 60] == []
