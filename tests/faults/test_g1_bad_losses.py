"""G1: a NaN batch and a thousandfold loss touch neither weights nor optimizers nor the average."""

import csv
import json
import math
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from tests.harness import REPOSITORY, SMOKE, TOY_ARGS, callback, forked, good, newest
from zoo.runs.checkpoints import load_checkpoint

FAULTS = [
    *TOY_ARGS, "--trainer.max_steps=44", "--trainer.log_every_n_steps=1", "--trainer.limit_val_batches=0",
    "--checkpoints.monitor=null", *callback("BadBatches", nan_at=30, loud_at=40),
]  # fmt: skip
GAN = [
    "--config", SMOKE, "--data.init_args.batch_size=2",
    *callback("zoo.training.EMA", modules=["generator"], decay=0.9),
]  # fmt: skip
FLOW = ["--config", REPOSITORY / "configs" / "flow" / "smoke.yaml", "--data.init_args.batch_size=36"]  # has an EMA
WATCH = callback("Watch")


def guard(action: str) -> list[str]:
    return callback("zoo.training.LossGuard", action=action, window=20)


def fit(folder: Path, *options: object, recipe: Sequence[object] = GAN) -> tuple[str, dict[int, dict[str, str]]]:
    where = f"--trainer.default_root_dir={folder / 'run'}"
    result = good(forked("fit", *recipe, *FAULTS, *options, *WATCH, where, cwd=folder))
    rows = [json.loads(line) for line in (folder / "watch.jsonl").read_text().splitlines()]
    return result.stderr, {row.pop("step"): row for row in rows}


def logged(folder: Path, key: str) -> list[float]:
    with (folder / "run" / "metrics.csv").open(newline="") as file:
        return [float(row[key]) for row in csv.DictReader(file) if row.get(key)]


def finite(folder: Path) -> bool:
    state = load_checkpoint(newest(folder / "run"))["state_dict"]
    return all(bool(torch.isfinite(value).all()) for value in state.values())


@pytest.mark.parametrize("recipe", [GAN, FLOW], ids=["hifigan", "flow"])
def test_both_are_skipped_and_named(tmp_path: Path, recipe: list[object]) -> None:
    messages, states = fit(tmp_path, *guard("skip"), recipe=recipe)
    untouched = [step for step in range(2, 45) if states[step] == states[step - 1]]
    assert untouched == [31, 41]
    touched = [step for step in range(2, 45) if step not in untouched]
    assert all(states[step][key] != states[step - 1][key] for step in touched for key in states[step])
    assert "batch 0 of epoch 6" in messages
    assert messages.count("skipped batch") == 2
    assert "nan" in messages
    assert "times the running median" in messages
    assert logged(tmp_path, "train/skipped_batches")[-1] == 2
    assert finite(tmp_path)


def test_without_the_guard_the_run_is_lost(tmp_path: Path) -> None:
    fit(tmp_path)
    assert not finite(tmp_path)


@pytest.mark.slow
def test_rates_lowered_when_configured(tmp_path: Path) -> None:
    messages, states = fit(tmp_path, *guard("reduce"))
    assert states[31] == states[30] and states[41] == states[40]
    assert logged(tmp_path, "train/guard_lr_multiplier")[-1] == 0.25
    assert "learning rates are now times 0.25" in messages
    assert math.isclose(logged(tmp_path, "train/skipped_batches")[-1], 2)
