"""Running the command line in processes of its own, and comparing what runs leave behind."""

from __future__ import annotations

import csv
import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from zoo.training.checkpoint_files import find_checkpoints, load_checkpoint

REPOSITORY = Path(__file__).resolve().parents[1]
TOY = REPOSITORY / "tests" / "toy"
TOY_RECIPE = TOY / "toy_wing" / "configs" / "smoke.yaml"
TOY_ARGS = ("--allow-import", "toy_wing")
SMOKE = REPOSITORY / "configs" / "hifigan" / "smoke.yaml"


def environment(**extra: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("ZOO_RUN", "LOCAL_RANK"))}
    path = os.pathsep.join([str(TOY), str(REPOSITORY)])
    return {**kept, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "WANDB_MODE": "offline", "CUDA_VISIBLE_DEVICES": "", **extra}


def zoo(*args: object, cwd: Path, timeout: float = 300, **extra: str) -> subprocess.CompletedProcess[str]:
    """Run `python -m zoo` and wait for it."""
    command = [sys.executable, "-m", "zoo", *map(str, args)]
    return subprocess.run(
        command, cwd=cwd, env=environment(**extra), capture_output=True, text=True, timeout=timeout, check=False
    )


def good(result: subprocess.CompletedProcess[str]) -> subprocess.CompletedProcess[str]:
    """Assert that a command succeeded, showing what it said when it did not."""
    assert result.returncode == 0, f"exit {result.returncode}\n{result.stdout[-3000:]}\n{result.stderr[-6000:]}"
    return result


def newest(run: Path) -> Path:
    return find_checkpoints(run, "step_*.ckpt")[0]


def fingerprint(path: Path) -> dict[str, str]:
    """A hash of every tensor and value that training depends on: weights, optimizers, schedules, EMA, generators."""
    checkpoint = load_checkpoint(path)
    kept = {
        key: checkpoint[key]
        for key in ("state_dict", "optimizer_states", "lr_schedulers", "ema", "rng", "global_step", "epoch")
        if key in checkpoint
    }
    return {name: hashlib.sha256(content).hexdigest() for name, content in _leaves(kept, "")}


def _leaves(value: Any, name: str) -> Iterator[tuple[str, bytes]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(item, f"{name}/{key}")
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _leaves(item, f"{name}/{index}")
    elif isinstance(value, torch.Tensor):
        yield name, value.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes() if value.numel() else b""
    else:
        yield name, repr(value).encode()


def losses(run: Path, key: str) -> dict[int, str]:
    """The logged values of a key by step, as text, so that equality is bitwise."""
    with (run / "metrics.csv").open(newline="") as file:
        return {int(row["step"]): row[key] for row in csv.DictReader(file) if row.get(key)}
