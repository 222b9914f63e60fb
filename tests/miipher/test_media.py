"""Which files the stages show at validations; those of a vocoder are in tests/cli/test_recipes.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from zoo.audio.io import files
from zoo.cli.main import main
from zoo.common.systems import recipe_root

MADE = {
    "adapter": {"clip0_features.png", "clip0_input.wav", "clip0_target.wav"},
    "backbone": {f"clip{clip}_{name}" for clip in (0, 1) for name in ("input.wav", "mel.png", "target.wav")},
}


@pytest.mark.parametrize("recipe", MADE)
def test_files_of_a_run(recipe: str, tmp_path: Path) -> None:
    settings = ("max_steps=2", "val_check_interval=1", f"default_root_dir={tmp_path}", "enable_progress_bar=false")
    config = recipe_root() / "miipher" / f"smoke_{recipe}.yaml"
    assert main(["fit", "--config", str(config), *(f"--trainer.{each}" for each in settings)]) == 0
    steps = (tmp_path / "media").glob("step_*")
    results = {step.name: {path.name for path in step.iterdir()} for step in steps}
    assert results == {"step_00000001": MADE[recipe], "step_00000002": MADE[recipe]}
    clips = {path.name: files.read(path) for path in (tmp_path / "media" / "step_00000002").glob("*.wav")}
    seconds = {name: round(audio.shape[-1] / rate, 1) for name, (audio, rate) in clips.items()}
    assert set(seconds.values()) == {1.0}
