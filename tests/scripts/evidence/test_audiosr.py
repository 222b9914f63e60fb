"""Evidence of AudioSR by its command; trainings and evaluations are stood in for."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scripts.bench.tools import evidence
from scripts.evidence import audiosr


def test_quick_trains_every_stage_and_restores_one_clip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trained: list[tuple[str, bool]] = []
    evaluated: dict[str, audiosr.Settings] = {}

    def train(folder: Path, arguments: list[str], quick: bool) -> None:
        assert f"--trainer.default_root_dir={folder}" in arguments
        trained.append((folder.name, quick))

    def evaluate(run: Path, output: Path, settings: audiosr.Settings) -> Any:
        evaluated[output.name] = settings
        names = (audiosr.RESTORED, audiosr.LINEAR, audiosr.NOISE, audiosr.UNPROCESSED, audiosr.CEILING)
        rows = [
            {"system": name, "status": "done", "lsd_hf": float(place), "lsd": 1.0, "si_sdr_low": 31.0}
            for place, name in enumerate(names, 1)
        ]
        return SimpleNamespace(rows=rows)

    monkeypatch.setattr(audiosr, "train_once", train)
    monkeypatch.setattr(audiosr, "evaluate", evaluate)
    monkeypatch.setattr(sys, "argv", ["audiosr.py", "train", "--root", str(tmp_path), "--seed", "3", "--quick"])
    evidence({"train": audiosr.train, "gather": audiosr.gather})
    assert trained == [(stage, True) for stage in audiosr.STAGES]
    assert evaluated.keys() == audiosr.SAMPLERS.keys()
    assert {settings.max_items for settings in evaluated.values()} == {1}
    kept = json.loads((tmp_path / "demo" / "evidence" / "evidence.json").read_text())
    values = {each["name"]: (each["value"], each["passed"]) for each in kept["findings"]}
    assert values["LSD-HF to linear interpolation"] == (0.5, True)
    assert values["SI-SDR of the low band, least"] == (31.0, True)
    assert "LSD-HF to the ceiling" in capsys.readouterr().out


def test_a_training_that_fails_ends_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["audiosr.py", "gather", str(tmp_path / "nothing")])
    with pytest.raises(SystemExit, match=r"^error: .*nothing"):
        evidence({"train": audiosr.train, "gather": audiosr.gather})
