"""`zoo cache`, called as the command line calls it."""

from pathlib import Path

import numpy as np
import pytest

from zoo.audio.io import files
from zoo.cli import main as cli

RATE = 16000


def write(path: Path, audio: np.ndarray, rate: int = RATE, subtype: str | None = None) -> None:
    files.write(path, audio.astype(np.float32), rate, subtype)


def hiss(samples: int) -> np.ndarray:
    return 0.1 * np.random.default_rng(0).standard_normal(samples)


def test_cache_before_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in "abc":
        write(tmp_path / "in" / f"{name}.wav", hiss(4000))
    recipe = tmp_path / "recipe.yaml"
    text = (
        "data:\n  class_path: zoo.audiosr.SuperResolutionData\n  init_args:\n"
        f"    root: {tmp_path / 'in'}\n    corpus: {{cache: {tmp_path / 'cache'}}}\n    sample_rate: {RATE}\n"
        "    simulation: {class_path: zoo.audiosr.Simulation, init_args: {cutoff_hz: [2000, 4000]}}\n"
    )
    recipe.write_text(text)
    assert cli.main(["cache", str(recipe)]) == 0
    assert "2 clips for training" in capsys.readouterr().out
    assert len(list((tmp_path / "cache").glob("*/audio.i16"))) == 1
