"""A lost rank on one machine: torchrun starts all again by `scripts/launch.sh`, Lightning's processes end with 75."""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness import (
    REPOSITORY,
    TOY_ARGS,
    TOY_RECIPE,
    callback,
    environment,
    fingerprint,
    forked_ranks,
    good,
    newest,
)
from zoo.training.errors import ConnectionLostError

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
FLAGS = ("--trainer.accelerator=cpu", "--trainer.max_steps=30", "--checkpoints.every_n_steps=5")
FLAGS += ("--trainer.default_root_dir=run",)
DDP = ("trainer/ddp", "--trainer.devices=2")


def run(folder: Path, *command: object) -> subprocess.CompletedProcess[str]:
    folder.mkdir()
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    variables = environment(PATH=path, CUDA_VISIBLE_DEVICES="")
    words = [str(word) for word in command]
    return subprocess.run(words, cwd=folder, env=variables, capture_output=True, text=True, timeout=300)


def test_training_resumes_after_a_killed_rank(tmp_path: Path) -> None:
    launch = (REPOSITORY / "scripts" / "launch.sh", TOY_RECIPE, 2, *TOY_ARGS, *FLAGS)
    (tmp_path / "calm").mkdir()
    for rank in forked_ranks("fit", TOY_RECIPE, *DDP, *TOY_ARGS, *FLAGS, cwd=tmp_path / "calm"):
        good(rank)
    kill = callback("Misfortune", rank=random.randrange(2), step=12)
    resumed = good(run(tmp_path / "killed", *launch, *kill))
    assert (tmp_path / "killed" / "run" / "struck").exists(), resumed.stderr
    calm, killed = (newest(tmp_path / name / "run") for name in ("calm", "killed"))
    assert killed.name == "step_00000030.ckpt" and fingerprint(killed) == fingerprint(calm)


@pytest.mark.slow
def test_first_process_reports_lost_contact(tmp_path: Path) -> None:
    command = (sys.executable, "-m", "zoo", "fit", TOY_RECIPE, *DDP, *TOY_ARGS, *FLAGS)
    result = run(tmp_path / "run", *command, *callback("Misfortune", rank=1, step=12))
    assert result.returncode == ConnectionLostError.exit_code, result.stderr
    assert "Traceback" not in result.stderr
    assert newest(tmp_path / "run" / "run").name == "step_00000010.ckpt"
