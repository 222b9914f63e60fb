import json
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.bench import scaling
from tests.harness import TOY_RECIPE, environment
from zoo.runs.run_folder import CONFIG_NAME, CSV_NAME

RATES = {1: (1.0, 100.0, 50.0), 2: (1.0, 160.0, 96.0), 4: (1.0, 180.0, 180.0)}


def pretend(config: Path, count: int, run: Path, steps: int, accelerator: str, extra: list[str]) -> None:
    """Leave behind what a training would."""
    sizes = [value.rpartition("=")[2] for value in extra if value.startswith("--data.init_args.batch_size=")]
    run.mkdir(parents=True)
    data = f"data:\n  init_args:\n    batch_size: {(sizes or ['8'])[0]}\n"
    (run / CONFIG_NAME).write_text(f"trainer:\n  accumulate_grad_batches: 3\n{data}")
    lines = [f"{9 + 10 * number},0,{rate}" for number, rate in enumerate(RATES[count])]
    (run / CSV_NAME).write_text("\n".join([f"step,epoch,{scaling.RATE}", "0,0,", *lines]) + "\n")


def test_speed_up_and_efficiency_are_against_one_process(tmp_path, monkeypatch):
    monkeypatch.setattr(scaling, "_train", pretend)
    rows = scaling.measure(Path("recipe.yaml"), [1, 2, 4], tmp_path, batch_sizes=[8, 8, 6], accelerator="cpu")
    assert [row.details["effective batch"] for row in rows] == [24, 48, 72]  # three batches are accumulated
    assert [row.value for row in rows] == pytest.approx([200 / 3, 120, 180])  # of the same time each
    assert [row.details["speed-up, x"] for row in rows] == pytest.approx([1, 1.8, 2.7])
    assert [row.details["efficiency"] for row in rows] == pytest.approx([1, 0.9, 0.675])
    assert [row.details["manual expects, x"] for row in rows] == [1.0, 1.85, 3.6]


def test_the_command_shows_and_keeps_what_it_measured(tmp_path, monkeypatch, capsys):
    seen = []
    monkeypatch.setattr(
        scaling,
        "_train",
        lambda config, count, run, steps, *rest: (seen.append(steps), pretend(config, count, run, steps, *rest)),
    )
    kept = tmp_path / "a" / "scaling.json"
    arguments = [
        "--config",
        "recipe.yaml",
        "--devices",
        "1",
        "2",
        "--accelerator",
        "cpu",
        "--output",
        str(kept),
        "--quick",
    ]
    monkeypatch.setattr(sys, "argv", ["scaling.py", *arguments])
    scaling.main()
    assert seen == [scaling.QUICK_STEPS] * 2
    found = json.loads(kept.read_text())
    assert (found["recipe"], found["quick"]) == ("recipe.yaml", True)
    assert found["findings"][1]["details"]["speed-up, x"] == pytest.approx(1.8)
    assert "2 processes" in capsys.readouterr().out


def test_a_number_that_the_manual_does_not_name_has_no_expectation(tmp_path, monkeypatch):
    monkeypatch.setattr(scaling, "_train", lambda config, count, run, *rest: pretend(config, min(count, 2), run, *rest))
    rows = scaling.measure(Path("recipe.yaml"), [1, 3], tmp_path, accelerator="cpu")
    assert (rows[1].details["manual expects, x"], rows[1].details["batch per process"]) == (None, 8)


def test_refuses_what_cannot_be_compared(tmp_path):
    with pytest.raises(ValueError, match="begin with it"):
        scaling.measure(Path("recipe.yaml"), [2, 4], tmp_path)
    with pytest.raises(ValueError, match="a batch size for each"):
        scaling.measure(Path("recipe.yaml"), [1, 2], tmp_path, batch_sizes=[4])
    (tmp_path / CSV_NAME).write_text(f"step,epoch,{scaling.RATE}\n9,0,5.0\n")
    with pytest.raises(ValueError, match="logged 1 values"):
        scaling.rate_of(tmp_path)


def test_a_training_that_fails_is_named(tmp_path, monkeypatch):
    def run(command, env, **_):
        assert "--trainer.devices=1" in command and env["OMP_NUM_THREADS"] == "1"
        return subprocess.CompletedProcess(command, 2, "", "Seed set to 1\nzoo: error: no such recipe\n")

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(ValueError, match="with 1 processes failed with exit code 2: zoo: error: no such recipe"):
        scaling.measure(tmp_path / "nothing.yaml", [1], tmp_path, accelerator="cpu")


@pytest.mark.slow
def test_one_and_two_processes_are_measured(tmp_path, monkeypatch):
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    extra = ["--allow-import", "toy_wing"]
    rows = scaling.measure(TOY_RECIPE, [1, 2], tmp_path, [4, 4], steps=12, accelerator="cpu", extra=extra)
    assert [row.details["effective batch"] for row in rows] == [4, 8]
    assert all(row.value > 0 for row in rows)
